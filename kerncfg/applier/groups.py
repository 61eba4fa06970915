"""Which modules a fusion joins: the parents that hold every member, and who else wants the same modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kerncfg.applier.adapters import adapter_for
from kerncfg.applier.adapters.torch import unwrapped
from kerncfg.applier.match import glob
from kerncfg.errors import ApplyError, ConflictError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters import LayerClass, Site, Sites

__all__ = ["Group", "Parts", "check_conflicts", "groups", "inner", "named_parts"]

Parts = list[tuple[str, "nn.Module"]]  # modules by their paths from one of them

_SHOWN = 8  # names of a list in a message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The modules of one parent that one fused kernel takes, in the order in which its layout takes them."""

    parent: str
    paths: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    layers: tuple[LayerClass, ...]
    parts: tuple[Parts, ...] = field(init=False)  # of each member, itself and all in it
    inside: frozenset[int] = field(init=False)  # the ids of all these

    def __post_init__(self) -> None:
        parts = tuple(map(named_parts, self.modules))
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "inside", frozenset([id(part) for own in parts for _, part in own]))

    @classmethod
    def of(cls, site: Site) -> Group:
        """Return the group that one site is: of a kernel whose layout takes a single module."""
        parent = site.path.rpartition(".")[0]
        return cls(parent=parent, paths=(site.path,), modules=(site.module,), layers=(site.layer,))

    @property
    def path(self) -> str:
        """The path of the first member, which runs the kernel."""
        return self.paths[0]


def named_parts(module: nn.Module) -> Parts:
    """Return what `named_modules()` yields, in a fifth of the time: a hundred layers are asked several times."""
    found: Parts = [("", module)]
    if module._modules:
        _add_parts(module, "", found, {id(module)})
    return found


def _add_parts(module: nn.Module, prefix: str, found: Parts, seen: set[int]) -> None:
    # No function within another: one that calls itself is a cycle, and holds what it found until it is collected.
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            found.append((prefix + name, child))
            if child._modules:
                _add_parts(child, f"{prefix}{name}.", found, seen)


def groups(root: nn.Module, members: Sequence[tuple[str, str]], sites: Sites | None = None) -> tuple[Group, ...]:
    """Return every group of siblings that the (class name, path pattern) pairs describe, in the model's order.

    A class is named by what it is registered as, by its name, or by the end of its name; so is a base whose `forward`
    it inherits. A parent is matched if the pattern's path to it fits; below a `**` only if it has one of the members.

    Raises:
        ApplyError: The patterns have not one parent, nothing matches, a member fits twice, or a matched parent lacks
            one.
    """
    parent, children = _parent(members)
    sites = adapter_for(root).sites(root) if sites is None else sites
    families = _families(sites, parent)
    found, lacking = [], {}
    for path, family in families.items():
        fitting = [_fitting(family, child, name) for (name, _), child in zip(members, children, strict=True)]
        for (name, pattern), fits in zip(members, fitting, strict=True):
            if len(fits) > 1:
                raise ApplyError(
                    f"{path or 'the model itself'} has {len(fits)} members that {name}, {pattern} fits: "
                    f"{', '.join(site.path for site in fits)}",
                    hint="a member is one module of each parent: write its name in the pattern",
                )
        if all(fitting):
            taken = [site for (site,) in fitting]
            found.append(
                Group(
                    parent=path,
                    paths=tuple(site.path for site in taken),
                    modules=tuple(site.module for site in taken),
                    layers=tuple(site.layer for site in taken),
                )
            )
        elif any(fitting) or "**" not in parent.split("."):
            wanted = zip(members, children, fitting, strict=True)
            lacks = [_lack(family, child, name) for (name, _), child, fits in wanted if not fits]
            lacking[path or "the model itself"] = ", ".join(lacks)
    if lacking:
        raise ApplyError(
            f"of {_wanted(members)} a member is missing in {_listed(f'{one} ({no})' for one, no in lacking.items())}",
            hint="narrow the patterns to the parents that have every member" if found else _nearest(sites, members),
        )
    if not found:
        raise ApplyError(f"no parent has {_wanted(members)}", hint=_nearest(sites, members))
    _check_apart(found)
    return tuple(found)


def _parent(members: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """Return the pattern of the parent, and those of the children."""
    if not members:
        raise ApplyError("a fusion needs at least one member", hint="write members: [[RMSNorm, model.layers.*.norm]]")
    parents = [pattern.rpartition(".")[0] for _, pattern in members]
    if len(set(parents)) > 1:
        raise ApplyError(
            f"the members of a fusion share one parent, found {' and '.join(dict.fromkeys(parents))}",
            hint="write the same path before the last dot of every pattern",
        )
    return parents[0], [pattern.rpartition(".")[2] for _, pattern in members]


def _families(sites: Sites, parent: str) -> dict[str, dict[str, Site]]:
    """Return the children by name of every module that the parent's pattern fits, by its first path."""
    found: dict[str, dict[str, Site]] = {}
    shared, fits = sites.shared, glob(parent).fullmatch
    places = dict(zip(map(id, sites.modules), range(len(sites.modules)), strict=True))
    dots = None if "**" in parent else parent.count(".")  # a pattern without `**` fits paths of its own length alone
    for place, path in enumerate(sites.paths):
        own = (dots is None or path.count(".") == dots) and fits(f"{path}." if path else "")
        if own or (place in shared and any(fits(f"{one}.") for one in shared[place])):
            children = sites.modules[place]._modules
            inside = {name: places[id(unwrapped(child))] for name, child in children.items() if child is not None}
            found[path] = {name: sites[child] for name, child in inside.items() if sites.layers[child] is not None}
    return found


def _fitting(family: Mapping[str, Site], child: str, name: str) -> list[Site]:
    if "*" not in child:
        found = family.get(child)
        return [found] if found is not None and _is_called(found.layer, name) else []
    pattern = glob(child)
    return [site for key, site in family.items() if pattern.fullmatch(f"{key}.") and _is_called(site.layer, name)]


def _is_called(layer: LayerClass, name: str) -> bool:
    return layer.name == name or any([base.__name__.endswith(name) for base in layer.classes])


def _lack(family: Mapping[str, Site], child: str, name: str) -> str:
    """Say that a member is missing, and what stands in its place, if anything does."""
    pattern = glob(child)
    there = [f"{key} is a {site.layer.cls.__name__}" for key, site in family.items() if pattern.fullmatch(f"{key}.")]
    return ", ".join(there) or f"no {name} {child}"


def _wanted(members: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"[{name}, {pattern}]" for name, pattern in members)


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _nearest(sites: Sites, members: Iterable[tuple[str, str]]) -> str | None:
    """Name the paths that are most like the patterns, numbers written as `*`, with the class that stands there."""
    shapes: dict[str, str] = {}
    for site in sites:
        if site.path:
            shapes.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", site.path), site.layer.cls.__name__)
    close = [near for _, pattern in members for near in get_close_matches(pattern, shapes, n=2, cutoff=0.4)]
    near = list(dict.fromkeys(close)) or list(shapes)[:_SHOWN]
    return f"the nearest paths are {', '.join(f'{path} ({shapes[path]})' for path in near)}" if near else None


def _check_apart(found: Iterable[Group]) -> None:
    """Refuse a module that is a member twice: one object at two places of the model, or in two members."""
    seen: dict[int, str] = {}
    for group in found:
        for path, module in zip(group.paths, group.modules, strict=True):
            below = group.parent or "the model itself"
            if id(module) in seen:
                raise ApplyError(
                    f"{path} is a member below {seen[id(module)]} and below {below}, and a module can be fused once",
                    hint="name one of the places in the patterns, or give each a module of its own",
                )
            seen[id(module)] = below


def inner(group: Group) -> set[int]:
    """Return the ids of all modules inside the members, which the fused kernel may pass by."""
    return {id(part) for parts in group.parts for path, part in parts if path}


def check_conflicts(fusions: Mapping[str, Sequence[Group]], matched: Mapping[int, str]) -> None:
    """Refuse two rows that want one module; `matched` names by a module's id the row whose `match` takes it.

    Rows that take a member by name only are no conflict: they leave it to the fusion.

    Raises:
        ConflictError: Two fusions have a member in common, one lies inside a member of another, or a row matches one.
    """
    taken: dict[int, tuple[str, str]] = {}
    for row, found in fusions.items():
        for group in found:
            for path, module in zip(group.paths, group.modules, strict=True):
                if id(module) in matched:
                    raise ConflictError(
                        f"{path} is a member of {row}, and {matched[id(module)]} takes it by match",
                        hint="name the module in that row's exclude, or narrow its match",
                    )
                if (other := taken.setdefault(id(module), (row, path)))[0] != row:
                    raise ConflictError(f"{path} is a member of {other[0]} and of {row}", hint="narrow one of the two")
    for row, found in fusions.items():
        for group in found:
            for part in inner(group):
                if part in taken:
                    other = taken[part]
                    raise ConflictError(
                        f"{other[1]}, a member of {other[0]}, lies inside {group.path} or what {row} fuses with it",
                        hint="take one of the two fusions out",
                    )
