"""Every fault of a document at once, each in a sentence that names its place and its cure."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kerncfg.compiler.checking import check_file
from kerncfg.compiler.compose import compose
from kerncfg.compiler.overrides import NODES
from kerncfg.compiler.schema import names, schema, validate
from kerncfg.documents.plan import SCHEMA
from kerncfg.documents.target import DEVICES, Mode, Target
from kerncfg.errors import ConfigError, Issue
from kerncfg.locations import schemas


def issues(*overrides: str, config_dir: Path | None = None) -> list[Issue]:
    document, origins = compose(overrides, config_dir=config_dir)
    try:
        validate(document, origins=origins)
    except ConfigError as error:
        return error.issues
    return []


def in_file(folder: Path, text: str) -> list[str]:
    """Return the faults of a file `kernels/f.yaml`, one line each."""
    file = folder / "kernels/f.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return [str(issue).replace(str(folder), "").replace("\n  hint: ", " -> ") for issue in check_file(file)]


def rows(value: Any) -> list[Issue]:
    with pytest.raises(ConfigError) as caught:
        validate({"X": value}, "kernels")
    return caught.value.issues


GOOD_ROWS: list[Any] = [
    "a/b:C",
    "",
    None,
    ["a/b:C", "inherited", None, {"kernel": "d/e:F", "version": 2}],
    {"cuda": "a/b:C", "rocm": {"kernel": "a/b:C", "version": ">=2,<3"}, "xpu": ["a/b:C", "inherited"], "cpu": None},
    {"any": "a/b:C", "metal": "a/b:C"},
    {"cpu": {"inference": "builtin:Fast", "training": "original", "training_compile": ["a/b:C"]}},
    {"cpu": {"inference": {"kernel": "a/b:C", "dtype": "bfloat16"}}},
    {"kernel": "a/b:C", "version": 3, "cuda": "d/e:F"},
    {"kernel": "a/b:C", "capability": ">=8.0,<9.0", "torch": ">=2.9", "dtype": ["bfloat16", "float16"]},
    {"kernel": "a/b:C", "when": {"config.act": ["silu", "swish"], "config": {"n": 1}}, "trust_remote_code": True},
    {"match": {"class": "*Norm", "path": "model.**", "type": "torch.nn.RMSNorm", "name": "RMSNorm"}},
    {"exclude": ["model.layers.0.*"], "fallback": "error", "inherit_mapping": False},
]

# What is wrong with a row, and for each fault: the path, a part of the message, a part of the hint.
BAD_ROWS: list[tuple[Any, list[tuple[str, str, str]]]] = [
    (True, [("X", "true is a boolean in YAML, expected text, null", "name a kernel, as in X: org/repo@v1:Name")]),
    (3, [("X", "3 is a number in YAML", "")]),
    ([], [("X", "found an empty list, expected at least one candidate", "for off write null")]),
    ([["a/b:C"]], [("X.0", "found a list, expected text or a map", "")]),
    ([3], [("X.0", "3 is a number in YAML", "")]),
    ({"cdua": "a/b:C"}, [("X.cdua", "unknown key `cdua`", "did you mean cuda?")]),
    ({"color": "a/b:C"}, [("X.color", "unknown key `color`", "known are any, cuda, rocm")]),
    ({"fallback": "eror"}, [("X.fallback", "found 'eror', expected one of original, error", "did you mean error?")]),
    ({"match": {}}, [("X.match", "found an empty map, expected a map with class, path", "or leave it out")]),
    ({"match": "*"}, [("X.match", "found '*', expected a map with class", "write match: {class")]),
    ({"match": {"function": "f()"}}, [("X.match.function", "expected the name of a function", "without brackets")]),
    ({"match": {"type": "RMSNorm"}}, [("X.match.type", "expected a dotted import path", "write match: {class: NAME}")]),
    ({"exclude": "a.*"}, [("X.exclude", "expected a list of patterns", "write exclude: ['a.*']")]),
    ({"cuda": {}}, [("X.cuda", "`kernel` is missing", "write kernel: org/repo@v1:Name beside")]),
    ({"cuda": {"version": 2}}, [("X.cuda", "`kernel` is missing", "")]),
    ({"cuda": {"kernal": "a/b:C"}}, [("X.cuda.kernal", "unknown key `kernal`", "did you mean kernel?")]),
    ({"cuda": {"inferense": "a/b:C"}}, [("X.cuda.inferense", "unknown key", "did you mean inference?")]),
    (
        {"cuda": {"kernel": "a/b:C", "inference": None}},
        [("X.cuda.kernel", "cannot stand here, expected either modes or one candidate's keys", "under its mode")],
    ),
    (
        {"cuda": {"inference": {"version": 2}}},
        [("X.cuda.inference", "`kernel` is missing", "write kernel: org/repo@v1:Name beside")],
    ),
    (
        {"cuda": {"inference": {"training": "a/b:C"}}},
        [
            ("X.cuda.inference", "`kernel` is missing", "write kernel: org/repo@v1:Name beside"),
            ("X.cuda.inference.training", "unknown key `training`", "known are kernel, version"),
        ],
    ),
    (
        {"kernel": "a/b:C", "version": 1, "revision": "main"},
        [("X", "found both version and revision, expected one of them", "keep version for a release")],
    ),
    (
        {"cuda": [{"kernel": "a/b:C", "version": 1, "revision": "x"}]},
        [("X.cuda.0", "found both version and revision", "keep version")],
    ),
    ({"kernel": "a/b:C", "version": 1.1}, [("X.version", "1.1 is a number", "write version: '==1.1'")]),
    ({"kernel": "a/b:C", "version": 3.0}, [("X.version", "3.0 is a number", "write version: '==3.0'")]),
    ({"kernel": "a/b:C", "version": -1}, [("X.version", "found -1, expected at least 0", "write version: 0")]),
    ({"kernel": "a/b:C", "version": "2.x"}, [("X.version", "found '2.x', expected comparisons such as", "")]),
    ({"kernel": "a/b:C", "version": "3"}, [("X.version", "found '3'", "write version: 3 without quotes")]),
    ({"kernel": "a/b:C", "version": True}, [("X.version", "true is a boolean", "write version: 3")]),
    (
        {"kernel": "a/b:C", "revision": 12},
        [("X.revision", "12 is a number in YAML, expected a branch", "write revision: '12'")],
    ),
    ({"kernel": "a/b:C", "capability": 9.0}, [("X.capability", "9.0 is a number", "write capability: '==9.0'")]),
    (
        {"kernel": "a/b:C", "capability": "9.0"},
        [("X.capability", "expected comparisons such as", "write capability: '==9.0'")],
    ),
    ({"kernel": "a/b:C", "dtype": "bf16"}, [("X.dtype", "found 'bf16', expected one of", "did you mean bfloat16?")]),
    ({"kernel": "a/b:C", "dtype": ["bf16"]}, [("X.dtype.0", "found 'bf16'", "did you mean bfloat16?")]),
    ({"kernel": "a/b:C", "when": "silu"}, [("X.when", "expected a map such as {config.hidden_act: silu}", "")]),
    ({"when": {"a": [{"b": 1}]}}, [("X.when.a.0", "found a map, expected single values in the list", "")]),
    ({"when": {"a": {"b": {"c": [[1]]}}}}, [("X.when.a.b.c.0", "found a list", "")]),
    ({"kernel": "a/b:C", "version": "???"}, [("X.version", "`???` stands where a value is due", "")]),
    ({"kernel": "???"}, [("X.kernel", "`???` stands where a value is due", "say X.kernel=VALUE")]),
    ({"when": {"a": {"_target_": "os.system"}}}, [("X.when.a._target_", "never builds objects", "take it out")]),
    (
        {"cdua": 1, "cuda": {"kernel": 2, "trust_remote_code": "yes"}, "match": {"clas": "x"}},
        [
            ("X.cdua", "unknown key", "did you mean cuda?"),
            ("X.cuda.kernel", "2 is a number in YAML, expected a reference", ""),
            ("X.cuda.trust_remote_code", "found 'yes', expected true or false", "write trust_remote_code: true"),
            ("X.match.clas", "unknown key", "did you mean class?"),
        ],
    ),
]


@pytest.mark.parametrize("row", GOOD_ROWS, ids=json.dumps)
def test_every_form_of_a_row_is_valid(row: Any) -> None:
    validate({"X": row}, "kernels")


@pytest.mark.parametrize(("row", "expected"), BAD_ROWS, ids=lambda case: json.dumps(case)[:60])
def test_a_wrong_row_is_told_in_full(row: Any, expected: list[tuple[str, str, str]]) -> None:
    found = sorted(rows(row), key=lambda issue: issue.path)
    assert [issue.path for issue in found] == [path for path, _, _ in expected]
    for issue, (_, message, hint) in zip(found, expected, strict=True):
        assert message in issue.message
        assert hint in (issue.hint or "")


@pytest.mark.parametrize(("row", "expected"), BAD_ROWS, ids=lambda case: json.dumps(case)[:60])
def test_a_fault_takes_at_most_three_lines_and_shows_nothing_of_the_schema(row: Any, expected: Any) -> None:
    for issue in rows(row):
        assert str(issue).count("\n") < 3
        assert not any(word in str(issue) for word in ("$defs", "additionalProperties", "schema", "anyOf", "{'"))


@pytest.mark.parametrize("name", ["inherited", "model.layers.*.mlp", "1st", "a b", ""])
def test_a_row_needs_the_name_of_a_layer(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot stand here") as caught:
        validate({name: "a/b:C"}, "kernels")
    assert "a layer or function name" in str(caught.value)


BAD_OVERRIDES = {
    "target.device=cdua": ("target.device", "found 'cdua', expected one of auto, cuda", "did you mean cuda?"),
    "target.capability=9.0": (
        "target.capability",
        "9.0 is a number, expected major.minor",
        "target.capability=\"'9.0'\"",
    ),
    "target.capability=hopper": ("target.capability", 'expected major.minor in quotes, such as "9.0"', ""),
    "target.packages.triton=3.5": (
        "target.packages.triton",
        "3.5 is a number, expected",
        "write target.packages.triton=\"'3.5'\"",
    ),
    "policy.strit=true": ("policy.strit", "unknown key `strit`", "did you mean strict?"),
    "policy.strict='true'": ("policy.strict", "found 'true', expected true or false", "write policy.strict=true"),
    "policy.verify.on_fail=fallbck": (
        "policy.verify.on_fail",
        "found 'fallbck', expected one of report",
        "did you mean fallback?",
    ),
    "policy.verify.thresholds.float32.slack=0": (
        "policy.verify.thresholds.float32.slack",
        "found 0, expected more than 0",
        "slack=1",
    ),
    "policy.verify.thresholds.float32.share=2": (
        "policy.verify.thresholds.float32.share",
        "found 2, expected at most 1",
        "share=1",
    ),
    "~policy.verify.thresholds.float32.gain": (
        "policy.verify.thresholds.float32.gain",
        "`gain` is missing",
        "or write policy.verify.thresholds.float32.gain=VALUE",
    ),
    "~target.device": ("target.device", "`device` is missing", "leave ~target.device out, or write target.device="),
    "trust.publishers.acme=maybe": (
        "trust.publishers.acme",
        "found 'maybe', expected true or false",
        "write trust.publishers.acme=false",
    ),
    "trust.publishers.acme/norms=true": (
        "trust.publishers.acme/norms",
        "expected the name of one organisation",
        "ORG/NAME=true",
    ),
    "trust.repositories.acme=true": ("trust.repositories.acme", "expected organisation/name", "ORG/NAME=true"),
    "trust.publishers=[acme]": (
        "trust.publishers",
        "found a list, expected a map such as {acme: true}",
        "name each with true",
    ),
    "model.batch=0": ("model.batch", "found 0, expected at least 1", "write model.batch=1"),
    "model.batch=2.0": ("model.batch", "found 2.0, expected a whole number", "write model.batch=1"),
    "model.seed=1.5": ("model.seed", "found 1.5, expected a whole number", "write model.seed=0"),
    "model={factory: 'mine:make'}": ("model.factory", "expected python:package.module:function", "write python:"),
    "model.config._target_=os.system": ("model.config._target_", "never builds objects", 'write model="{factory'),
    "enabled=3": ("enabled", "found 3, expected true or false", "write enabled=false"),
    "kernels.X.revision=61e9540": (
        "kernels.X.revision",
        "61e9540 is a number (inf), expected a branch",
        "=\"'61e9540'\"",
    ),
    "kernels.defaults=[a]": ("kernels.defaults", "a defaults list belongs at the top of a file", "take it out"),
}


@pytest.mark.parametrize("typed", BAD_OVERRIDES)
def test_a_wrong_override_is_told_as_it_was_typed(typed: str) -> None:
    path, message, hint = BAD_OVERRIDES[typed]
    (issue,) = issues(typed)
    assert issue.path == path
    assert (issue.file, issue.line) == (f"override: {typed}", None)
    assert message in issue.message
    assert hint in (issue.hint or "")


def test_the_cure_for_a_number_that_should_be_text_is_accepted() -> None:
    (issue,) = issues("target.capability=9.0")
    assert issue.hint == "write target.capability=\"'9.0'\""
    assert issues("target.capability='9.0'") == []


@pytest.mark.parametrize("key", [1, True, None, 1.5, ("a", "b")])
def test_a_key_of_a_document_given_as_data_is_text(key: Any) -> None:
    issue, other = rows({"cuda": [{"kernel": "a/b:C", "when": {key: 1}}], "fallback": "eror"})
    assert other.path == "X.fallback"
    assert issue.path == f"X.cuda.0.when.{key}"
    assert issue.message == f"the key {key!r} is a {type(key).__name__}, expected text"


def test_faults_of_all_nodes_are_told_in_one_run() -> None:
    found = issues("target.flavour=x", "policy.strit=true", "kernels.X.cdua=1", "enabled=3", "model.batch=0")
    assert {issue.path for issue in found} == {
        "target.flavour", "policy.strit", "kernels.X.cdua", "enabled", "model.batch",
    }  # fmt: skip


def test_a_file_is_told_line_and_column_and_the_characters_in_it(tmp_path: Path) -> None:
    text = "X:\n  cuda: {kernel: a/b:C, revision: 61e9540}\n  cdua: d/e:F\nY: on\n"
    assert in_file(tmp_path, text) == [
        "/kernels/f.yaml:2:35: kernels.X.cuda.revision: 61e9540 is a number in YAML (inf), expected a branch, tag or "
        "commit as text -> write revision: '61e9540'",
        "/kernels/f.yaml:3:3: kernels.X.cdua: unknown key `cdua` -> did you mean cuda?",
        "/kernels/f.yaml:4:4: kernels.Y: on is a boolean in YAML, expected text, null, a map, or a list in order of "
        "preference -> name a kernel, as in Y: org/repo@v1:Name",
    ]


def test_keys_of_one_candidate_spelt_wrong_are_told_each(tmp_path: Path) -> None:
    assert in_file(tmp_path, "A: {repo: org/a, verison: 1, layer: A}\n") == [
        "/kernels/f.yaml:1:5: kernels.A.repo: unknown key `repo` -> did you mean kernel?",
        "/kernels/f.yaml:1:18: kernels.A.verison: unknown key `verison` -> did you mean version?",
        "/kernels/f.yaml:1:30: kernels.A.layer: unknown key `layer` -> known are any, cuda, rocm, xpu, mps, metal, "
        "npu, neuron, tpu, cpu, kernel, version, revision, capability, torch, dtype, when, trust_remote_code, match, "
        "exclude, fallback, inherit_mapping",
    ]


def test_every_device_of_one_name_stays_whatever_the_order(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    for order in (("cuda", "rocm", "cpu"), ("cpu", "rocm", "cuda")):
        text = "".join(f"  {device}: org/norm@v1:{device.title()}\n" for device in order)
        (tmp_path / "kernels/f.yaml").write_text(f"RMSNorm:\n{text}", encoding="utf-8")
        document, _ = compose(["kernels=f"], config_dir=tmp_path)
        assert set(document["kernels"]["RMSNorm"]) == {"cuda", "rocm", "cpu"}


def test_off_and_a_kernel_and_no_row_are_three_things(tmp_path: Path) -> None:
    assert in_file(tmp_path, "inherit_mapping: true\nSiLU: null\nGeLU: ''\nRMSNorm: org/norm@v1:A\n") == []


def test_a_file_that_cannot_be_read_is_told_like_any_other_fault(tmp_path: Path) -> None:
    (fault,) = in_file(tmp_path, "X: a\nX: b\n")
    assert "the key 'X' stands twice: lines 1 and 2" in fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernels/a.yaml", "X: 3\n"),
        ("policy/a.yaml", "verify: {on_fail: never}\n"),
        ("anywhere/config.yaml", "kernels: {X: 3}\n"),
        ("experiment/a.yaml", "# @package _global_\nkernels: {X: 3}\n"),
        ("anywhere/a.yaml", "# yaml-language-server: $schema=../schemas/trust.schema.json\npublishers: 3\n"),
        ("anywhere/plan.json", '{"schema": 1}'),
    ],
)
def test_a_file_is_checked_as_what_its_folder_its_name_or_its_modeline_says(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    found = check_file(file)
    assert found and all(issue.file == str(file) for issue in found)


def test_a_file_that_could_be_anything_is_refused_with_the_ways_to_say_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("X: a/b:C\n", encoding="utf-8")
    (issue,) = check_file(file)
    assert issue.message == "cannot tell which schema it follows"
    assert "kernels" in str(issue.hint)


def test_a_part_of_a_document_is_told_from_the_root() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({"X": 3}, "kernels", prefix=("kernels",))
    assert caught.value.issues[0].path == "kernels.X"


def test_five_thousand_rows_are_checked_in_seconds() -> None:
    row = {"cuda": ["a/b@v1:C", {"kernel": "c/d:E", "version": 2}], "rocm": {"inference": "a/b:C"}, "cpu": None}
    document = {f"L{number}": row for number in range(5000)}
    started = time.process_time()
    validate(document, "kernels")
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one_and_every_key_in_it_is_described(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    bare = [path for path, node in properties(schema(name), name) if not node.get("description") and "$ref" not in node]
    assert bare == []


def properties(node: Any, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(node, dict):
        closed = node.get("type") == "object" and "description" in node
        for key, child in (node.get("properties") or {}).items() if closed else ():
            found.append((f"{path}.{key}", child))
        for key, child in node.items():
            found += properties(child, f"{path}.{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            found += properties(child, f"{path}.{index}")
    return found


@pytest.mark.parametrize("name", names())
def test_no_schema_holds_a_default_value(name: str) -> None:
    assert '"default":' not in (schemas() / f"{name}.schema.json").read_text(encoding="utf-8")


def test_the_schemas_words_are_those_of_the_code() -> None:
    row = schema("kernels")["$defs"]["row_map"]["properties"]
    candidate = schema("kernels")["$defs"]["candidate"]["properties"]
    aliases = {alias for device in DEVICES.values() for alias in device.aliases}
    others = {"match", "exclude", "fallback", "inherit_mapping", "any"}
    assert set(row) - set(candidate) - others == {*DEVICES, *aliases}
    assert set(schema("target")["properties"]["device"]["enum"]) == {"auto", *DEVICES, *aliases}
    assert set(schema("plan")["$defs"]["target"]["properties"]["device"]["enum"]) == set(DEVICES)
    assert schema("kernels")["$defs"]["device_map"]["then"]["propertyNames"]["enum"] == [*Mode]
    assert list(schema("plan")["$defs"]["target"]["properties"]) == list(Target.__dataclass_fields__)
    assert {*schema("target")["properties"]} == {*Target.__dataclass_fields__, "name", "defaults"}
    assert schema("plan")["properties"]["schema"]["const"] == SCHEMA
    assert {*schema("experiment")["properties"]} == {*NODES, "hydra", "defaults"} - {"experiment"}


@pytest.mark.parametrize("node", ["kernels", "fusions", "attention"])
def test_a_value_deep_in_a_condition_is_checked_in_every_node_of_rows(node: str) -> None:
    members = {"members": [["N", "a.n"]]} if node == "fusions" else {}
    row = {"kernel": "a/b:C", "when": {"config": {"act": [[1]]}}, **members}
    with pytest.raises(ConfigError) as caught:
        validate({"X": row}, node)
    (issue,) = caught.value.issues
    assert (issue.path, issue.message) == ("X.when.config.act.0", "found a list, expected single values in the list")
