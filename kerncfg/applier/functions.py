"""Which row takes which function, what each will run, and the edits that come of it.

A function site is a module and one of the functions that its forward calls by name. Its edit is a copy of that forward
for each mode, so that it follows the mode, is copied, saved and reverted as a layer's. Where a kernel takes a module's
whole forward, its functions are not called any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kerncfg.applier.adapters import Function, LayerClass, Site
from kerncfg.applier.bind import FunctionEdit, Replaced, bound, with_functions
from kerncfg.applier.called import obstacle
from kerncfg.applier.contract import Fit, function_fit
from kerncfg.applier.decide import Decided, Decisions
from kerncfg.applier.match import class_fits, excluded, is_called, path_fits, placed, row
from kerncfg.errors import ConflictError

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.adapters import Sites
    from kerncfg.applier.match import Claim
    from kerncfg.documents.config import Match
    from kerncfg.documents.plan import Step
    from kerncfg.documents.target import Mode

__all__ = ["FunctionClaim", "FunctionDecisions", "FunctionSite", "counted", "function_claims", "function_names"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Calling(LayerClass):
    """A class of modules, as the caller of one function."""

    function: Function


class FunctionClaim(NamedTuple):
    """A module at its place, one function that it calls, and the step that takes or excludes it."""

    place: int
    site: Site
    claim: Claim


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSite:
    """A function of a module that a step takes, what it runs, and the module's edit if it has one."""

    site: Site
    function: Function
    step: Step
    decided: Decided
    edit: FunctionEdit | None


def function_claims(sites: Sites, steps: Sequence[Step]) -> list[FunctionClaim]:
    """Return the functions that steps take, in the model's order; a `match` beats a name.

    Raises:
        ConflictError: Two rows take one function of one module by `match`.
    """
    rows: dict[LayerClass, list[tuple[_Calling, list[Step]]]] = {}
    for layer in {layer for layer in set(sites.layers) if layer is not None and layer.functions}:
        taking = [(function, [step for step in steps if _fits(step, layer, function)]) for function in layer.functions]
        if found := [(_calling(layer, function), taken) for function, taken in taking if taken]:
            rows[layer] = found
    if not rows:
        return []
    return [
        FunctionClaim(place, site, claim)
        for place, layer in enumerate(sites.layers)
        if layer in rows
        for calling, taken in rows[layer]
        if (claim := _claim(site := sites[place]._replace(layer=calling), taken, calling.function)) is not None
    ]


def function_names(sites: Sites, registered: bool) -> Iterator[str]:
    """Yield for each module what it calls: the registered names, or the names that the forwards have for them."""
    for layer in sites.layers:
        for function in layer.functions if layer is not None else ():
            if not registered:
                yield function.called
            elif function.name is not None:
                yield function.name


class Counter:
    """How often a function was called."""

    def __init__(self) -> None:
        self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        return call


def counted(site: FunctionSite) -> tuple[tuple[Callable[..., Any] | None, Callable[..., Any] | None], Counter]:
    """Return the caller's forwards with the kernels of this one function, and how often they call them."""
    counter, edit = Counter(), site.decided.edit
    first, second = (function and counter.around(function) for function in edit.forwards)
    if edit.forwards[0] is edit.forwards[1]:
        second = first
    replaced = Replaced(site.function.called, (first, second), edit.kernels)
    return with_functions(edit.owner, site.site.layer.classes[-1], (replaced,)).forwards, counter


def _calling(layer: LayerClass, function: Function) -> _Calling:
    values = {field.name: getattr(layer, field.name) for field in fields(LayerClass)}
    return _Calling(**{**values, "condition": None}, function=function)


def _fits(step: Step, layer: LayerClass, function: Function) -> bool:
    match = step.match
    if match is None:
        return step.name == function.name
    # A match without a function means functions only where it says a name, and modules else.
    if (match.function is None and match.name is None) or not class_fits(match, layer):
        return False
    return _name_fits(match, function) and (match.function is None or _function_fits(match.function, function))


def _name_fits(match: Match, function: Function) -> bool:
    """Whether a match may mean a function by `name`: one that only a base declares, where it says the class too."""
    return match.name in (None, function.name) or (match.class_ is not None and match.name == function.inherited)


def _function_fits(said: str, function: Function) -> bool:
    if said == function.called:
        return True
    value = function.function
    return "." in said and hasattr(value, "__module__") and hasattr(value, "__qualname__") and is_called(value, said)


def _claim(site: Site, steps: Iterable[Step], function: Function) -> Claim | None:
    verdicts = [(step, excluded(step, site)) for step in steps if path_fits(step.match, site)]
    free = [claim for claim in verdicts if claim[1] is None]
    matching = [step for step, _ in free if step.match is not None]
    if len(matching) > 1:
        raise ConflictError(
            f"{function.called} in {site.path or 'the model itself'} ({site.layer.cls.__qualname__}) is taken by "
            f"{' and '.join(map(placed, matching))}, each through its match",
            hint="narrow one match, or name the module in the other row's exclude",
        )
    by_match = [claim for claim in free if claim[0].match is not None]
    return next(iter([*by_match, *free, *verdicts]), None)


class FunctionDecisions(Decisions):
    """Decides for functions as for layers, but for what fits; code that was loaded for layers is not loaded again."""

    def __init__(self, others: Decisions) -> None:
        super().__init__(others.plan, others.modes, others.owner)
        self.hints, self._code, self._elsewhere = others.hints, others._code, others._elsewhere
        self._obstacles: dict[_Calling, str | None] = {}
        self._edits: dict[tuple[Any, ...], FunctionEdit] = {}

    def _fit(self, code: Any, layer: LayerClass, mode: Mode) -> Fit:
        assert isinstance(layer, _Calling)
        return function_fit(code, layer.function, mode)

    def _remember(self, site: Site, claim: Claim, ready: Any, decided: Decided) -> None:
        """Keep nothing: nobody asks by the class alone for what a function runs."""

    def _barred(self, site: Site, step: Step) -> str | None:
        layer = site.layer
        assert isinstance(layer, _Calling)
        if fault := super()._barred(site, step):
            return fault
        made = bound(site.module)
        if made is not None and not isinstance(made.edit, FunctionEdit) and any(made.edit.forwards):
            return f"a kernel took the whole forward, by {made.edit.owner}"
        if layer not in self._obstacles:
            self._obstacles[layer] = obstacle(layer.forward, layer.function.called)
        return self._obstacles[layer]

    def decide_functions(
        self, claims: Sequence[FunctionClaim], layers: Sequence[Decided | None], taken: Sequence[Claim | None]
    ) -> list[FunctionSite]:
        """Return what the claimed functions run; `layers` is what the modules do, and `taken` the rows that took them.

        Raises:
            ContractError: No kernel is left for a mode, and the row may not fall back.
            ApplyError: A condition asks for an attribute that the module has not.
        """
        modules: defaultdict[int, list[FunctionClaim]] = defaultdict(list)
        for claim in claims:
            modules[claim.place].append(claim)
        return [found for place, own in modules.items() for found in self._of_module(own, layers[place], taken[place])]

    def _of_module(
        self, claims: list[FunctionClaim], layer: Decided | None, taken: Claim | None
    ) -> Iterator[FunctionSite]:
        if layer is not None and layer.swaps and taken is not None:
            verdict = self.keep(f"{row(taken[0])} took the whole forward, which calls it")
            decided = [self._share(verdict, verdict)] * len(claims)
            edit = None
        else:
            decided = [self._decide(one.site, one.claim) for one in claims]
            edit = self._edit(claims, decided)
        for one, outcome in zip(claims, decided, strict=True):
            yield FunctionSite(one.site, _function(one.site), one.claim[0], outcome, edit)

    def _edit(self, claims: list[FunctionClaim], decided: list[Decided]) -> FunctionEdit | None:
        """Return the edit of a module: none if nothing is swapped, and nothing was before."""
        site = claims[0].site
        before = _before(site.module)
        if not before and not any(outcome.swaps for outcome in decided):
            return None
        names = [_function(one.site).called for one in claims]
        key = site.layer.forward, before, *names, *decided
        if key not in self._edits:
            # Another apply's kernels for other functions stay: its edit lies below, and this one stands before it.
            kept = [one for one in before if one.called not in names]
            own = [
                Replaced(name, outcome.edit.forwards, outcome.edit.kernels)
                for name, outcome in zip(names, decided, strict=True)
            ]
            self._edits[key] = with_functions(self.owner, site.layer.classes[-1], (*kept, *own))
        return self._edits[key]


def _before(module: nn.Module) -> tuple[Replaced, ...]:
    made = bound(module)
    return made.edit.replaced if made is not None and isinstance(made.edit, FunctionEdit) else ()


def _function(site: Site) -> Function:
    assert isinstance(site.layer, _Calling)
    return site.layer.function
