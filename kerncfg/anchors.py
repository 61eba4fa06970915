"""Where each message is explained: the sections of `docs/troubleshooting.md`, each with the messages it is about.

In a message `…` stands for any words. The sections are asked in order, so what is particular stands before what is
general, and a message that holds another one leads to the section of the inner one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

__all__ = ["ANCHORS", "PAGE", "anchor_of"]

PAGE = "docs/troubleshooting.md"

_ON_THE_COMMAND_LINE: Mapping[str, tuple[str, ...]] = {
    "no-override": ("is no override",),
    "no-value": ("has no value", "has a value"),
    "chooses-nothing": (
        "chooses nothing",
        "leaves no …, which is needed",
        "… is no option's name",
        "gives a map where an option is chosen",
    ),
    "not-a-key": ("has an empty part in its key", "… cannot stand in a key, expected names with dots between them"),
    "read-differently": (
        "… is … on the command line, in a file it would be …",
        "… is a text on the command line and … in a file, expected …",
        "… is one character on the command line, in a file it would be two",
        "in a file the comma in … would end the text",
        "in a file a ':' with no blank after it is a part of the key",
    ),
    "not-closed": ("the … is not closed", "cannot read …"),
    "several-values": ("has several values, and this is one run",),
    "nothing-to-take-out": ("there is no … to take out",),
    "nobody-to-trust": ("… is nobody to trust", "trust is a list of names"),
    "item-of-a-list": ("… is a list of …", "… has no item …, expected …"),
    "no-such-option": ("no option … in the group …; looked in …", "no config …; looked in …"),
    "no-such-group": ("… is no group", "the config's defaults list has no such entry"),
    "config-folder": ("the config folder … is …",),
    "search-path": ("hydra.searchpath cannot be used: …", "must be a list of addresses", "there is no folder …"),
    "arguments": (
        "explain needs one name, found …",
        "diff needs two plan files, found …",
        "no schema …",
        "no completion for …",
        "no shell is named",
        "--config-dir is given … times: …",
        "override … and config= both say …",
        "an override is a text, found a …",
        "a plan is a kerncfg.Plan, found a …",
    ),
    "no-such-row": ("no row is named …", "… rows are named …"),
    "cannot-be-written": ("… cannot be written: …",),
}

_FROM_OTHER_TOOLS: Mapping[str, tuple[str, ...]] = {
    "no-equivalent": ("… has no equivalent", "…: a KernelConfig cannot say it"),
    "not-written-out": ("… is not written out: …",),
    "kernel-mappings": (
        "a kernel mapping is a map from names to kernels, found …",
        "a kernel is a text or a pair of text and metadata, found …",
        "the first of a pair is the kernel's text, found …",
        "a … holds its commit in a lock file",
        "… is neither a name nor pairs of class name and path",
        "… is no mode",
    ),
    "what-can-be-imported": (
        "import needs a file",
        "is no text",
        "holds none of …",
        "not Python: …",
        "sets up no kernels",
        "sets up kernels in … places: lines …",
        "… is said in both … and …",
    ),
    "flags-and-pins": (
        "… is no flag of Liger's",
        "is no map of flags",
        "entry … names no repository and commit",
        "… is no repository with a folder",
    ),
    "every-publisher": ("allow_all_kernels=True lets the code of every publisher run",),
    "a-training": (
        "the plan is not saved: there is no folder …",
        "use_liger_kernel and KernelsCallback both swap the layers of one model",
        "… was trained with plan …, this training has …",
    ),
}

_IN_FILES: Mapping[str, tuple[str, ...]] = {
    "encoding": ("is UTF-16, expected UTF-8", "the byte 0x… is not UTF-8"),
    "not-yaml": ("is not YAML: …", "is nested too deeply"),
    "not-a-map": ("the file holds …, expected a map",),
    "aliases": (
        "aliases expand to … values",
        "an alias inside the value that it stands for",
        "`<<` needs a map, or a list of maps",
    ),
    "tag": ("the tag … is not read here, expected plain YAML",),
    "key-twice": ("the key … stands twice: lines … and …",),
    "key-that-is-no-text": (
        "the key … is … in YAML, expected text",
        "the key … is … in YAML, expected a layer or function name that starts with a letter",
        "the key … is a …, expected text",
        "a key must be text, not a map or a list",
    ),
    "defaults-list": (
        "a defaults list belongs at the top of a file",
        "a defaults list leads back to itself",
        "is no entry of a defaults list",
        "the header cannot be read: …",
    ),
    "which-schema": ("cannot tell which schema it follows",),
    "environment": ("… brings a value of the environment, which is for `model` only",),
    "interpolation": (
        "… is no interpolation that can be read",
        "… leads nowhere: there is no …",
        "refers to itself",
        "cannot be resolved: …",
        "cannot be resolved",
        "… is a relative folder that came by …, so no file says what it is relative to",
    ),
}

_VALUES: Mapping[str, tuple[str, ...]] = {
    "members-of-a-fusion": (
        "… ends in any number of modules, expected the name of one",
        "… and … have different parents, expected one",
        "… is said twice in one fusion",
    ),
    "unknown-key": ("unknown key `…`",),
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

_REFERENCES: Mapping[str, tuple[str, ...]] = {
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

_PLAN_FILES: Mapping[str, tuple[str, ...]] = {
    "no-plan": ("…: holds a …, not a plan", "…: is no plan, it has no …", "…: not JSON (…)"),
    "plan-format": ("the plan has format …, this kerncfg reads …",),
    "plan-edited": ("the plan's content has digest …, the file says …",),
    "another-machine": ("the plan does not fit this machine: …",),
}

_REASONS: Mapping[str, tuple[str, ...]] = {
    "untrusted-publisher": ("publisher … is not trusted: …",),
    "unnamed-code": ("… was not named by you: …",),
    "ignored-consent": ("… is ignored: it comes from …, and only a local file or an override can grant trust",),
    "hub-off": ("Hub kernels are switched off by USE_HUB_KERNELS",),
    "not-pinned": ("policy.require_pin needs a commit of 40 digits, found …",),
    "no-build-fits": (
        "no build fits: …",
        "built for …, the target is …",
        "built for … …, the target has …",
        "built with the … ABI, the target's torch uses …",
        "built with the … ABI of Linux, the target is …",
        "compiled builds need Python … if free-threaded, the target has …",
        "needs macOS … or newer, the target has …",
        "needs torch … or newer, the target has …",
        "needs … …, the target's version is not known",
        "needs kernels … or newer, kerncfg reads what … does",
        "needs the Python package …, a build for … may need …",
        "needs …, not installed here: pip install …",
    ),
    "build-metadata": (
        "metadata.json: … is …, expected …",
        "metadata.json is …, expected …",
        "metadata.json is no JSON, as was expected: …",
    ),
    "compiled-attention": (
        "the compiled package … is for cuda, the target is …",
        "needs the compiled package …, the target has none",
        "… is beta upstream",
    ),
    "condition-on-the-target": ("needs … …, the target has …",),
    "no-build-there": ("no build in …: looked for …", "no folder …", "… is a file; name its folder, …"),
    "no-module": ("no module … on the search path",),
    "no-source": ("no source for … kernels is installed", "the source for … kernels, …, cannot be used: …"),
    "switched-off": ("kernels are switched off: enabled is false",),
    "off": ("off, as the row says", "off, as inherited"),
    "replaced": (
        "the original stands before it…",
        "replaced by your …",
        "the row takes nothing inherited",
        "…: a map takes the place of …, said at …",
    ),
    "lock": ("the lock does not hold it: `kerncfg lock` asks for what it lacks",),
}

_APPLYING: Mapping[str, tuple[str, ...]] = {
    "not-a-model": (
        "a model is a torch.nn.Module, found a …",
        "a … runs code of its own, which no kernel can replace",
        "the replicas of a DataParallel would all run the first one's kernels",
    ),
    "mode": (
        "no mode …",
        "nothing was applied for …, only for …",
        "the model is compiled, and … is for models that are not",
    ),
    "two-rows": ("… is taken by …, each through its match",),
    "code-changed": (
        "the code has digest …, the plan says …",
        "… was imported before its code changed",
        "build … is not there any more",
    ),
    "import-failed": (
        "… cannot be imported: …",
        "layers.py has …, but … does not import it…",
        "no … there; …",
        "no …/__init__.py",
    ),
    "kernel-class": (
        "a layer kernel is a subclass of torch.nn.Module, this is a …",
        "a layer kernel is stateless, this has an __init__ of its own",
        "a layer kernel has no members but …, this has …",
        "a layer kernel's forward is a method, this is a …",
        "this has no forward",
        "a layer kernel is stateless, its forward changes self: …",
        "its forward is async, and a layer is called without await",
        "its forward is a generator, it has a yield",
        "its forward calls super(), which means nothing in the layer that borrows it",
    ),
    "kernel-modes": (
        "has_backward is false, and … needs gradients",
        "can_torch_compile is not true, and … runs under torch.compile",
        "…, which is neither true nor false",
    ),
    "signature": ("its forward is …, that of … is …", "the signature of ….forward cannot be read"),
    "functions": (
        "it takes …, … takes …",
        "the signature of … cannot be read",
        "a function's kernel is a subclass of torch.nn.Module or a function, this is a …",
        "a function's kernel is a class or a function, this is a module with a state of its own",
        "its forward uses …, and a function has no self",
        "its module's functions share the global …, which one of them sets: a copy would not see it",
        "it reads __name__, which its copy has not",
        "… took the whole forward, which calls it",
        "a kernel took the whole forward, by …",
    ),
    "reads-past-a-wrapper": (
        "its forward reads inside self.…, past …",
        "the adapter … there",
        "the wrapper around its forward",
        "its forward hooks",
    ),
    "attribute": (
        "its forward reads self.…, which the module has not",
        "when.… asks for what the module has not",
        "when.… cannot be read: …",
    ),
    "condition-on-the-module": ("needs dtype …, found …", "needs … …, found …"),
    "another-device": ("the module is on …, the plan is for …",),
    "wrapped": (
        "wrapped: something set a forward on the instance, and the layer's own cannot be reached inside it",
        "wrapped by the adapter … around base_layer",
        "compiled by TorchScript",
        "its class computes its forward, …",
        "the layer's own kernel_condition says no",
    ),
    "fusion-members": (
        "a fusion needs at least one member",
        "the members of a fusion share one parent, found …",
        "… has … members that … fits: …",
        "of … a member is missing in …",
        "no parent has …",
        "the nearest paths are …",
        "… is … as well, and a module can be fused once",
    ),
    "fusion-conflict": (
        "… is a member of …, and … takes it by match",
        "… is a member of … and of …",
        "…, a member of …, lies inside … or what … fuses with it",
        "… is fused already, as part of …",
    ),
    "layout": (
        "a fused kernel needs a class …Layout(nn.Module) beside it, in …",
        "takes other arguments than the … members of the fusion",
        "wants …, and what that was cannot be told from the module",
        "its conversion names …, which …",
        "its … has no source: say in conversion what it is made of",
        "it takes no account of …",
        "… of the layout …, what it is made of has …",
        "its forward reads self.…, which its layout, …, has not",
        "…Layout(…) raised …",
    ),
    "conversion": (
        "… differ in dtype, device or width, or are no plain parameters",
        "… are stacked in two ways",
        "… is tied to another parameter, so it cannot move alone",
        "… is no parameter, and cannot be converted",
        "converting … raised …",
        "… does not come back from its conversion as it was",
        "… makes new parameters of …, so it has to run in every mode",
    ),
    "passed-by": (
        "… has …, which the kernel would pass by",
        "a forward set on the instance",
        "an adapter, …",
        "a … that is fused into the module before it was called with …",
        "a … …, and the kernel that is fused into … would pass by it",
    ),
    "fusion-changed": (
        "changed since: … is another module, which the kernel does not run",
        "changed since: … has …, which the kernel passes by",
        "changed since: stacked parameters no longer share one memory, …",
    ),
    "fusion-notes": ("… hand… on what … returns", "new parameters take the place of …"),
    "excluded": ("excluded by …",),
    "swaps-nothing": (
        "policy.strict: rows that swap nothing: …",
        "the plan names kernels, and no module runs one: …",
    ),
    "no-sites": ("no layer …", "no module matches …", "no forward… calls …", "… inherited … no layer in this model"),
    "copies": (
        "… that runs a kernel cannot be copied or saved: …",
        "… was copied or read without its kernel: …",
        "a … was saved with kernels that it cannot run here: …",
        "a model whose attention is … cannot be saved: …",
        "the forward of a … was wrapped after its kernel was applied, …",
    ),
    "attention-parts": (
        "the model has no part whose attention can be chosen",
        "no part of the model is at …",
        "… names …, and not …, which gets the same mask from …",
        "the attention of a model is chosen in transformers' registries, and there are none in this process",
    ),
    "attention-not-taken": (
        "… knows no choice of attention",
        "… chose its attention when it was built, and looks at no later choice",
        "… did not take the attention …: it finds … there",
        "… finds the attention … now",
        "no masks are registered for the attention …",
        "… asks whether its attention is …, which a kernel's name is not",
        "… takes … where … is asked for",
        "… says … = False, and this kernel is called in that way",
        "… works with the attention … only",
        "config.output_attentions asks for the weights of attention, which only eager gives",
        "… stands in transformers' registries already, and kerncfg did not write it",
    ),
    "attention-kernel": (
        "… passes … to its attention, and this takes none",
        "no attention is called …, expected …",
        "an attention kernel is no …, expected a function or what offers flash_attn_varlen_func",
        "… is no attention function, expected …",
        "… is not called as …",
        "… has no …, and models need both",
        "the signature of … cannot be read",
        "… has no …, and transformers passes …",
        "… offers …, and no flash_attn_varlen_func, which padding needs",
        "transformers … calls flash attention in another way than the 5.24 known here",
    ),
    "attention-masks": (
        "no mask is called …, expected auto or one of …",
        "the row's mask is …, and this kernel works with …",
        "… declares the mask …, expected …",
        "parts that share one configuration cannot have different masks: …",
        "one mask is made for both modes, and … works with …, … with …",
        "… is for both modes or none: transformers finds it by its name, and two modes share one",
        "… has no eager attention that could be called for one mode only",
    ),
    "reverted": (
        "the attention of … cannot be reverted while a later choice is on it",
        "… cannot be reverted while … is on this model",
        "… decides here",
        "reverted",
    ),
}

_MODELS: Mapping[str, tuple[str, ...]] = {
    "architecture": (
        "transformers … has no model class …",
        "… cannot be built from it: …",
        "… has no key …",
        "… is no floating dtype",
    ),
    "factory": (
        "model.factory: …",
        "… names no function",
        "… has no function …",
        "there is no module …",
        "… returned …, expected a module or (module, inputs)",
        "the inputs of … do not fit the model's forward: …",
        "the forward of … names no arguments",
    ),
    "pretrained": ("model.pretrained: …",),
    "inputs": (
        "no inputs can be made: the model has no config.vocab_size",
        "… is more than the model's max_position_embeddings, …",
        "the model's own forward raised …",
    ),
    "transformers": ("… needs transformers: …",),
    "device": ("this machine cannot hold a model on …: …", "target.device: … is no device", "… is no version"),
}

_EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "verification": (
        "verification failed",
        "… of … values are out of tolerance",
        "… of … values differ",
        "off by a factor of … throughout, allowed 1 ± …",
    ),
    "result-of-another-form": (
        "… is …, the original's …",
        "returns …, the original …",
        "… is cut off from autograd",
        "its values differ in shape",
    ),
    "not-verified": (
        "nothing is swapped, so there is nothing to …",
        "nothing could be compared: …",
        "… is on the meta device, and cannot be compared",
        "cannot be compared: …",
        "not reached by the run of the model, so not …",
        "the original cannot be run alone: …",
        "float64 would take … GB, and … GB are free",
        "none, …",
        "policy.verify.thresholds says nothing about …",
        "no copy of it can be made: …",
        "not run with its kernels: …",
        "the mode is fixed to inference",
        "training runs …",
        "the forward failed",
        "nothing here needs a gradient",
    ),
    "forward-failed": (
        "raised …",
        "writes to …",
        "changes the module: …",
        "changes … for the whole process",
        "returns the same memory from two calls, …",
        "sets the seed of the global random state",
        "draws from the global random state",
    ),
}

# What other messages may hold, so it is asked last.
_GENERAL: Mapping[str, tuple[str, ...]] = {
    "fallback": (
        "fallback: the original where no kernel is left",
        "no row for …",
        "the row names no kernel for … on …",
        "the plan has no kernel for …",
    ),
    "no-kernel-left": ("no kernel for …: …", "no kernel of … is left for …: …"),
    "chosen": ("chosen for …", "inherited for …", "…, by match …"),
    "cannot-be-composed": ("the configuration cannot be composed: …",),
    "no-such-node": ("there is no …",),
    "cannot-be-read": ("cannot be read: …",),
    "another-value": ("found …, expected …", "… is no …"),
}

_PARTS = (
    _FROM_OTHER_TOOLS,
    _ON_THE_COMMAND_LINE,
    _IN_FILES,
    _VALUES,
    _REFERENCES,
    _PLAN_FILES,
    _MODELS,
    _REASONS,
    _APPLYING,
    _EVIDENCE,
    _GENERAL,
)
ANCHORS: Mapping[str, tuple[str, ...]] = {anchor: messages for part in _PARTS for anchor, messages in part.items()}


def anchor_of(message: str) -> str | None:
    """Return the section that explains a message or a reason, or `None`."""
    return next((anchor for anchor, pattern in _patterns() if pattern.search(message)), None)


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(anchor, re.compile("|".join(map(_pattern, said)), re.DOTALL)) for anchor, said in ANCHORS.items()]


def _pattern(message: str) -> str:
    """Return a message as a pattern; one that begins with words begins a sentence or stands behind a colon."""
    words = message.strip("…")
    start = "" if message.startswith("…") else r"(?<![\w`'])"
    end = r"(?!\w)" if message[-1].isalnum() else ""
    return start + ".*?".join(map(re.escape, words.split("…"))) + end
