"""Functions that a forward calls by name, and the same forward made to call others.

A function looks its names up in the module it was written in. A copy of it with a copy of that module's names, one of
them changed, calls something else, and nobody but the copy's caller notices. A decorator holds the forward in a
closure: such functions on the way are copied too, with one cell changed.

The copy has the module's names as they were when it was made: it does not see what is set there later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from opcode import opmap
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["as_function", "called", "obstacle", "rebuilt"]

_LOAD_GLOBAL = opmap["LOAD_GLOBAL"]
_SETS_GLOBAL = (opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"])
_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_DEPTH = 8  # decorators around a forward; in transformers 5.24 there are at most 3


def called(forward: Any) -> dict[str, Callable[..., Any]]:
    """Return what a forward calls by name, under the names that it has for them; classes do not count."""
    found: dict[str, Callable[..., Any]] = {}
    for function in _functions(forward):
        for name in _called(function.__code__):
            value = function.__globals__.get(name)
            if callable(value) and not isinstance(value, type):
                found.setdefault(name, value)
    return found


def rebuilt(forward: Any, replaced: Mapping[str, Callable[..., Any]]) -> FunctionType:
    """Return a copy of a forward that calls other functions under some of its names.

    Raises:
        LookupError: The forward does not call by one of these names.
    """
    calls = called(forward)
    if missing := [name for name in replaced if name not in calls]:
        raise LookupError(f"{getattr(forward, '__qualname__', forward)} calls no {', '.join(missing)}")
    made = _copy(forward, {name: (calls[name], new) for name, new in replaced.items()}, 0)
    assert made is not None  # what calls by a name has it
    return made


def obstacle(forward: Any, name: str) -> str | None:
    """Say what keeps a forward from being copied: it shares a name with others that one of them sets."""
    for function in _functions(forward):
        if name in _called(function.__code__):
            names = _names(function.__code__)
            if "__name__" in names:
                return "it reads __name__, which its copy has not"
            shared = names & _set_by(function.__globals__)
            if shared:
                text = ", ".join(sorted(shared))
                return (
                    f"its module's functions share the global {text}, which one of them sets: a copy would not see it"
                )
    return None


@cache  # one object a kernel, since torch.compile tells forwards apart by what they call
def as_function(code: Any) -> Callable[..., Any]:
    """Return a kernel as what a forward calls: a function as it is, a class by the forward of an instance."""
    if not isinstance(code, type):
        function: Callable[..., Any] = code
        return function
    return MethodType(code.forward, code())  # type: ignore[attr-defined]


def _functions(forward: Any) -> Iterator[FunctionType]:
    """Yield a forward, and the functions in the closures around it."""
    left, seen = [(forward, 0)], set()
    while left:
        function, depth = left.pop()
        if isinstance(function, FunctionType) and id(function) not in seen and depth <= _DEPTH:
            seen.add(id(function))
            yield function
            left += [(value, depth + 1) for value in map(_content, function.__closure__ or ())]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _copy(
    function: FunctionType, replaced: Mapping[str, tuple[Any, Callable[..., Any]]], depth: int
) -> FunctionType | None:
    """Return a function that calls other functions, or `None` if neither it nor what it wraps calls one of these."""
    own = _called(function.__code__)
    values = {
        name: new for name, (old, new) in replaced.items() if name in own and function.__globals__.get(name) is old
    }
    cells = tuple(_cell(cell, replaced, depth) for cell in function.__closure__ or ())
    if not values and all(map(_same, cells, function.__closure__ or ())):
        return None
    names = function.__globals__
    if values:
        # With a name torch.compile would look for these globals in the module of that name, and find the original.
        names = {name: value for name, value in {**names, **values}.items() if name != "__name__"}
    code = function.__code__.replace()  # another object, since torch.compile tells functions apart by that
    made = FunctionType(code, names, function.__name__, function.__defaults__, cells or None)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made.__dict__.update(function.__dict__)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        if cell is not old and made.__dict__.get("__wrapped__") is old.cell_contents:
            made.__dict__["__wrapped__"] = cell.cell_contents
    return made


def _cell(cell: CellType, replaced: Mapping[str, tuple[Any, Callable[..., Any]]], depth: int) -> CellType:
    value = _content(cell)
    made = _copy(value, replaced, depth + 1) if isinstance(value, FunctionType) and depth < _DEPTH else None
    return cell if made is None else CellType(made)


def _same(cell: CellType, other: CellType) -> bool:
    return cell is other


@cache
def _called(code: CodeType) -> Mapping[str, None]:
    """Return the global names that code calls, in its order, and then those of functions and comprehensions in it."""
    found = {code.co_names[argument >> 1]: None for argument in _loads(code) if argument & 1}  # the bit: to be called
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        found |= _called(inner)
    return found


def _loads(code: CodeType) -> Iterator[int]:
    """Yield the argument of every LOAD_GLOBAL; reading the bytes takes a tenth of what `dis` does."""
    argument = 0
    text = code.co_code
    for operation, low in zip(text[::2], text[1::2], strict=True):
        argument = argument << 8 | low
        if operation == _EXTENDED_ARG:
            continue
        if operation == _LOAD_GLOBAL:
            yield argument
        argument = 0


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {code.co_names[argument >> 1] for argument in _loads(code)}.union(*map(_names, inner))


def _set_by(names: Mapping[str, Any]) -> set[str]:
    """Return the globals that functions of a module, or methods of its classes, set."""
    found: set[str] = set()
    for value in list(names.values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            if type(member) is FunctionType and not member.__closure__:
                within: Iterable[FunctionType] = (member,)
            else:
                within = _functions(getattr(member, "__func__", None) or getattr(member, "fget", None) or member)
            for inner in within:
                if inner.__globals__ is names:
                    found |= _sets(inner.__code__)
    return found


@cache
def _sets(code: CodeType) -> frozenset[str]:
    operations = code.co_code[::2]
    found: set[str] = set()
    if any(operation in operations for operation in _SETS_GLOBAL):
        argument = 0
        for operation, low in zip(operations, code.co_code[1::2], strict=True):
            argument = argument << 8 | low
            if operation in _SETS_GLOBAL:
                found.add(code.co_names[argument])
            argument = argument if operation == _EXTENDED_ARG else 0
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(found).union(*map(_sets, inner))
