"""A valid document to a `Config`: shorthand, inheriting and fallback become plain rows here.

What is said replaces what is inherited, per name, device and mode. A value without a mode says all four, one
without a device says every device, and `inherited` in a list is what was there without that line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from kerncfg.compiler.tree import KeyPath, Origins, spell
from kerncfg.documents.config import (
    ANY,
    INHERITED,
    ORIGINAL,
    Candidate,
    Conditions,
    Config,
    KernelRef,
    Match,
    Policy,
    Row,
    Trust,
)
from kerncfg.documents.reference import absolute, is_relative, parse_range
from kerncfg.documents.target import MODE_PREFERENCE, Mode, canonical_device
from kerncfg.errors import ConfigError, Issue

__all__ = ["normalise"]

_RESERVED = {"defaults", "inherit_mapping"}
_CONDITIONS = ("capability", "torch", "dtype", "when", "trust_remote_code")
_CANDIDATE = ("kernel", "version", "revision", *_CONDITIONS)

T = TypeVar("T")
Modes = dict[Mode, tuple[Candidate, ...]]
Places = Mapping[str, KeyPath]  # where each key of a candidate was said: in its own map, or beside the devices


def normalise(document: Mapping[str, Any], *, origins: Origins | None = None, base: Path | None = None) -> Config:
    """Return the config that a valid document means.

    `base` is the folder from which relative kernel folders said by override or argument start, by default the
    working directory; those in a file start at the file's folder. Without `origins` the document is taken as
    canonical data whose trust counts.

    Raises:
        ConfigError: References, versions or ranges that cannot be read; it holds every one of them.
    """
    reader = _Reader(origins, (base or Path.cwd()).absolute())
    reader.losses()
    own = reader.rows(document["kernels"], "kernels")
    inherited = reader.rows(document["inherited"], "inherited")
    policy = reader.policy(document["policy"])
    inherit = document["kernels"].get("inherit_mapping") is not False
    names = sorted({*own, *inherited})
    rows = {name: _merge(name, own.get(name), inherited.get(name), policy, inherit) for name in names}
    trust = reader.trust(document["trust"])
    if reader.issues:
        raise ConfigError(reader.issues)
    rows = {name: row for name, row in rows.items() if row.own or row.cells}
    named = {candidate.ref.place for row in rows.values() for candidate in row.candidates()}
    return Config(
        enabled=document["enabled"],
        rows=rows,
        trust=replace(trust, local=frozenset(reader.local & named)),
        policy=policy,
        notes=tuple(reader.notes),
    )


@dataclass(slots=True, kw_only=True)
class _Said:
    """What one row says by itself, before anything is inherited."""

    cells: dict[str, Modes] = field(default_factory=dict)
    match: Match | None = None
    exclude: tuple[str, ...] | None = None
    fallback: str | None = None
    inherit: bool = True
    origin: Any = None


def _merge(name: str, own: _Said | None, inherited: _Said | None, policy: Policy, inherit: bool) -> Row:
    said = own or _Said()
    base = inherited if inherited is not None and said.inherit and inherit else _Said()
    exclude = base.exclude if said.exclude is None else said.exclude
    return Row(
        name=name,
        cells=_laid(base, said),
        below=_laid(inherited, _Said()) if own and inherited else {},
        match=said.match or base.match,
        exclude=exclude or (),
        fallback=said.fallback or base.fallback or policy.fallback,
        own=own is not None,
        origin=said.origin or base.origin,
    )


def _laid(base: _Said, said: _Said) -> dict[str, Modes]:
    """Lay what is said over what is inherited, device by device."""
    cells: dict[str, Modes] = {}
    for device in dict.fromkeys([ANY, *base.cells, *said.cells]):
        layers = [base.cells.get(ANY), base.cells.get(device), said.cells.get(ANY), said.cells.get(device)]
        modes: Modes = {}
        for layer in layers:
            modes = _over(modes, layer or {})
        if modes and (device == ANY or modes != cells.get(ANY)):
            cells[device] = modes
    return dict(sorted(cells.items()))


def _over(below: Modes, above: Modes) -> Modes:
    """Lay what is said over what was there, mode by mode, and put the latter where `inherited` stands."""
    merged = {**below}
    for mode, candidates in above.items():
        found: list[Candidate] = []
        for candidate in candidates:
            found += _serving(below, mode) if candidate.ref == INHERITED else [candidate]
        merged[mode] = tuple(dict.fromkeys(found))
    return {mode: merged[mode] for mode in Mode if merged.get(mode)}


def _serving(modes: Modes, mode: Mode) -> tuple[Candidate, ...]:
    return next((modes[other] for other in MODE_PREFERENCE[mode] if other in modes), ())


class _Reader:
    """Reads the nodes of one document and gathers its faults, notes and consents on the way."""

    def __init__(self, origins: Origins | None, base: Path) -> None:
        self.origins = origins
        self.base = base
        self.issues: list[Issue] = []
        self.notes: list[str] = []
        self.local: set[str] = set()

    def rows(self, node: Mapping[str, Any], root: str) -> dict[str, _Said]:
        """Read the rows of `kernels` or `inherited`; a row that only says `inherited` says nothing."""
        names = [name for name in node if name not in _RESERVED and node[name] != "inherited"]
        return {name: self.row(node[name], (root, name)) for name in names}

    def row(self, value: Any, path: KeyPath) -> _Said:
        """Read one row in any of its forms."""
        said = _Said(origin=None if self.origins is None else self.origins.key(path))
        if not isinstance(value, Mapping):
            said.cells[ANY] = self.modes(value, path, {})
            return said
        defaults = {key: value[key] for key in _CONDITIONS if key in value}
        if "kernel" in value:
            beside = {key: value[key] for key in _CANDIDATE if key in value}
            said.cells[ANY] = self.modes(beside, path, {})
        elif stray := [key for key in ("version", "revision") if key in value]:
            message = f"{stray[0]!r} stands beside no kernel"
            self.fault((*path, stray[0]), message, "put it into the candidate it is for")
        for key in value:
            device = ANY if key == ANY else canonical_device(key)
            if device and device in said.cells:
                self.fault((*path, key), f"{device!r} is said twice in one row", "keep one of the two")
            elif device:
                said.cells[device] = self.modes(value[key], (*path, key), defaults)
        said.match = Match.from_dict(value["match"]) if value.get("match") else None
        said.exclude = tuple(value["exclude"]) if value.get("exclude") is not None else None
        said.fallback = value.get("fallback")
        said.inherit = value.get("inherit_mapping", True)
        return said

    def modes(self, value: Any, path: KeyPath, defaults: Mapping[str, Any]) -> Modes:
        """Read a device's value: one for all modes, or a map of modes."""
        if isinstance(value, Mapping) and value and all(key in {*Mode} for key in value):
            return {Mode(key): self.candidates(value[key], (*path, key), defaults) for key in value}
        return dict.fromkeys(Mode, self.candidates(value, path, defaults))

    def candidates(self, value: Any, path: KeyPath, defaults: Mapping[str, Any]) -> tuple[Candidate, ...]:
        """Read one candidate or a list of them."""
        if isinstance(value, list):
            found = [self.candidate(entry, (*path, index), defaults) for index, entry in enumerate(value)]
        else:
            found = [self.candidate(value, path, defaults)]
        return tuple(candidate for candidate in found if candidate is not None)

    def candidate(self, value: Any, path: KeyPath, defaults: Mapping[str, Any]) -> Candidate | None:
        """Read one candidate; its faults are kept for later and give `None`."""
        inline = isinstance(value, Mapping)
        data = dict(value) if inline else {"kernel": value}
        places = {key: (*path[:2], key) for key in defaults}
        places |= {key: (*path, key) if inline else path for key in data}
        place = places.get("kernel", path)
        ref = self.reference(data, places, place)
        bare = ref in (ORIGINAL, INHERITED)
        said = data if bare else {**defaults, **data}
        conditions = self.conditions(said, places)
        if ref is None:
            return None
        if ref == INHERITED and (stray := [key for key in _CONDITIONS if key in data]):
            message = f"{stray[0]!r} stands beside 'inherited', which takes no conditions"
            self.fault(places[stray[0]], message, "put it beside a kernel of your own")
        return Candidate(
            ref=ref,
            conditions=conditions,
            trust_remote_code=bool(said.get("trust_remote_code")) and self.granted(places["trust_remote_code"]),
            inherited=path[0] == "inherited",
            origin=self.origin(place),
        )

    def reference(self, data: Mapping[str, Any], places: Places, place: KeyPath) -> KernelRef | None:
        """Read a candidate's reference, at the version said beside it, and note the consent to run it."""
        text = data.get("kernel")
        ref = ORIGINAL if text in (None, "") else self.read(place, KernelRef.parse, text)
        versions = {key: data[key] for key in ("version", "revision") if data.get(key) is not None}
        if ref and versions:
            ref = self.read(places[next(iter(versions))], ref.at, **versions)
        if ref and ref.scheme == "hub" and ref.name is None:
            self.fault(place, f"{str(ref)!r}: no kernel name, expected one after a ':'", f"write {ref}:Name")
        origin = self.origin(place)
        if ref and ref.scheme == "path" and origin and "${" in (origin.text or "") and is_relative(ref.location):
            message = (
                f"{text!r} is a relative folder that came by {origin.text}, so no file says what it is relative to"
            )
            self.fault(place, message, "write the folder here as well, or in full where it is first said")
        if ref and ref.scheme == "path":
            start = Path(origin.place).absolute().parent if origin and origin.kind == "file" else self.base
            folder = self.read(place, absolute, ref.location, start)
            ref = replace(ref, location=folder) if folder else None
        if ref and ref.scheme in ("path", "python") and (origin is None or origin.names_local_code):
            self.local.add(ref.place)
        return ref

    def conditions(self, said: Mapping[str, Any], places: Places) -> Conditions:
        """Read what must hold for a candidate."""
        ranges = {
            key: self.read(places[key], parse_range, said[key]) for key in ("capability", "torch") if said.get(key)
        }
        dtype = said.get("dtype") or ()
        when = sorted(_flat(said.get("when") or {}), key=itemgetter(0))
        for (key, _), (following, _) in pairwise(when):
            if key == following:
                self.fault((*places["when"], key), f"{key!r} is said twice", "keep one of the two")
        return Conditions(
            **ranges,
            dtype=(dtype,) if isinstance(dtype, str) else tuple(dtype),
            when=tuple((key, tuple(value) if isinstance(value, list) else (value,)) for key, value in when),
        )

    def read(self, path: KeyPath, parse: Callable[..., T], *arguments: Any, **keywords: Any) -> T | None:
        """Return what a parser makes of a value; its faults are kept for later and give `None`."""
        try:
            return parse(*arguments, **keywords)
        except ConfigError as error:
            self.issues += [self.located(path, issue.message, issue.hint) for issue in error.issues]
            return None

    def policy(self, node: Mapping[str, Any]) -> Policy:
        """Read the `policy` node."""
        return Policy(
            fallback=node["fallback"],
            strict=node["strict"],
            require_pin=node["require_pin"],
            verify=node["verify"],
        )

    def trust(self, node: Mapping[str, Any]) -> Trust:
        """Read the `trust` node; what was not said by the person running kerncfg is ignored, and noted."""
        return Trust(
            publishers=frozenset(self.names(node, "publishers")),
            repositories=frozenset(self.names(node, "repositories")),
            allow_all_kernels=bool(node["allow_all_kernels"]) and self.granted(("trust", "allow_all_kernels")),
        )

    def names(self, node: Mapping[str, Any], key: str) -> Iterator[str]:
        """Yield the trusted names of one map."""
        for name, said in (node.get(key) or {}).items():
            if said and self.granted(("trust", key, name)):
                yield name

    def granted(self, path: KeyPath) -> bool:
        """Say whether trust said here counts: not from data, nor from presets but those of trust itself."""
        origin = self.origin(path)
        if origin is None or origin.grants_trust:
            return True
        if origin.kind == "preset" and origin.place.startswith("trust/"):
            return True
        why = f"it comes from {origin}, and only a local file or an override can grant trust"
        self.notes.append(f"{spell(path)} is ignored: {why}")
        return False

    def losses(self) -> None:
        """Note what was lost where a map took the place of text or a list."""
        for path, origin in self.origins.lost if self.origins else ():
            what = "a list" if origin.text is None else repr(origin.text)
            self.notes.append(f"{spell(path)}: a map takes the place of {what}, said at {origin}")

    def origin(self, path: KeyPath) -> Any:
        """Return where the value at a path was said."""
        return None if self.origins is None else self.origins.at(path)

    def fault(self, path: KeyPath, message: str, hint: str) -> None:
        """Keep a fault for the one error at the end."""
        self.issues.append(self.located(path, message, hint))

    def located(self, path: KeyPath, message: str, hint: str | None) -> Issue:
        """Return a fault with its place."""
        return (self.origins or Origins.argument()).issue(path, message, hint=hint)


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `config.hidden_act: silu` for the dotted and the nested spelling alike."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
