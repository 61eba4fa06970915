"""Messages about what somebody wrote: on the command line, in files, as values and as references."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["IN_FILES", "ON_THE_COMMAND_LINE", "REFERENCES", "VALUES"]

ON_THE_COMMAND_LINE: Mapping[str, tuple[str, ...]] = {
    "no-override": ("is no override",),
    "no-value": ("has no value", "has a value", "has a comma with nothing beside it"),
    "chooses-nothing": (
        "chooses nothing",
        "leaves no …, which is needed",
        "… is no option's name",
        "gives a map where an option is chosen",
    ),
    "not-a-key": (
        "has an empty part in its key",
        "… cannot stand in a key, expected names with dots between them",
        "the key has … bytes, expected … at most",
    ),
    "read-differently": (
        "… is … on the command line, in a file it would be …",
        "… is a text on the command line and … in a file, expected …",
        "… is one character on the command line, in a file it would be two",
        "… stands as it is on the command line, in a file it would be one character",
        "in a file the comma in … would end the text",
        "in a file a ':' with no blank after it is a part of the key",
    ),
    "not-closed": ("the … is not closed", "cannot read …"),
    "several-values": ("has several values, and this is one run",),
    "nothing-to-take-out": ("there is no … to take out",),
    "nobody-to-trust": ("… is nobody to trust", "trust is a list of names"),
    "item-of-a-list": ("… is a list of …", "… has no item …, expected …"),
    "no-such-option": (
        "no option … in the group …; looked in …",
        "no config …; looked in …",
        "the name of an option is too long for a file, expected … bytes at most",
    ),
    "no-such-group": ("… is no group", "the config's defaults list has no such entry"),
    "config-folder": ("the config folder … is …",),
    "search-path": (
        "the search path cannot be used: …",
        "found …, expected a list of addresses",
        "found …, expected an address with …",
        "there is no folder …",
    ),
    "hub-address": (
        "… is no address on the Hub: …",
        "… has … bytes, needed … at most",
        "there is no … file in it, at commit …",
    ),
    "arguments": (
        "explain needs one name, found …",
        "diff needs two plan files, found …",
        "… is empty, expected the name of a file or folder",
        "no schema …",
        "no completion for …",
        "no shell is named",
        "--config-dir is given … times: …",
        "override … and config= both say …",
        "config= has no node of a plan: none of …",
        "an override is a text, found a …",
        "a plan is a kerncfg.Plan, found a …",
    ),
    "no-such-row": ("no row is named …", "… rows are named …"),
    "cannot-be-written": ("… cannot be written: …",),
    "variable-that-is-not-read": ("… is set, and kerncfg does not read it: …",),
}

IN_FILES: Mapping[str, tuple[str, ...]] = {
    "fetched-file": (
        "a fetched file cannot grant trust",
        "a fetched file cannot steer Hydra",
        "a fetched file cannot hold `_target_`, which names code of this machine",
        "a fetched file cannot name …, code or a folder of this machine",
        "a fetched file cannot name …, which anybody may propose to a publisher you trust",
        "a fetched file cannot hold …, which a terminal obeys",
        "a fetched file cannot have a key with … in it, which a terminal obeys",
        "a fetched file cannot look up …",
        "a fetched file cannot choose …",
        "… brings a fetched file what it cannot say: …",
        "… brings a value of the environment, which a fetched file cannot read",
    ),
    "encoding": (
        "holds half of a character: …, expected text in UTF-8",
        "is UTF-16, expected UTF-8",
        "the byte 0x… is not UTF-8",
    ),
    "not-yaml": ("is not YAML: …", "is nested too deeply"),
    "not-a-map": ("the file holds …, expected a map",),
    "aliases": (
        "aliases expand to … values",
        "an alias inside the value that it stands for",
        "`<<` needs a map, or a list of maps",
    ),
    "tag": ("the tag … is not read here, expected plain YAML",),
    "key-twice": (
        "the key … stands twice: lines … and …",
        "the key … stands twice: with … and with …",
    ),
    "key-that-is-no-text": (
        "the key … is … in YAML, expected text",
        "the key … is … in YAML, expected a layer or function name that starts with a letter",
        "the key … is a …, expected text",
        "a key must be text, not a map or a list",
    ),
    "defaults-list": (
        "a defaults list belongs at the top of a file",
        "a defaults list leads back to itself",
        "a defaults list leads back to itself: …",
        "is no entry of a defaults list",
        "`_self_` stands twice in one list, expected once",
        "stands after an override, expected before it",
        "… is chosen a second time, expected once",
        "there is no … to override",
        "`???` stands where an option is due",
        "cannot be followed: …",
        "the keys of an experiment would stand below `experiment`, expected `# @package _global_` above them",
        "the header cannot be read: …",
    ),
    "which-schema": ("cannot tell which schema it follows",),
    "environment": ("… brings a value of the environment, which is for `model` only",),
    "interpolation": (
        "… is no interpolation that can be read",
        "… leads nowhere: there is no …",
        "refers to itself",
        "interpolations expand to … values, needed … at most",
        "… leads through … others, needed … at most",
        "cannot be resolved: …",
        "… cannot be resolved: …",
        "cannot be resolved",
        "… is a relative folder that came by …, so no file says what it is relative to",
    ),
}

VALUES: Mapping[str, tuple[str, ...]] = {
    "members-of-a-fusion": (
        "… ends in any number of modules, expected the name of one",
        "… and … have different parents, expected one",
        "… is said twice in one fusion",
    ),
    "unknown-key": ("unknown key `…`", "`…:` stands in a file of …, expected what is below it at the top"),
    "key-out-of-place": ("the key '…' cannot stand here, expected …",),
    "missing-key": ("`…` is missing",),
    "instantiation": ("`_target_` is refused: kerncfg never builds objects from a configuration",),
    "missing-value": ("`???` stands where a value is due",),
    "one-of-two": ("found both …, expected one of them", "… is said twice in one row", "… is said twice"),
    "beside-no-kernel": (
        "… stands beside no kernel",
        "… stands beside 'inherited', which takes no conditions",
        "no kernel is named",
    ),
    "nothing-inherited": ("'inherited' stands where nothing is inherited: … has no default rows",),
    "typed-by-yaml": ("… is a number…, expected …", "… is a boolean…, expected …", "… is no int", "… is no float"),
}

REFERENCES: Mapping[str, tuple[str, ...]] = {
    "no-kernel-name": (
        "no kernel name, expected one after a ':'",
        "no kernel name after the …",
        "nothing after the ':', expected a kernel name",
        "two names, expected one",
        "… is no kernel name",
        "more than one ':' after the folder",
    ),
    "no-reference": (
        "a web address is no kernel reference",
        "a reference cannot be empty",
        "a repository has no parent part",
        "… is no repository (organisation/name)",
        "… is no module name",
        "there is no such home folder",
    ),
    "attention-elsewhere": ("this is an attention, which has rows of its own",),
    "version-and-revision": ("more than one of '@', version and revision", "only a Hub kernel has versions"),
    "version-range": ("… is no version range", "… is no branch, tag, commit or range"),
}
