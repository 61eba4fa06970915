"""Every message has an anchor, every anchor a section, and each of its messages stands there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from kerncfg import errors
from kerncfg.anchors import ANCHORS, PAGE, anchor_of
from kerncfg.cli import main

CHECKOUT = Path(__file__).parent.parent
PACKAGE = CHECKOUT / "kerncfg"
GOLDEN: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / "tests/data/errors.yaml").read_text("utf-8"))

_HOLE = "…"
_FILLED = "(X)"  # what stands there may begin and end with anything
_CLASSES = {name for name in errors.__all__ if name.endswith("Error")} | {"_NoSource", "Unfit", "HubFault"}
_KEYWORDS = {"Issue": "message", "Pin": "reason", "Verdict": "reason", "Choice": "reason", "Fit": "fault"}
_KEYWORDS |= {"Form": "fault"}
_KEYWORDS |= {"replace": "fault"}  # of a build
_KEYWORDS |= {"Timing": "reason", "Difference": "reasons", "Verification": "notes", "Measurement": "notes"}
# What is called with a message, and at which place; what is called by another name takes none.
_CALLS = {"issue": 1, "fault": 1, "located": 1, "_rejection": 1, "_original": 0, "_keep": 0, "_issue": 0, "warn": 0}
# The same where a module means something else by the name.
_LOCAL = {
    ("compiler.reading", "fault"): 2,
    ("compiler.overrides", "_refused"): 1,
    ("documents.reference", "_refused"): 1,
    ("models", "_refused"): 0,
    ("compiler.normalise", "append"): 0,
    ("applier.decide", "append"): 0,
    ("applier.findings", "append"): 0,
    ("evidence.judge", "append"): 0,
    ("evidence.trial", "append"): 0,
}
# Rooms whose functions return why not, or `None`, and functions in them that return a part of a message.
_REASONS: tuple[str, ...] = (
    "applier",
    "evidence",
    "sources",
    "compiler.policy",
    "compiler.resolve",
    "compiler.interpolate",
)
_REASONS += ("documents.variant", "documents.metadata")
_PARTS = {
    "__repr__",
    "__str__",
    "_advice",
    "_times",
    "_wrong",
    "asker",
    "sent",
    "words_of",
    "_elsewhere",
    "_spelled",
    "_said",
    "_said_at",
    "_text",
    "text",
    "rates",
    "_rates",
    "_near",
    "_device",
}
# What is no message, or where the hole is what tells it.
_NO_SENTENCES = {"…: …: …, and … more faults", ", said at …", "…: no …", "… and … more"}
# Messages that are put together from words that stand apart in the code.
_ELSEWHERE = {"… is no int", "… is no float", "no …/__init__.py", "… leads nowhere: there is no …"}
_SAID = {"str", "str | None", "_Option | str | None", "Kernel | str", "list[str]", "tuple[str, ...]", "Verdict | None"}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _values(node: ast.expr, function: ast.AST, deep: int = 0) -> Iterator[str]:
    """Every text that an expression may stand for, with holes; names stand for what is assigned to them."""
    if isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    elif isinstance(node, ast.JoinedStr):
        yield from map("".join, product(*(_part(part, function, deep) for part in node.values)))
    elif isinstance(node, ast.IfExp):
        yield from (*_values(node.body, function, deep), *_values(node.orelse, function, deep))
    elif isinstance(node, ast.Tuple | ast.List):
        yield from (text for value in node.elts for text in _values(value, function, deep))
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield from _values(node.elt, function, deep)
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in _values(value, function, deep))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        lefts = list(_values(node.left, function, deep)) or [_HOLE]
        rights = list(_values(node.right, function, deep)) or [_HOLE]
        yield from (left + right for left in lefts for right in rights)
    elif isinstance(node, ast.Name) and deep < 3:
        yield from (text for value in _assigned(node.id, function) for text in _values(value, function, deep + 1))


def _part(node: ast.expr, function: ast.AST, deep: int) -> list[str]:
    """What one part of an f-string may stand for: a name may be a sentence that was put together above."""
    if isinstance(node, ast.FormattedValue):
        return list(_values(node.value, function, deep + 1) if isinstance(node.value, ast.Name) else ()) or [_HOLE]
    return list(_values(node, function, deep))


def _assigned(name: str, function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += zip(target.elts, node.value.elts, strict=True) if both else [(target, node.value)]  # type: ignore[attr-defined]
        yield from (value for target, value in pairs if isinstance(target, ast.Name) and target.id == name)


def _called(node: ast.Call, module: str) -> Iterator[ast.expr]:
    """The message among the arguments of a call, if it takes one."""
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in _KEYWORDS:
        yield from (keyword.value for keyword in node.keywords if keyword.arg == _KEYWORDS[name])
    place = 0 if name in _CLASSES else _LOCAL.get((module, name), _CALLS.get(name))
    if place is not None and len(node.args) > place:
        yield node.args[place]


def _functions(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Every function with what is in it, and the module with what is outside of all."""
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    yield from ((function, list(ast.walk(function))) for function in inner)
    within = {id(node) for function in inner for node in ast.walk(function)}
    yield tree, [node for node in ast.walk(tree) if id(node) not in within]


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    module = _name(path)
    reasons = any(module == room or module.startswith(f"{room}.") for room in _REASONS)
    tree = ast.parse(path.read_text("utf-8"))
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function, nodes in _functions(tree):
        returns = isinstance(function, ast.FunctionDef) and function.returns and ast.unparse(function.returns)
        for node in nodes:
            found: list[ast.expr] = []
            if isinstance(node, ast.Call):
                found += _called(node, module)
            elif isinstance(node, ast.Return) and node.value and reasons and returns in _SAID:
                found += [] if getattr(function, "name", "") in _PARTS else [node.value]
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") in ("fault", "reference"):
                found.append(node.value)
            for value in found:
                scope = tree if isinstance(value, ast.Name) and value.id in constants else function
                yield from ((value.lineno, text) for text in _values(value, scope))


_ROOMS = [path for path in sorted(PACKAGE.rglob("*.py")) if "kernels" not in path.relative_to(PACKAGE).parts]
_FOUND = [(path, line, text) for path in _ROOMS for line, text in dict.fromkeys(_messages(path))]
MESSAGES = [
    pytest.param(text, id=f"{_name(path)}:{line}: {text}"[:90])
    for path, line, text in _FOUND
    if text not in _NO_SENTENCES and "<" not in text.replace("`<<`", "") and len(re.findall(r"[a-z]{2,}", text)) > 1
]


@pytest.mark.parametrize("text", MESSAGES)
def test_every_message_of_the_package_has_an_anchor(text: str) -> None:
    assert anchor_of(text.replace(_HOLE, _FILLED)) is not None


@pytest.mark.parametrize("case", GOLDEN, ids=[case["case"] for case in GOLDEN])
def test_every_golden_error_has_an_anchor(case: dict[str, Any]) -> None:
    faults = re.split(r"\n(?! )", case["says"])
    assert all(anchor_of(fault.partition("\n")[0]) for fault in faults)


def test_every_anchor_has_a_section_and_every_section_an_anchor() -> None:
    headings = re.findall(r"^### (.*)$", (CHECKOUT / PAGE).read_text("utf-8"), re.M)
    assert sorted(heading.lower().replace(" ", "-") for heading in headings) == sorted(ANCHORS)


def test_every_message_of_the_table_leads_to_its_own_section() -> None:
    wrong = {
        message: anchor_of(message.replace(_HOLE, _FILLED))
        for anchor, messages in ANCHORS.items()
        for message in messages
        if anchor_of(message.replace(_HOLE, _FILLED)) != anchor
    }
    assert wrong == {}


def test_every_message_of_the_table_is_one_of_the_package() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in _ROOMS if not _name(path).startswith("anchors")]
    texts = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    said = "\n".join(text for text in texts if isinstance(text, str))
    table = {message for messages in ANCHORS.values() for message in messages}
    gone = {message for message in table if max(message.split(_HOLE), key=len) not in said and not _seen(message)}
    assert gone - _ELSEWHERE == set()


def _seen(message: str) -> bool:
    pattern = ".*".join(map(re.escape, message.strip(_HOLE).split(_HOLE)))
    return any(re.search(pattern, text.replace(_HOLE, _FILLED)) for _, _, text in _FOUND)


def test_a_message_inside_another_leads_to_the_section_of_the_inner_one() -> None:
    assert anchor_of("kernels.X: no kernel for cpu: a/b:C: publisher a is not trusted: set …") == "untrusted-publisher"
    assert anchor_of("no build fits: torch-cuda: needs torch 2.9, the target has 2.8") == "no-build-fits"


def test_the_command_line_names_the_section_of_each_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "kernels.RMSNorm.cdua=a/b:C", "kernels.X.dtype=foo"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[2] == f"  see: {PAGE}#unknown-key"
    assert lines[5] == f"  see: {PAGE}#another-value"


def test_validate_does_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "kernels.RMSNorm.cdua=a/b:C"]) == 1
    assert capsys.readouterr().err.endswith(f"\n  see: {PAGE}#unknown-key\n")


def test_an_error_of_several_reasons_names_the_section_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inherited=none", "target=cpu", "policy.fallback=error"]
    assert main(["plan", *words, "kernels.A.cpu=acme/a:A", "kernels.B.cuda=builtin:RMSNorm"]) == 1
    expected = f"  see: {PAGE}#untrusted-publisher\n  see: {PAGE}#fallback\n"
    assert capsys.readouterr().err.endswith(expected)


def test_explain_names_the_section_of_each_reason_against(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "A", "inherited=none", "target=cpu", "kernels.A.cpu=acme/a:A"]) == 0
    expected = f"\n\nsee: {PAGE}#fallback\nsee: {PAGE}#untrusted-publisher\n"
    assert capsys.readouterr().out.endswith(expected)


def test_explain_names_no_section_where_nothing_speaks_against(capsys: pytest.CaptureFixture[str]) -> None:
    row = ["kernels.A.cpu=builtin:RMSNorm", "kernels.A.fallback=error"]
    assert main(["explain", "A", "inherited=none", "target=cpu", *row]) == 0
    assert "see:" not in capsys.readouterr().out


def test_words_that_are_no_message_have_no_anchor() -> None:
    assert anchor_of("hello") is None


def test_enough_messages_are_found_to_say_that_all_are() -> None:
    assert len(MESSAGES) > 200
