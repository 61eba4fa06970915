"""What the rows of one document say, in any of their forms, before anything is laid over anything.

A value without a mode says all four, one without a device says every device, and `inherited` in a list is what was
there without that line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from kerncfg.compiler.tree import KeyPath, Origins, spell
from kerncfg.documents.config import ANY, INHERITED, ORIGINAL, Candidate, Conditions, KernelRef, Match, Member
from kerncfg.documents.reference import absolute, is_relative, parse_range
from kerncfg.documents.target import MODE_PREFERENCE, Mode, canonical_device
from kerncfg.errors import ConfigError, Issue

__all__ = ["Modes", "Reader", "Said", "laid"]

_RESERVED = {"defaults", "inherit_mapping"}
_INHERITING = ("kernels", "inherited")
_CONDITIONS = ("capability", "torch", "dtype", "when", "trust_remote_code")
_CANDIDATE = ("kernel", "version", "revision", *_CONDITIONS)

T = TypeVar("T")
Modes = dict[Mode, tuple[Candidate, ...]]
Places = Mapping[str, KeyPath]  # where each key of a candidate was said: in its own map, or beside the devices


@dataclass(slots=True, kw_only=True)
class Said:
    """What one row says by itself, before anything is inherited."""

    cells: dict[str, Modes] = field(default_factory=dict)
    match: Match | None = None
    exclude: tuple[str, ...] | None = None
    fallback: str | None = None
    inherit: bool = True
    members: tuple[Member, ...] = ()
    path: str | None = None
    mask: str = "auto"
    origin: Any = None


def laid(base: Said, said: Said) -> dict[str, Modes]:
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


class Reader:
    """Reads the rows of one document and gathers its faults, notes and consents on the way."""

    def __init__(self, origins: Origins | None, base: Path, *, whole: bool = True) -> None:
        self.origins = origins
        self.base = base
        self.whole = whole  # what a row lacks is a fault only where no other file may say it
        self.issues: list[Issue] = []
        self.notes: list[str] = []
        self.local: set[str] = set()

    def rows(self, node: Mapping[str, Any], root: str) -> dict[str, Said]:
        """Read the rows of a node; one of `kernels` or `inherited` that only says `inherited` says nothing."""
        silent = "inherited" if root in _INHERITING else None
        names = [name for name in node if name not in _RESERVED and (node[name] is None or node[name] != silent)]
        return {name: self.row(node[name], (root, name)) for name in names}

    def row(self, value: Any, path: KeyPath) -> Said:
        """Read one row in any of its forms."""
        said = Said(origin=None if self.origins is None else self.origins.key(path))
        if not isinstance(value, Mapping):
            said.cells[ANY] = self.modes(value, path, {})
            return said
        defaults = {key: value[key] for key in _CONDITIONS if key in value}
        if "kernel" in value:
            beside = {key: value[key] for key in _CANDIDATE if key in value}
            said.cells[ANY] = self.modes(beside, path, {})
        elif self.whole and (stray := [key for key in ("version", "revision") if key in value]):
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
        self.beside(said, value, path)
        return said

    def beside(self, said: Said, value: Mapping[str, Any], path: KeyPath) -> None:
        """Read what only fusions and rows of attention say."""
        said.members = self.members(value.get("members") or [], (*path, "members"))
        said.path = value.get("path")
        said.mask = value.get("mask") or "auto"
        if self.whole and not said.cells and path[0] not in _INHERITING:
            self.fault(path, "no kernel is named", f"write {spell(path)}.kernel=KERNEL, or {spell(path)}=null for off")

    def members(self, value: list[Any], path: KeyPath) -> tuple[Member, ...]:
        """Read the members of a fusion, which stand beside each other."""
        found = tuple(Member(name=name, path=pattern) for name, pattern in value)
        for index, member in enumerate(found):
            first, said = found[0], (*path, index, 1)
            if member.path.endswith("**"):
                message = f"{member.path!r} ends in any number of modules, expected the name of one"
                self.fault(said, message, f"write the module's name last, as in {member.path}.mlp")
            elif member.parent != first.parent:
                message = f"{member.path!r} and {first.path!r} have different parents, expected one"
                self.fault(said, message, f"name modules that stand beside each other, as in {_beside(first, member)}")
            elif member.path in [other.path for other in found[:index]]:
                message = f"{member.path!r} is said twice in one fusion"
                self.fault(said, message, "keep one of the two, or name another module")
        return found

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
        elif ref == INHERITED and path[0] not in _INHERITING:
            row = spell(path[:2])
            message = f"'inherited' stands where nothing is inherited: {path[0]} has no default rows"
            self.fault(place, message, f"leave it out, or write {row}=null for off")
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
        attention = place[0] == "attention"
        ref = ORIGINAL if text in (None, "") else self.read(place, KernelRef.parse, text, attention=attention)
        versions = {key: data[key] for key in ("version", "revision") if data.get(key) is not None}
        if ref and versions:
            ref = self.read(places[next(iter(versions))], ref.at, **versions)
        if ref and ref.scheme == "hub" and ref.name is None and not attention:
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
        for (key, *_), (following, *_) in pairwise(when):
            if key == following:
                self.fault((*places["when"], key), f"{key!r} is said twice", "keep one of the two")
        asked = {key: self.origin((*places["when"], *parts)) for key, _, parts in when}
        return Conditions(
            **ranges,
            dtype=(dtype,) if isinstance(dtype, str) else tuple(dtype),
            when=tuple((key, tuple(value) if isinstance(value, list) else (value,)) for key, value, _ in when),
            asked={key: origin for key, origin in asked.items() if origin},
        )

    def read(self, path: KeyPath, parse: Callable[..., T], *arguments: Any, **keywords: Any) -> T | None:
        """Return what a parser makes of a value; its faults are kept for later and give `None`."""
        try:
            return parse(*arguments, **keywords)
        except ConfigError as error:
            self.issues += [self.located(path, issue.message, issue.hint) for issue in error.issues]
            return None

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


def _beside(first: Member, other: Member) -> str:
    """Return a pattern for what another member names, under the parent of the first."""
    name = other.path.rpartition(".")[2]
    return f"{first.parent}.{name}" if first.parent else name


def _flat(node: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[str, Any, KeyPath]]:
    """Yield `config.hidden_act: silu` for the dotted and the nested spelling alike, and the keys that led there."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield spell((*path, key)), value, (*path, key)
