"""The parts of a transformers model that have attention, and what their classes do with the choice of it.

A part is what makes the masks for its attention: the model inside which all is computed with one configuration. Whether
a class reads the choice at every call, or copied it when it was built, is read from its source. Nothing here imports
transformers: without it in the process no model can have such a part.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import getsource
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from kerncfg.applier.adapters.attention_source import SETTING, Reading, reading
from kerncfg.applier.adapters.torch import walk

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BUILT_IN", "Part", "Place", "Registries", "is_config", "parts"]

# The names of transformers' own, each with the masks it can work with, the best first.
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "sdpa": ("sdpa", "eager"),
    "eager": ("eager",),
    "flex_attention": ("flex_attention",),
    "flash_attention_2": ("flash_attention_2",),
    "flash_attention_3": ("flash_attention_2",),
    "flash_attention_4": ("flash_attention_2",),
}

_no_choice: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """transformers' two registries, of attention and of mask functions, as the dictionaries that they are."""

    functions: dict[str, Any]
    masks: dict[str, Any]
    model: type
    config: type

    @classmethod
    def find(cls) -> Self | None:
        """Return those of the transformers in this process; `None` without one, or where it keeps them otherwise."""
        modeling, masking = (sys.modules.get(f"transformers.{name}") for name in ("modeling_utils", "masking_utils"))
        functions = getattr(getattr(modeling, "ALL_ATTENTION_FUNCTIONS", None), "_global_mapping", None)
        masks = getattr(getattr(masking, "ALL_MASK_ATTENTION_FUNCTIONS", None), "_global_mapping", None)
        config = getattr(sys.modules.get("transformers.configuration_utils"), "PreTrainedConfig", None)
        if not (isinstance(functions, dict) and isinstance(masks, dict) and isinstance(config, type)):
            return None
        return cls(functions=functions, masks=masks, model=modeling.PreTrainedModel, config=config)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A module that calls attention, or chose it when it was built."""

    path: str
    module: nn.Module
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A part of a model that has attention: the module that makes its masks, and the modules that attend.

    `current` is the name of what it uses now. `mute` says that its classes know no choice of attention.
    """

    path: str
    module: nn.Module
    config: Any
    places: tuple[Place, ...]
    readers: tuple[Place, ...]  # other modules that look at the choice
    mute: bool = False

    @property
    def current(self) -> str | None:
        """The name of the attention in use, as the part's configuration has it now."""
        name: str | None = getattr(self.module.__dict__.get("config", self.config), SETTING, None)
        return name

    def used(self) -> dict[str, Any]:
        """Return by path what each module of the part finds where it looks, or looked, for its attention."""
        found: dict[str, Any] = {}
        if "config" in self.module.__dict__:
            found[".".join(filter(None, (self.path, "config")))] = self.current
        for place in (*self.places, *self.readers):
            for chain in place.reading.chains:
                found[".".join(filter(None, (place.path, *chain)))] = _follow(place.module, chain)
            for name in place.reading.copied:
                if name in place.module.__dict__:
                    found[".".join(filter(None, (place.path, name)))] = place.module.__dict__[name]
        return found


def is_config(value: Any, registries: Registries) -> bool:
    """Whether a value is a model's configuration, and has the choice of attention."""
    return isinstance(value, registries.config) and hasattr(type(value), SETTING)


def parts(model: nn.Module, walked: tuple[Sequence[str], Sequence[nn.Module]] | None = None) -> tuple[Part, ...]:
    """Return the parts of a model that have attention, in the model's order; none without transformers.

    `walked` are its paths and modules, if they are known.
    """
    registries = Registries.find()
    if registries is None:
        return ()
    paths, modules = walked or walk(model)[:2]
    by_path = dict(zip(paths, modules, strict=True))
    owned: dict[str, tuple[list[Place], list[Place]]] = {}
    known = {cls: reading(cls, registries.functions) for cls in set(map(type, modules))}
    for path, module in by_path.items():
        if (found := known[type(module)]) is not None:
            owner = _owner(path, by_path, registries)
            places, readers = owned.setdefault(owner, ([], []))
            (places if found.calls or found.fixed else readers).append(Place(path=path, module=module, reading=found))
    models = {cls for cls in known if issubclass(cls, registries.model)}
    mute = [
        path
        for path, module in by_path.items()
        if type(module) in models and _is_mute(path, by_path, owned, registries)
    ]
    return tuple(
        Part(
            path=path,
            module=module,
            config=_config(module, registries) or _config(owned[path][0][0].module, registries),
            places=tuple(owned[path][0]) if path in owned else (),
            readers=tuple(owned[path][1]) if path in owned else (),
            mute=path in mute,
        )
        for path, module in by_path.items()
        if path in mute or owned.get(path, ((), ()))[0]
    )


def _above(path: str) -> Iterator[str]:
    """Yield a path and those of the modules it is in, the model's own last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _owner(path: str, modules: Mapping[str, nn.Module], registries: Registries) -> str:
    """Return the path of the nearest model around a module, or else of the outermost with its configuration."""
    above = [found for found in _above(path) if found in modules]
    for found in above:
        if isinstance(modules[found], registries.model):
            return found
    config = _config(modules[path], registries)
    return next((found for found in reversed(above) if _config(modules[found], registries) is config), path)


def _config(module: nn.Module, registries: Registries) -> Any:
    config = module.__dict__.get("config")
    return config if is_config(config, registries) else None


def _is_mute(path: str, modules: Mapping[str, nn.Module], owned: Mapping[str, Any], registries: Registries) -> bool:
    """Whether a model's classes have attention and no choice of it; the outermost such model counts."""
    module = modules[path]
    if not _takes_no_choice(type(module)):
        return False
    prefix = f"{path}." if path else ""
    if any(owner == path or owner.startswith(prefix) for owner, (places, _) in owned.items() if places):
        return False
    around = (modules[found] for found in list(_above(path))[1:] if found in modules)
    return not any(isinstance(found, registries.model) and _takes_no_choice(type(found)) for found in around)


def _takes_no_choice(cls: type) -> bool:
    if cls not in _no_choice:
        module = sys.modules.get(cls.__module__)
        try:
            source = getsource(module) if module is not None else ""
        except (OSError, TypeError):
            source = ""
        has = re.search(r"^class \w*Attention\w*\(nn\.Module\)", source, re.MULTILINE)
        _no_choice[cls] = has is not None and SETTING not in source
    return _no_choice[cls]


def _follow(module: Any, chain: tuple[str, ...]) -> Any:
    for name in (*chain, SETTING):
        module = getattr(module, name, None)
    return module
