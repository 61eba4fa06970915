"""What a forward does with the attributes of its module, as far as its bytecode shows: reads them, or sets them."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Attributes", "attributes"]

_METHOD_FLAG = sys.version_info >= (3, 12)  # since then LOAD_ATTR says in its lowest bit that a call follows
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_WRITES = ("STORE_ATTR", "DELETE_ATTR")
_SETTERS = {"setattr", "delattr", "vars", "__setattr__", "__delattr__"}
_CHANGES = {
    "__dict__",
    "__setattr__",
    "__delattr__",
    "add_module",
    "eval",
    "load_state_dict",
    "requires_grad_",
    "train",
}


@dataclass(slots=True, eq=False)
class Attributes:
    """The attributes that a forward reads of its module, those that it does not just call, and those that it sets.

    The second kind, the `parts`, stand there with what is read of them in turn: `mlp`, `mlp.up.weight`.
    A name that also stands there as text is not among the reads: it is asked for with `hasattr` or `getattr` first.
    All are for reading: who asks again gets the same.
    """

    reads: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)


def attributes(forward: Callable[..., Any]) -> Attributes:
    """Look through a forward and the functions within it; what is no Python function shows nothing."""
    function = inspect.unwrap(forward)
    found = Attributes()
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return found
    known = _known.get(function)
    if known is not None and known[0] is function.__code__:
        return known[1]
    owner = function.__code__.co_varnames[0]
    texts: set[Any] = set()
    for code in _codes(function.__code__, owner):
        texts.update(constant for constant in code.co_consts if isinstance(constant, str))
        _look(code, owner, found)
    found.reads -= texts
    _known[function] = function.__code__, found
    return found


# To disassemble a forward takes a millisecond, and each mode and class of layers asks. Its code may be exchanged.
_known: WeakKeyDictionary[FunctionType, tuple[CodeType, Attributes]] = WeakKeyDictionary()


def _look(code: CodeType, owner: str, found: Attributes) -> None:
    """Note what one piece of code does: each step with what the steps before it left on the stack."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "NOP")]
    chain = ""  # what of the module the last step left on the stack
    for before, last, step in zip([None, None, *steps], [None, *steps], steps, strict=False):
        # `self.x += 1` loads self and copies it, to read x and then to set it.
        chain = _longer(chain, step, last is not None and _loads(last, owner))
        if chain:
            found.parts.add(chain)
        on_copy = before is not None and last is not None and _copies(last) and _loads(before, owner)
        if on_copy and step.opname in _READS and _is_set_later(steps, step):
            found.sets.add(step.argval)
        elif last is not None and _loads(last, owner):
            _use(step, before, found)


def _use(step: dis.Instruction, before: dis.Instruction | None, found: Attributes) -> None:
    """Note what a step does with the module, which was loaded just before."""
    name = step.argval
    if step.opname in _WRITES:
        found.sets.add(name)
    elif step.opname in _READS:
        found.reads.add(name)
        if name in _CHANGES or name.startswith("register_"):
            found.sets.add(name)
    elif before is not None and before.opname in ("LOAD_GLOBAL", *_READS) and before.argval in _SETTERS:
        named = step.opname == "LOAD_CONST" and isinstance(name, str)
        found.sets.add(name if named else before.argval)


def _longer(chain: str, step: dis.Instruction, begins: bool) -> str:
    """Return the attributes that lead from the module to what a step leaves; none where it leaves something else."""
    if step.opname != "LOAD_ATTR" or (_METHOD_FLAG and (step.arg or 0) & 1) or not (chain or begins):
        return ""
    return str(step.argval) if begins else f"{chain}.{step.argval}"


def _copies(step: dis.Instruction) -> bool:
    return step.opname in ("COPY", "DUP_TOP")


def _is_set_later(steps: list[dis.Instruction], read: dis.Instruction) -> bool:
    return any(
        step.opname == "STORE_ATTR" and step.argval == read.argval and step.offset > read.offset for step in steps
    )


def _codes(code: CodeType, owner: str) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions and comprehensions in it that see its first argument."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and owner in constant.co_freevars:
            yield from _codes(constant, owner)


def _loads(step: dis.Instruction, owner: str) -> bool:
    if not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False
    return step.argval == owner or (isinstance(step.argval, tuple) and step.argval[-1] == owner)
