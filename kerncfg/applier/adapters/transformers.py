"""The names that transformers' decorators give to layers, read from the model's source.

Without a fitting `kernels` package these decorators leave no trace on the class, so the source of the module that
defines it is parsed. Decorators are told by what their name means in that module, never by how it is spelled there.
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kerncfg.applier.adapters.torch import TorchAdapter

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TransformersAdapter"]

_HOME = "transformers.integrations.hub_kernels"
_DECORATORS = ("use_kernel_forward_from_hub", "use_kernel_func_from_hub")

# One class statement: its lines, and the name it is registered under.
_Statement = tuple[range, str | None]

_lock = threading.Lock()
_names: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()
_statements: dict[str, tuple[str, dict[str, list[_Statement]]]] = {}


class TransformersAdapter(TorchAdapter):
    """Knows models in a process that has imported transformers' decorators: nothing else can carry them."""

    def handles(self, model: nn.Module) -> bool:
        """Without the module of the decorators no class can have been decorated."""
        return _HOME in sys.modules

    def registered(self, cls: type) -> str | None:
        """Return the name set on the class if there is one, else the one in its source."""
        return super().registered(cls) or _from_source(cls)


def _from_source(cls: type) -> str | None:
    """Return the name in the decorators of a class; classes without source have none."""
    with _lock:
        if cls not in _names:
            module = sys.modules.get(cls.__module__)
            _names[cls] = _read(cls, module) if module is not None and _may_decorate(module) else None
        return _names[cls]


def _may_decorate(module: ModuleType) -> bool:
    """Whether a module can reach the decorators at all; parsing the others would be wasted time."""
    return any(
        _is_decorator(value) or (isinstance(value, ModuleType) and _is_near(value))
        for value in list(vars(module).values())
    )


def _is_near(module: ModuleType) -> bool:
    found = vars(module)
    return module.__name__.partition(".")[0] == "transformers" or any(
        _is_decorator(found.get(name)) for name in _DECORATORS
    )


def _is_decorator(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__module__ == _HOME and value.__qualname__ in _DECORATORS


def _read(cls: type, module: ModuleType) -> str | None:
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):  # typed in, executed from text, or its file is gone
        return None
    known = _statements.get(module.__name__)
    if known is None or known[0] != source:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return None
        known = _statements[module.__name__] = source, _classes(tree, module)
    found = known[1].get(cls.__qualname__, [])
    if len(found) > 1:  # defined twice, as in the branches of an `if`: the one whose lines hold its functions
        lines = {value.__code__.co_firstlineno for value in vars(cls).values() if isinstance(value, FunctionType)}
        found = [statement for statement in found if lines.intersection(statement[0])] or found
    return found[-1][1] if found else None


def _classes(tree: ast.Module, module: ModuleType) -> dict[str, list[_Statement]]:
    classes: dict[str, list[_Statement]] = {}
    for qualname, node in _walk(tree, ""):
        names = [name for decorator in node.decorator_list if (name := _name(decorator, module))]
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        # Decorators run from the last to the first, and each writes over the one before.
        classes.setdefault(qualname, []).append((lines, names[0] if names else None))
    return classes


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class statement with the qualified name its class gets."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _walk(child, prefix)


def _name(decorator: ast.expr, module: ModuleType) -> str | None:
    """Return the name that a decorator registers, or `None` if it is another decorator."""
    if not isinstance(decorator, ast.Call) or not _is_decorator(_meaning(decorator.func, module)):
        return None
    arguments = [*decorator.args, *(keyword.value for keyword in decorator.keywords if keyword.arg == "layer_name")]
    argument = arguments[0] if arguments else None
    value = argument.value if isinstance(argument, ast.Constant) else _meaning(argument, module)
    return value if isinstance(value, str) else None


def _meaning(node: ast.expr | None, module: ModuleType) -> Any:
    """Return what a dotted name stands for in a module, without running anything that is not imported yet."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _meaning(node.value, module)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None
