"""Documents and command lines with something wrong in them, drawn from a seed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from random import Random
from typing import Any

# What people and programs leave where something else is due.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 3.0,
    10**400, 1.10, math.inf, -math.inf, math.nan, "", " ", "???", "on", "0123456", "3",
    "original", "inherited", "any", "a/b:C", "a/b@v1:C", "a/b@>=1,<2:C", "a/b@:C", "a/../b:C", "a/b:C:D", ":", "@",
    "/",
    "https://h/a/b", "~/x:Y", "~nobody-here/x:Y", "./x:Y", "../x:Y", "C:\\x:Y", "\\\\host\\x:Y", "python:a.b:C",
    "python:",
    "builtin:RMSNorm", "builtin:", ">=2.0", ">=", "==", "~=1", "<9.0", ">=1" + "0" * 5000, "${a.b}", "${", "\x00",
    "\ud800",
    "\u202e", "é", "a" * 10_000, "*", "**", "[", "cuda", "error", "original ", [], {}, [[]], [{}],
    {"kernel": "a/b:C"},
    {"kernel": None, "version": 3}, {"kernel": "inherited", "dtype": "float32"}, {"version": ">=1"},
    {"inference": "a/b:C"},
    {"_target_": "os.system"}, {"when": {"a": {"b": [1, None]}, "a.b": 2}}, ["a/b:C", "inherited", None], b"bytes",
    (1, 2),
    {1: 2}, {None: 1}, {True: "a/b:C"}, object, {"a"},
)  # fmt: skip
# What is right in some places, so that many documents come as far as a plan.
RIGHT: tuple[Any, ...] = (
    None, True, False, 3, "", "original", "inherited", "a/b:C", "a/b@v1:C", "kernels-community/a@>=1,<2:C", "/x:Y",
    ">=2.0",
    "builtin:RMSNorm", "float32", "error", "main", {"kernel": "a/b:C"}, {"inference": "a/b:C"}, ["a/b:C",
    "inherited", None],
    {"kernel": "~nobody-here/x:Y"}, "a/b", ["*"], {"class": "*"}, {"kernel": "a/b@v1:C", "version": 3},
    {"a": {"b": [1]}},
    "sdpa", "flash_attention_2", "a/b@v1", "python:a.b", ["flash_attention_4", "eager"], [["N", "a.n"], ["M", "a.m"]],
    {"kernel": "sdpa", "mask": "sdpa"}, {"members": [["N", "a.*.n"]], "kernel": "a/b:C"}, "auto",
)  # fmt: skip
KEYS: tuple[Any, ...] = (
    "", "any", "cuda", "CUDA", "gpu", "metal", "mps", "cpu", "kernel", "kernle", "version", "revision", "capability",
    "torch", "dtype", "when", "match", "class", "path", "function", "exclude", "fallback", "inherit_mapping",
    "inherited",
    "members", "mask", "fusions", "attention", "default",
    "training", "inference", "trust_remote_code", "publishers", "defaults", "_target_", "a.b", "*", "1", 1, 1.5,
    True, None,
    "é", "\x00", "a" * 1000, "acme/norms", ("a", "b"),
)  # fmt: skip

LETTERS = "abXY019_-.:/\\@~+*?!<>=,;#%&|$'\"()[]{} \t\n\x00é\u202e"
SCRAPS = (
    ">=2.0,<3.0", "@", ":Name", "${", "${a}", "null", "???", "true", "on", "0123456", "choice(", "range(1,3)",
    "glob(*)",
    "interval(0,1)", "sort(", "extend_list(a)", "++", "~", "kernels", "inherited", "=", "={", "}", "[]", ",", "..",
    "hydra.",
    "hydra.searchpath=[", "file:///nowhere", "pkg://a.b", "@inherited", "'", '"', "\\'", "experiment", "_target_",
    "!!int ",
)  # fmt: skip
WORDS = (
    "kernels=bundled", "kernels=[bundled,liger]", "kernels@inherited=none", "inherited=none",
    "experiment=cpu_bundled",
    "target=h100", "policy=strict", "model=llama", "~kernels.RMSNorm", "~experiment", "kernels.RMSNorm=null",
    "kernels.RMSNorm.cuda=org/a@>=2.0,<3.0:X", "kernels.RMSNorm.cuda={kernel: org/a:X, version: 3}", "enabled=false",
    "kernels.RMSNorm.cuda=[org/a:X, {kernel: org/b:Y, dtype: bfloat16}, inherited]",
    "kernels.RMSNorm.cuda.1.version=2",
    "kernels.X.cpu.inference=builtin:RMSNorm", "kernels.X.match.path='model.**.norm'", "kernels.X.exclude=[a.*]",
    "kernels={X: {cuda: org/a:X}}", "+kernels.X.fallback=error", "trust.repositories.acme/norms=true",
    "trust.publishers.acme=true", "policy.strict=true", "policy.verify.on_fail=error", "target.capability='9.0'",
    "model.config.num_hidden_layers=2", "model={factory: 'python:a.b:c'}", "hydra.run.dir=x",
    "kernels.X=${kernels.Y}",
    "attention=flash_attention_2", "attention.default=sdpa",
    "attention.a={path: 'm.**', kernel: a/b@>=1,<2, mask: sdpa}",
    "attention.default.mask=eager", "~attention.default", "attention.a=[a/b@v1, flash_attention_3]", "fusions=none",
    "fusions.f={members: [[N, a.n], [M, a.m]], kernel: a/b:C}", "fusions.f.members=[[N, a.*.n]]", "~fusions.f",
    "fusions.f.cuda=a/b@v1:C", "fusions={f: null}",
    "inherited.X.rocm=~/dir:Name", "policy.verify.thresholds.float32.slack=4.0", "kernels=bundled,liger",
)  # fmt: skip


def mutated(document: dict[str, Any], draw: Random) -> dict[str, Any]:
    """Return a copy of a document with one to four faults, or changes that are none."""
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 1, 2, 3))):
        holders = list(_holders(made))
        node = made.get(draw.choice(("kernels", "kernels", "fusions", "attention")))
        if draw.random() < 0.7 and isinstance(node, dict):
            holders = list(_holders(node))
        holder = draw.choice(holders)
        if isinstance(holder, list):
            _change_list(holder, draw, holders)
        else:
            _change_map(holder, draw, holders)
    return made


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from _holders(child)


def _any(draw: Random, holders: list[Any]) -> Any:
    return copy.deepcopy(draw.choice(draw.choice((VALUES, RIGHT, RIGHT, holders))))


def _change_list(holder: list[Any], draw: Random, holders: list[Any]) -> None:
    if holder and draw.random() < 0.6:
        holder[draw.randrange(len(holder))] = _any(draw, holders)
    else:
        holder.insert(draw.randint(0, len(holder)), _any(draw, holders))


def _change_map(holder: dict[Any, Any], draw: Random, holders: list[Any]) -> None:
    how, key = draw.random(), draw.choice(list(holder)) if holder else None
    if key is None or how < 0.25:
        named = [name for name in KEYS if isinstance(name, str)]
        holder[draw.choice(draw.choice((KEYS, named, named)))] = _any(draw, holders)
    elif how < 0.65:
        holder[key] = _any(draw, holders)
    elif how < 0.75:
        del holder[key]
    elif how < 0.85 and isinstance(key, str) and key:
        at = draw.randrange(len(key))
        holder[key[:at] + draw.choice(LETTERS) + key[at + draw.randint(0, 1) :]] = holder.pop(key)
    else:
        holder[key] = [holder[key]] if draw.random() < 0.5 else {draw.choice(KEYS): holder[key]}


def command_line(draw: Random) -> list[str]:
    """Return one to four words, each an override with some characters changed."""
    return [_word(draw) for _ in range(draw.choice((1, 2, 3, 4)))]


def _word(draw: Random) -> str:
    word = draw.choice(WORDS)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        at = draw.randint(0, len(word))
        new = draw.choice((draw.choice(LETTERS), draw.choice(LETTERS), draw.choice(SCRAPS), ""))
        word = word[:at] + new + word[at + draw.choice((0, 0, 1, 3)) :]
    if draw.random() < 0.15:
        other = draw.choice(WORDS)
        word = word[: draw.randint(0, len(word))] + other[draw.randint(0, len(other)) :]
    return word
