"""Gives the parts of one model another attention: a private configuration for each, and the way back.

transformers keeps the choice in a configuration, which models share. So every module that holds the configuration of a
part gets a shallow copy that is this model's own, and an entry in its `__dict__` that knows the first one; copies and
files carry these entries, and through them hold the names that the kernels are registered under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.attention import BUILT_IN, Part, Registries, parts
from kerncfg.applier.adapters.attention_config import Edits, Held, edits
from kerncfg.applier.adapters.attention_forms import Form, called, form
from kerncfg.applier.adapters.attention_names import Lease, Use, kind_of, lease
from kerncfg.applier.adapters.attention_source import SETTING
from kerncfg.applier.adapters.torch import unwrapped, walk
from kerncfg.applier.match import glob
from kerncfg.applier.report import ReportRow
from kerncfg.errors import ApplyError, ConflictError
from kerncfg.sources import KernelCode

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Attended", "Held", "Part", "Wanted", "attend", "attend_parts", "chosen", "fault", "parts", "revert"]

_PLAIN = ("inference", "training")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """What one part of a model is to use, by which row.

    `codes` are for when the model is not training and when it is: a `KernelCode`, a kernel's bare code, the name of one
    of transformers' own, or `None` for what the part has. `modes` are what the two are called in the report.
    """

    part: Part
    name: str
    codes: tuple[Any, Any]
    mask: str = "auto"
    reason: str | tuple[str, str] = "chosen"
    modes: tuple[str, str] = _PLAIN

    @classmethod
    def of(cls, part: Part, code: Any, mask: str = "auto", name: str = "attention") -> Wanted:
        """Return one of a single code, or of a pair of them for the two modes."""
        return cls(part=part, name=name, codes=code if isinstance(code, tuple) else (code, code), mask=mask)

    def resolved(self) -> tuple[Any, Any]:
        """Return the codes, with the name of what the part has for `None`."""
        idle, training = (self.part.current if code is None else code for code in self.codes)
        return (idle, idle) if _same(idle, training) else (idle, training)


class Attended:
    """What one call did to a model's attention, and the way back: `revert()`."""

    def __init__(self, model: nn.Module, wanted: Sequence[Wanted], made: Edits, leases: Mapping[str, Lease]) -> None:
        self.model = model
        self.wanted = tuple(wanted)
        self._edits = made
        self._leases = dict(leases)

    @property
    def rows(self) -> tuple[ReportRow, ...]:
        """One row for each part, as it is now."""
        return tuple(map(self._row, self.wanted))

    def read_back(self) -> dict[str, Any]:
        """Return by path what every part, and every module in it that looks, finds as its attention."""
        return {path: found for wanted in self.wanted for path, found in wanted.part.used().items()}

    def _row(self, wanted: Wanted) -> ReportRow:
        expected = self._edits.names[id(wanted.part)]
        off = {path: found for path, found in wanted.part.used().items() if found != expected}
        swapped = expected != self._edits.before[id(wanted.part)]
        code = wanted.codes[bool(wanted.part.module.training)]
        reason = wanted.reason if isinstance(wanted.reason, str) else wanted.reason[bool(wanted.part.module.training)]
        status = "swapped" if swapped and code is not None else "kept"
        if not swapped:
            reason = f"the part uses {expected} already"
        if not self._edits.active():
            status, reason = "kept", "reverted"
        elif off:
            path, found = next(iter(off.items()))
            status, reason = "kept", f"changed since: {path} finds the attention {found!r} now"
        return ReportRow(
            path=wanted.part.path,
            name=wanted.name,
            kind="attention",
            status=status,
            kernel=_said(code) if status == "swapped" else None,
            mode=wanted.modes[bool(wanted.part.module.training)],
            reason=reason,
            modes={mode: _said(found) for mode, found in zip(wanted.modes, wanted.codes, strict=True)},
        )

    @property
    def active(self) -> bool:
        """Whether something was done, and some of it is still on."""
        return bool(self._edits.modules) and self._edits.active()

    @property
    def covered(self) -> bool:
        """Whether a later choice is on one of the modules."""
        return self._edits.covered()

    @property
    def choices(self) -> tuple[tuple[Wanted, str | None, str], ...]:
        """Every part that uses another attention than before, with the names of the one before and of the one now."""
        names, before = self._edits.names, self._edits.before
        found = ((one, before[id(one.part)], names[id(one.part)]) for one in self.wanted)
        return tuple((one, was, name) for one, was, name in found if was != name)

    @contextmanager
    def suspended(self, keep: Callable[[Wanted], bool] | None = None) -> Iterator[None]:
        """Let every module look at the configuration that it had before, for as long as a `with` lasts.

        `keep` says which parts go on with what was chosen for them.

        Raises:
            ApplyError: The parts that go on cannot do so without the others.
        """
        kept = [one for one in self.wanted if keep is not None and keep(one)]
        given = [(module, name, swap) for module, held in self._edits.done for name, swap in held.swaps.items()]
        with ExitStack() as undo:
            for module, name, swap in given if len(kept) < len(self.wanted) else ():
                if module.__dict__.get(name) is swap.private:
                    undo.callback(module.__dict__.__setitem__, name, swap.private)
                    module.__dict__[name] = swap.original
            if kept and len(kept) < len(self.wanted):
                undo.callback(attend_parts(self.model, kept, owner=self._edits.owner).revert)
            yield

    def revert(self) -> None:
        """Give every module its own configuration back; twice is harmless.

        Raises:
            ConflictError: Another choice of attention was made on the same model later, and is still on.
        """
        if self.covered:
            paths = ", ".join(_text(one.part) for one in self.wanted)
            raise ConflictError(
                f"the attention of {paths} cannot be reverted while a later choice is on it",
                hint="revert in reverse order, or all at once with kerncfg.revert(model)",
            )
        self._edits.undo()
        for held in self._leases.values():
            held.close()


def attend(model: nn.Module, path: str | None, code: Any, mask: str = "auto", name: str = "attention") -> Attended:
    """Make the parts of a model that a path glob names, or all of them, use an attention; on an error nothing is done.

    Raises:
        ApplyError: There is no such part, it cannot use this attention, or it did not take it.
    """
    model = unwrapped(model)
    every = parts(model)
    return attend_parts(model, [Wanted.of(part, code, mask, name) for part in chosen(every, path)], every)


def chosen(found: Sequence[Part], path: str | None) -> tuple[Part, ...]:
    """Return the parts that a path glob names: by the module of a part, one around it, or all the attention in it.

    Raises:
        ApplyError: No part is named, or only some of the attention in one.
    """
    if not found:
        raise ApplyError(
            "the model has no part whose attention can be chosen",
            hint="only models of transformers that ask their configuration for it have that; take the row out",
        )
    if path is None:
        return tuple(found)
    pattern = glob(path)
    taken = []
    for part in found:
        if any(pattern.fullmatch(above) for above in _dotted(part.path)):
            taken.append(part)
            continue
        inside = [place.path for place in part.places if pattern.fullmatch(f"{place.path}.")]
        if inside and len(inside) < len(part.places):
            left = next(place.path for place in part.places if place.path not in inside)
            raise ApplyError(
                f"{path} names {inside[0]}, and not {left}, which gets the same mask from {_text(part)}",
                hint=f"attention is chosen for a whole part: write {part.path or '**'!r}",
            )
        if inside:
            taken.append(part)
    if not taken:
        paths = ", ".join(sorted(_text(part) for part in found))
        raise ApplyError(f"no part of the model is at {path}", hint=f"the parts that have attention: {paths}")
    return tuple(taken)


def attend_parts(
    model: nn.Module,
    wanted: Sequence[Wanted],
    every: Sequence[Part] | None = None,
    owner: Any = None,
    walked: tuple[Sequence[str], Sequence[nn.Module]] | None = None,
) -> Attended:
    """Make parts of a model use the attention that is wanted for each; on an error nothing is done.

    `every` are the `parts` of the model, among them the wanted ones, if the caller has them; `owner` is the apply that
    wants this, and `walked` the model's paths and modules, if they are known.

    Raises:
        ApplyError: A part cannot use what is wanted for it, or did not take it.
    """
    model = unwrapped(model)
    if faults := [f"{_text(one.part)}: {_codes(one)}: {reason}" for one in wanted if (reason := fault(one))]:
        raise ApplyError("\n".join(faults))
    leases: dict[str, Lease] = {}
    made: Edits | None = None
    try:
        names = {id(one.part): _name(one, leases) for one in wanted}
        kinds = {id(one.part): _kind(one) for one in wanted}
        made = edits(model, [one.part for one in wanted], every or parts(model), names, kinds, leases, walked)
        made.owner = owner
        made.do()
        _check(wanted, names)
        return Attended(model, wanted, made, leases)
    except BaseException:
        if made is not None:
            made.undo()
        for held in leases.values():
            held.close()
        raise


def fault(wanted: Wanted) -> str | None:
    """Say why a part cannot use what is wanted for it; nothing is changed."""
    part, codes = wanted.part, wanted.resolved()
    if codes[0] is codes[1] and codes[0] == part.current:
        return None
    if part.mute:
        return f"{type(part.module).__qualname__} knows no choice of attention"
    for place in (*part.places, *part.readers):
        cls, kept = type(place.module).__qualname__, [place.module.__dict__.get(name) for name in place.reading.copied]
        if place.reading.fixed or kept:
            return f"{place.path} ({cls}) chose its attention when it was built, and looks at no later choice"
    forms = [_form(code, wanted.mask) for code in codes]
    for code, found in zip(codes, forms, strict=True):
        if reason := found.fault or found.misfit(part) or _refused(part, code, found):
            return reason
    if _common(forms) is None:
        first, second = (" or ".join(found.masks) for found in forms)
        said = f"{_said(codes[0])} works with {first}, {_said(codes[1])} with {second}"
        return f"one mask is made for both modes, and {said}"
    if codes[0] is codes[1]:
        return None
    if flash := [code for code in codes if isinstance(code, str) and code.startswith("flash")]:
        return f"{flash[0]} is for both modes or none: transformers finds it by its name, and two modes share one"
    if "eager" in codes and any(place.reading.eager is None for place in part.places):
        return f"{type(part.module).__qualname__} has no eager attention that could be called for one mode only"
    return None


def revert(model: nn.Module) -> None:
    """Give every module of a model its own configuration back, whoever chose its attention; copies and parts too."""
    held = [(module, found) for module in walk(model)[1] if (found := Held.of(module)) is not None]
    for module, found in held:
        while found is not None:
            found.drop(module)
            found = Held.of(module)


def _form(code: Any, mask: str) -> Form:
    return form(code.code if isinstance(code, KernelCode) else code, mask)


def _common(forms: Sequence[Form]) -> str | None:
    """Return the best kind of masks that all can work with."""
    return next((kind for kind in forms[0].masks if all(kind in found.masks for found in forms)), None)


def _refused(part: Part, code: Any, found: Form) -> str | None:
    """Say what a part's class, or its configuration, has against a kind of attention."""
    module, cls = part.module, type(part.module).__qualname__
    if getattr(part.config, "_output_attentions", False) and code != "eager":
        return "config.output_attentions asks for the weights of attention, which only eager gives"
    masks = found.masks[0]
    if reason := _objection(part.config, masks if masks in BUILT_IN else "kernel"):
        return reason
    if found.kind == "built-in":
        check = getattr(module, "get_correct_attn_implementation", None)
        try:
            got = check(code) if check is not None else code
        except (ValueError, ImportError) as error:
            return str(error).partition("\n")[0]
        return None if got == code else f"{cls} takes {got} where {code} is asked for"
    flag = {"flash": "_supports_flash_attn", "function": "_supports_sdpa"}.get(found.kind)
    if flag is not None and not getattr(module, flag, True):
        return f"{cls} says {flag} = False, and this kernel is called in that way"
    allowed = getattr(module, "_compatible_flash_implementations", None)
    if found.kind == "flash" and allowed is not None and not _named(code, allowed):
        return f"{cls} works with the attention {', '.join(allowed)} only"
    for place in part.places:
        if place.reading.names:
            asks, names = type(place.module).__qualname__, " or ".join(place.reading.names)
            return f"{asks} asks whether its attention is {names}, which a kernel's name is not"
    return None


def _named(code: Any, allowed: Iterable[str]) -> bool:
    return isinstance(code, KernelCode) and str(code.kernel.reference).partition(":")[0].partition("@")[0] in allowed


def _objection(config: Any, name: str) -> str | None:
    """Say what the setter of a configuration's own class has against a name; it writes to a copy without parts."""
    trial = object.__new__(type(config))
    # Without its parts, since the setter writes to them too.
    trial.__dict__.update({key: value for key, value in config.__dict__.items() if not hasattr(type(value), SETTING)})
    try:
        trial._attn_implementation = name
    except ValueError as error:
        return str(error).partition("\n")[0]
    return None


def _use(wanted: Wanted) -> Use:
    codes, part = wanted.resolved(), wanted.part
    forms = [_form(code, wanted.mask) for code in codes]
    kind = _common(forms) or ""
    own = {type(place.module): place.reading.eager for place in part.places} if "eager" in codes else {}
    asks = any(place.reading.asks for place in (*part.places, *part.readers))
    always = kind == "sdpa" and (asks or not all(found.skips for found in forms))
    return Use(codes=codes, kind=kind, always=always, own=tuple((cls, made) for cls, made in own.items() if made))


def _name(wanted: Wanted, leases: dict[str, Lease]) -> str:
    """Return the name that a part's configuration is to have, and hold it if it is one of ours."""
    codes = wanted.resolved()
    if codes[0] is codes[1] and isinstance(codes[0], str):
        return codes[0]
    made = lease(_use(wanted))
    if made.name in leases:
        made.close()
    return leases.setdefault(made.name, made).name


def _kind(wanted: Wanted) -> str | None:
    codes = wanted.resolved()
    if codes[0] is codes[1] and isinstance(codes[0], str):
        return BUILT_IN[codes[0]][0] if codes[0] in BUILT_IN else kind_of(codes[0])
    return _use(wanted).kind


def _check(wanted: Sequence[Wanted], names: Mapping[int, str]) -> None:
    """Read back what every part uses, and whether its masks and its attention are there.

    Raises:
        ApplyError: A part did not take its choice.
    """
    registries = Registries.find()
    for one in wanted:
        name = names[id(one.part)]
        for path, found in one.part.used().items():
            if found != name:
                raise ApplyError(
                    f"{path or 'the model'} did not take the attention {_codes(one)}: it finds {found!r} there",
                    hint=f"leave {_text(one.part)} out of the row {one.name}",
                )
        if registries is None or name not in registries.masks:
            raise ApplyError(f"{_text(one.part)}: no masks are registered for the attention {name!r}")


def _dotted(path: str) -> list[str]:
    """Return the model's own path, those around a path, and the path itself, as `glob` wants them."""
    pieces = path.split(".") if path else []
    return ["", *(".".join(pieces[:end]) + "." for end in range(1, len(pieces) + 1))]


def _text(part: Part) -> str:
    return part.path or "the model"


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, KernelCode) and isinstance(second, KernelCode):
        return first.kernel == second.kernel
    return first is second or (isinstance(first, str) and first == second)


def _codes(wanted: Wanted) -> str:
    return " and ".join(dict.fromkeys(map(_said, wanted.resolved())))


def _said(code: Any) -> str:
    if code is None:
        return "original"
    if isinstance(code, str):
        return code
    return str(code.kernel.reference) if isinstance(code, KernelCode) else called(code)
