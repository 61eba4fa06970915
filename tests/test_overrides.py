"""What people type, and what Hydra is given."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from kerncfg.compiler.brackets import pieces
from kerncfg.compiler.overrides import rewrite
from kerncfg.compiler.sweeps import combinations, sweeping
from kerncfg.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"

REWRITTEN = {
    # options of groups
    "kernels=liger": ["kernels=liger"],
    "+kernels=liger": ["kernels=liger"],
    "experiment=fast": ["experiment=fast"],
    "+experiment=fast": ["experiment=fast"],
    "experiment=null": ["~experiment"],
    "inherited=none": ["kernels@inherited=none"],
    "kernels@inherited=none": ["kernels@inherited=none"],
    "policy=[default,strict]": ["policy=[default,strict]"],
    "kernels='3'": ["kernels='3'"],
    # a mapping or row as a map replaces what was there; with a + it is laid over it
    "kernels={A: a/b:C}": ["kernels=none", "++kernels={A: a/b:C}"],
    "+kernels={A: a/b:C}": ["++kernels={A: a/b:C}"],
    "inherited={A: a/b:C}": ["kernels@inherited=none", "++inherited={A: a/b:C}"],
    "kernels.X={cuda: a/b:C}": ["++kernels.X=null", "++kernels.X={cuda: a/b:C}"],
    "kernels.X.cuda={kernel: a/b:C}": ["++kernels.X.cuda=null", "++kernels.X.cuda={kernel: a/b:C}"],
    "+kernels.X={cuda: a/b:C}": ["++kernels.X={cuda: a/b:C}"],
    "model={factory: 'python:a:b'}": ["~model", "++model={factory: 'python:a:b'}"],
    "fusions={f: {kernel: a/b:C}}": ["fusions=none", "++fusions={f: {kernel: a/b:C}}"],
    "attention={a: sdpa}": ["attention=default", "++attention={a: sdpa}"],
    "attention.a={kernel: sdpa}": ["++attention.a=null", "++attention.a={kernel: sdpa}"],
    "fusions.f={kernel: a/b:C}": ["++fusions.f=null", "++fusions.f={kernel: a/b:C}"],
    "~fusions.f": ["~fusions.f"],
    "~attention.a": ["~attention.a"],
    "~fusions": ["fusions=none"],
    "~attention": ["attention=default"],
    "attention=sdpa": ["attention=sdpa"],
    "++kernels.X={kernel:a/b:C}": ["++kernels.X={kernel:a/b:C}"],
    "policy.verify={on_fail: error}": ["++policy.verify={on_fail: error}"],
    "target={device: cuda}": ["++target={device: cuda}"],
    # values
    "enabled=false": ["++enabled=false"],
    "target.device=cuda": ["++target.device=cuda"],
    "kernels.X=null": ["++kernels.X=null"],
    "kernels.X=": ["++kernels.X="],
    "kernels.X.cuda=a/b@v1:C": ["++kernels.X.cuda=a/b@v1:C"],
    f"kernels.X.cuda=a/b@{COMMIT}:C": [f"++kernels.X.cuda=a/b@{COMMIT}:C"],
    "+kernels.X.cuda=a/b:C": ["++kernels.X.cuda=a/b:C"],
    "++kernels.X.cuda=a/b:C": ["++kernels.X.cuda=a/b:C"],
    "kernels.X.cuda=a/b@>=2.0,<3.0:C": ["++kernels.X.cuda='a/b@>=2.0,<3.0:C'"],
    "kernels.X.cuda=a/b@==2.1:C": ["++kernels.X.cuda='a/b@==2.1:C'"],
    "kernels.X.version=>=1,<2": ["++kernels.X.version='>=1,<2'"],
    "kernels.X.version=3": ["++kernels.X.version=3"],
    "kernels.X.cuda=~/d:N": ["++kernels.X.cuda='~/d:N'"],
    "kernels.X.cuda=/my (1)/ü:N": ["++kernels.X.cuda='/my (1)/ü:N'"],
    "kernels.X.cuda=it's/a:N": ["++kernels.X.cuda='it\\'s/a:N'"],
    "kernels.X.cuda=C:\\d\\x:N": ["++kernels.X.cuda=C:\\d\\x:N"],
    "kernels.X.cuda=[a/b:C,{kernel: c/d:E, version: 2}]": ["++kernels.X.cuda=[a/b:C,{kernel: c/d:E, version: 2}]"],
    "kernels.X.cuda=${kernels.Y.cuda}": ["++kernels.X.cuda=${kernels.Y.cuda}"],
    "kernels.X.revision='61e9540'": ["++kernels.X.revision='61e9540'"],
    "kernels.X.match.path=model.layers.*.norm": ["++kernels.X.match.path=model.layers.*.norm"],
    # names that hold a slash
    "trust.repositories.acme/norms=true": ["++trust.repositories={acme/norms:true}"],
    "trust.repositories.acme/norms.v2=true": ["++trust.repositories={acme/norms.v2:true}"],
    "~trust.repositories.acme/norms": ["++trust.repositories={acme/norms:false}"],
    # what Hydra's sweeper makes of them
    "++kernels.X.cuda=a/b\\:C": ["++kernels.X.cuda=a/b\\:C"],
    "kernels.X=>=\u00a0": ["++kernels.X='>=\u00a0'"],
    # texts in brackets
    "kernels.X.cuda=[a/b@>=2:C, ~/d:E, null]": ["++kernels.X.cuda=['a/b@>=2:C', '~/d:E', null]"],
    "+kernels.X={cuda: {kernel: a/b:C, version: >=2}, cpu: [{kernel: ~/d:E}]}": [
        "++kernels.X={cuda: {kernel: a/b:C, version: '>=2'}, cpu: [{kernel: '~/d:E'}]}"
    ],
    "kernels.X.cuda={'kernel': a/b@>=2:C}": ["++kernels.X.cuda=null", "++kernels.X.cuda={kernel: 'a/b@>=2:C'}"],
    "kernels.X={kernel: a/b:C, when: {'config.act': 1, \"x\": y}}": [
        "++kernels.X=null",
        "++kernels.X={kernel: a/b:C, when: {config.act: 1, x: y}}",
    ],
    # taking out
    "~kernels.X": ["++kernels.X=inherited"],
    "~kernels.X.cuda": ["~kernels.X.cuda"],
    "~kernels": ["kernels=none"],
    "~inherited": ["kernels@inherited=none"],
    "~experiment": ["~experiment"],
    "~model": ["~model"],
    "~model\n": ["~model"],
    # sweeps
    "kernels=none,bundled": ["kernels=none,bundled"],
    "kernels.X.cuda=a/b@>=1,<2:C,c/d@>=3:E": ["++kernels.X.cuda='a/b@>=1,<2:C','c/d@>=3:E'"],
    "kernels.X.cuda=choice(a/b:C,'c/d@>=3:E')": ["++kernels.X.cuda=a/b:C,'c/d@>=3:E'"],
    "kernels.X.version=range(1,3)": ["++kernels.X.version=range(1,3)"],
    "trust.repositories.a/b=true,false": ["++trust.repositories={a/b:true},{a/b:false}"],
    # what is not ours
    "hydra.run.dir=x": ["hydra.run.dir=x"],
    "+lr=0.1": ["+lr=0.1"],
    "~optimizer": ["~optimizer"],
}

REFUSED = {
    "": "is no override",
    "=x": "has an empty part in its key",
    "a b=1": "is no override",
    "word": "is no override",
    "kernls.X.version=>=1": "is no override",
    "kernels": "has no value",
    "kernels=": "chooses nothing",
    "policy=null": "chooses nothing",
    "kernels=3": "no option's name",
    "experiment={a: b}": "a map where an option is chosen",
    "~policy": "leaves no policy",
    "~kernels.X=a": "has a value",
    "kernels..X=a": "an empty part in its key",
    "kernels.*.cuda=a/b:C": "'*' cannot stand in a key",
    "kernels.X.cuda=['a, b]": "cannot read ['a, b]",
    'kernels.X={kernel: [0", 0], version: []}': 'cannot read {kernel: [0", 0], version: []}',
    "kernels.X.cuda=[a/b:C": "the [ is not closed",
    "kernels.X.cuda={cpu: [a/b:C}": "cannot read {cpu: [a/b:C}",
    "kernels.X.cuda=[a/b@>=2,<3:C]": "in a file the comma in a/b@>=2,<3:C would end the text",
    "kernels.X={version: >=2,<3, kernel: a/b:C}": "in a file the comma in >=2,<3 would end the text",
    "kernels.on.cuda=a/b:C": "the key on is a boolean in YAML, expected text",
    "kernels.0123456=a/b:C": "the key 0123456 is a number in YAML, expected text",
    "kernels.~=a/b:C": "the key ~ is null in YAML, expected text",
    "kernels.X.cuda=a\\,b": "\\, is one character on the command line, in a file it would be two",
    "kernels.X.cuda=\\\\host\\k:K": "is one character on the command line",
    "kernels.X.cuda='a": "cannot read 'a",
    "kernels.X={when: {'on': 1}}": "cannot read {when: {'on': 1}}",
    "kernels.X.cuda=a/b:C,": "has a comma with nothing beside it",
    'kernels.X.when.x="a\\tb"': "\\t stands as it is on the command line, in a file it would be one character",
    'kernels.X.cuda=["C:\\\\k:K"]': "\\\\ stands as it is on the command line",
    "kernels.X.when.x=['a\\\\']": "\\\\ is one character on the command line, in a file it would be two",
    "kernels.X.cuda=nope(a)": "cannot read nope(a)",
}

# What the command line and a file would read differently: the value typed, and what the hint offers.
DIFFERENT = {
    "enabled=on": "enabled=true",
    "enabled=Off": "enabled=false",
    "enabled=tRue": "enabled=\"'tRue'\"",
    "kernels.X.revision=0123456": "kernels.X.revision=\"'0123456'\"",
    "kernels.X.revision=12:30:45": "kernels.X.revision=\"'12:30:45'\"",
    "kernels.X.revision=0x10": "kernels.X.revision=\"'0x10'\"",
    "kernels.X.cuda=a b #c": "kernels.X.cuda=\"'a b #c'\"",
    "model.config.x=inf": "model.config.x=\"'inf'\"",
    "kernels.X.cuda=nULL": "write kernels.X.cuda=null",
    "kernels.X.cuda=12:30:45": "name a kernel, as in kernels.X.cuda=org/repo@v1:Name",
    "kernels.X.exclude=[yes,a.b]": "'yes'",
    "kernels.X.exclude=[a: b]": "'a: b'",
    "model.config.x=[inf, 1]": "'inf'",
    "kernels.X.when={config.hidden_act: off}": "write \"kernels.X.when={config.hidden_act: 'off'}\"",
    "kernels.X.exclude=[yes,'yes',a.b]": "write \"kernels.X.exclude=['yes','yes',a.b]\"",
    "kernels.X.cuda=[./k:NaN, NaN]": "write \"kernels.X.cuda=[./k:NaN, 'NaN']\"",
    "model.config.x=.inf": "for the number model.config.x=1e999",
    "model.config.x=-inf": "for the number model.config.x=-1e999",
    "model.config.x=.nan": "write model.config.x=\"'.nan'\"",
}


@pytest.mark.parametrize("typed", REWRITTEN)
def test_an_override_is_rewritten(typed: str) -> None:
    assert rewrite([typed]) == REWRITTEN[typed]


@pytest.mark.parametrize("typed", REWRITTEN)
def test_rewriting_again_changes_nothing(typed: str) -> None:
    once = rewrite([typed])
    assert rewrite(once) == once


@pytest.mark.parametrize("typed", REWRITTEN)
def test_hydra_reads_what_it_is_given(typed: str) -> None:
    OverridesParser.create().parse_overrides(rewrite([typed]))


@pytest.mark.parametrize("typed", REFUSED)
def test_what_cannot_be_read_is_refused_with_a_hint(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite([typed])
    (issue,) = caught.value.issues
    assert REFUSED[typed] in issue.message
    assert issue.file == f"override: {typed}"
    assert issue.hint


@pytest.mark.parametrize("typed", DIFFERENT)
def test_what_a_file_would_read_differently_is_refused_with_the_line_to_type(typed: str) -> None:
    with pytest.raises(ConfigError, match="in a file it would be") as caught:
        rewrite([typed])
    assert DIFFERENT[typed] in str(caught.value.issues[0].hint)


def test_the_line_offered_is_accepted() -> None:
    assert rewrite(["kernels.X.revision='0123456'"]) == ["++kernels.X.revision='0123456'"]


def test_an_override_of_a_misspelt_node_that_cannot_be_read_is_told_the_nearest_node() -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite(["kernls.X.version=>=1"])
    assert caught.value.issues[0].hint == "did you mean kernels?"


def test_every_fault_of_every_override_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite(["kernels=", "kernels.X=a/b:C", "enabled=on", "~policy"])
    assert [issue.path for issue in caught.value.issues] == ["kernels", "enabled", "policy"]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a/b@>=1,<2:C", ["a/b@>=1,<2:C"]),
        ("a/b@>=1,<2:C,d", ["a/b@>=1,<2:C", "d"]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ("{a: 'x,y'},z", ["{a: 'x,y'}", "z"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("it's,that's", ["it's", "that's"]),
        ("${f:a,b},c", ["${f:a,b}", "c"]),
        ("'a\\'b,c',d", ["'a\\'b,c'", "d"]),
        ("", [""]),
    ],
)
def test_a_value_splits_at_its_top_level_commas_but_not_inside_a_range(value: str, parts: list[str]) -> None:
    assert pieces(value) == parts


def test_a_sweep_is_told_from_one_value() -> None:
    assert sweeping("kernels=none,bundled")
    assert not sweeping("kernels.X=[a,b]")


def test_a_sweep_gives_every_combination_in_hydras_order() -> None:
    found = list(combinations(["kernels=none,bundled", "target.device=cpu", "kernels.X.cuda=a/b@>=1:C,'c'"]))
    assert found == [
        ["kernels=none", "++target.device=cpu", "++kernels.X.cuda='a/b@>=1:C'"],
        ["kernels=none", "++target.device=cpu", "++kernels.X.cuda='c'"],
        ["kernels=bundled", "++target.device=cpu", "++kernels.X.cuda='a/b@>=1:C'"],
        ["kernels=bundled", "++target.device=cpu", "++kernels.X.cuda='c'"],
    ]


def test_a_sweep_that_only_hydra_can_spell_out_is_left_to_it() -> None:
    assert list(combinations(["kernels=glob(*)", "model=llama"])) == [["model=llama"]]


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("kernels.X=a/b@>=2.0,<3.0:C", "a/b@>=2.0,<3.0:C"),
        ("kernels.X=it's/a:N", "it's/a:N"),
        ("kernels.X=~/a\\b:N", "~/a\\b:N"),
        ("kernels.X=é\\'x", "é\\'x"),
    ],
)
def test_quoting_keeps_every_character(typed: str, value: Any) -> None:
    (line,) = rewrite([typed])
    assert OverridesParser.create().parse_override(line).value() == value


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("kernels.X={kernel:a/b:C}", 'write "kernels.X={kernel: a/b:C}"'),
        ("kernels.X=[{kernel:a/b:C, version: 3}]", 'write "kernels.X=[{kernel: a/b:C, version: 3}]"'),
        ("model={factory:python:a.b:c}", 'write "model={factory: python:a.b:c}"'),
        ("attention.a=sdpa,{kernel:a/b}", 'write "attention.a={kernel: a/b}"'),
    ],
)
def test_a_map_without_blanks_is_refused_with_the_line_to_type(typed: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite([typed])
    (issue,) = caught.value.issues
    assert (issue.message, issue.hint) == ("in a file a ':' with no blank after it is a part of the key", line)


@pytest.mark.parametrize("typed", ["kernels.X.revision=1.10,v3", "kernels.X.revision=choice(1.10, v3)"])
def test_a_sweep_keeps_the_characters_of_a_number(typed: str) -> None:
    assert list(combinations([typed])) == [["++kernels.X.revision=1.10"], ["++kernels.X.revision=v3"]]


def test_a_range_of_numbers_is_spelled_out_by_hydra() -> None:
    assert list(combinations(["model.batch=range(1,3)"])) == [["++model.batch=1"], ["++model.batch=2"]]


@pytest.mark.parametrize(("node", "cure"), [("fusions", "fusions=none"), ("attention", "attention=default")])
def test_a_node_of_rows_is_emptied_by_its_empty_option(node: str, cure: str) -> None:
    with pytest.raises(ConfigError, match=f"write {cure}$"):
        rewrite([f"{node}="])
