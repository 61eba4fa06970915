"""Everything about a model that applying kernels could touch, as one value that can be compared.

Objects stand there by identity, containers by their content in order: two snapshots are equal if the model is the same
in every attribute, child, hook and class attribute, and the process in its modules and transformers' registries.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_REGISTRIES = (
    ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
    ("transformers.activations", "ACT2FN"),
)


def snapshot(model: nn.Module) -> dict[str, Any]:
    modules = dict(model.named_modules(remove_duplicate=False))
    classes = {base for module in modules.values() for base in type(module).__mro__ if base is not object}
    return {
        "modules": {path: (id(module), type(module), _entries(vars(module))) for path, module in modules.items()},
        "tensors": {name: (id(value), value._version) for name, value in _tensors(model)},
        "classes": {cls: _entries(vars(cls)) for cls in classes},
        "configs": {path: _config(module) for path, module in modules.items()},
        "registries": [_registry(module, name) for module, name in _REGISTRIES],
        "imports": set(sys.modules),
    }


_PLAIN = frozenset({type(None), bool, int, float, str})


def _entries(entries: Any) -> list[tuple[str, Any]]:
    return [(key, _value(value, 0)) for key, value in entries.items()]


def _value(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:  # first, since half of all is such
        return value
    if kind is types.MethodType:
        return "method", id(value.__self__), id(value.__func__)
    if kind is types.FunctionType:
        cells = value.__closure__ or ()
        return id(value), [_cell(cell, depth) for cell in cells], _value(value.__defaults__, depth)
    if kind is not dict and isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values(), *vars(value).values())
        return id(value), [_value(part, depth + 1) for part in parts] if depth < 4 else None
    if isinstance(value, dict) and depth < 3:
        return id(value), [(key, _value(entry, depth + 1)) for key, entry in value.items()]
    if isinstance(value, list | tuple | set) and depth < 3:
        return type(value), [_value(entry, depth + 1) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return id(value)


def _cell(cell: types.CellType, depth: int) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:
        return None
    return _value(value, depth + 1) if depth < 4 else id(value)


def _tensors(model: nn.Module) -> list[tuple[str, Any]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _config(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return None if config is None else (id(config), repr(getattr(config, "__dict__", config)))


def _registry(module: str, name: str) -> Any:
    found = getattr(sys.modules.get(module), name, None)
    if found is None:
        return None
    return id(found), [(key, id(found[key])) if name != "ACT2FN" else key for key in found]
