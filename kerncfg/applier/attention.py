"""Gives the parts of one model another attention: a private configuration for each, and the way back.

transformers keeps the choice in a configuration, which models share. So every module that holds the configuration of a
part gets a shallow copy that is this model's own, and an entry in its `__dict__` that knows the first one; copies and
files carry these entries, and through them hold the names that the kernels are registered under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from kerncfg.applier.adapters.attention import BUILT_IN, Part, Registries, parts
from kerncfg.applier.adapters.attention_config import Edits, Held, edits
from kerncfg.applier.adapters.attention_names import Lease, Use, kind_of, lease
from kerncfg.applier.adapters.torch import unwrapped, walk
from kerncfg.applier.report import ReportRow
from kerncfg.applier.wanting import Wanted, chosen, codes_of, common, fault, form_of, said, text
from kerncfg.errors import ApplyError, ConflictError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Attended", "Held", "Part", "Wanted", "attend", "attend_parts", "chosen", "fault", "parts", "revert"]


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
            kernel=said(code) if status == "swapped" else None,
            mode=wanted.modes[bool(wanted.part.module.training)],
            reason=reason,
            modes={mode: said(found) for mode, found in zip(wanted.modes, wanted.codes, strict=True)},
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
            paths = ", ".join(text(one.part) for one in self.wanted)
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
    if faults := [f"{text(one.part)}: {codes_of(one)}: {reason}" for one in wanted if (reason := fault(one))]:
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


def revert(model: nn.Module) -> None:
    """Give every module of a model its own configuration back, whoever chose its attention; copies and parts too."""
    held = [(module, found) for module in walk(model)[1] if (found := Held.of(module)) is not None]
    for module, found in held:
        while found is not None:
            found.drop(module)
            found = Held.of(module)


def _use(wanted: Wanted) -> Use:
    codes, part = wanted.resolved(), wanted.part
    forms = [form_of(code, wanted.mask) for code in codes]
    kind = common(forms) or ""
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
                    f"{path or 'the model'} did not take the attention {codes_of(one)}: it finds {found!r} there",
                    hint=f"leave {text(one.part)} out of the row {one.name}",
                )
        if registries is None or name not in registries.masks:
            raise ApplyError(f"{text(one.part)}: no masks are registered for the attention {name!r}")
