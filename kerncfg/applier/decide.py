"""What each site will run in each mode, decided before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch.jit import ScriptModule

from kerncfg.applier.bind import Edit, Owner, reachable
from kerncfg.applier.choices import condition_fault, joined, said
from kerncfg.applier.contract import Fit, device_fault, fit, module_fault, tensors
from kerncfg.applier.deterministic import undeclared
from kerncfg.applier.edits import FUSION
from kerncfg.applier.match import Claim, row
from kerncfg.applier.passing import guarded, names_in
from kerncfg.compiler.policy import unfit
from kerncfg.documents.plan import Choice, Kernel, ModePlan, Plan, Step
from kerncfg.documents.target import DEVICES
from kerncfg.errors import ApplyError, ContractError, KerncfgError, SourceError, TrustError
from kerncfg.machine import here
from kerncfg.sources import consent, fetch, load, untrusted

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kerncfg.applier.adapters import LayerClass, Site, Sites
    from kerncfg.documents.target import Mode, Target
    from kerncfg.sources import Source

__all__ = ["Decided", "Decisions", "Verdict", "is_off"]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a site runs in one mode, and why; without a kernel it runs the original."""

    status: str
    reason: str
    kernel: Kernel | None = None
    forward: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """What a site runs when not training and when training; sites with the same outcome share it."""

    verdicts: tuple[Verdict, Verdict]
    edit: Edit
    swaps: bool  # whether some mode runs a kernel


class _Option(NamedTuple):
    """A choice that fits the class, so that only the module can still speak against it."""

    choice: Choice
    fit: Fit
    verdict: Verdict


@dataclass(slots=True)
class _Ready:
    """A step's choices in one mode, for one class of layers, as far as modules had to look at them.

    Each is an option, a reason against it, or, of a written or appended original, `None`.
    """

    mode: Mode
    found: ModePlan
    verdict: Verdict | None  # of a mode that runs the original in any case
    looked_at: list[_Option | str | None]


class _Plain(NamedTuple):
    """What every module of a class gets, if it is a leaf, all on this device, and has these attributes."""

    claim: Claim
    device: torch.device | None
    names: tuple[str, ...]
    decided: Decided


def _is_plain(entries: dict[str, Any], device: torch.device | None, names: tuple[str, ...]) -> bool:
    parameters, buffers = entries["_parameters"], entries["_buffers"]
    if "forward" in entries or entries["_modules"]:
        return False
    for tensor in parameters.values():
        if tensor is not None and tensor.device != device:
            return False
    for tensor in buffers.values() if buffers else ():
        if tensor is not None and tensor.device != device:
            return False
    for name in names:  # noqa: SIM110 (`all` would make a generator for each layer)
        if name not in parameters and name not in entries and name not in buffers:
            return False
    return True


def is_off(found: ModePlan | None) -> bool:
    """Whether somebody wrote that this mode runs the original, and nothing was preferred to it."""
    return bool(
        found and found.choices and found.choices[0].original and found.choices[0].origin and not found.rejected
    )


class Decisions:
    """Decides for one plan and one pair of modes; loads each kernel once, and only when it may be used."""

    def __init__(self, plan: Plan, modes: tuple[Mode, Mode], owner: Owner) -> None:
        self.plan = plan
        self.modes = modes
        self.owner = owner
        self.hints: dict[str, str] = {}  # the cure of a fault of a row of the user's, by row
        self._code: dict[Kernel, Any] = {}
        self._sources: dict[str, Source] = {}  # of this run: what one of them finds out is not asked again
        self._ready: dict[tuple[int, LayerClass], tuple[_Ready, _Ready]] = {}
        self._plain: dict[type, _Plain] = {}
        self._kept: dict[str, Verdict] = {}
        self._passed: dict[tuple[Verdict, tuple[str, ...]], Verdict] = {}
        self._guards: dict[tuple[Verdict, tuple[str, ...]], Verdict] = {}
        self._decided: dict[tuple[int, int], Decided] = {}
        self._elsewhere: dict[int, str | None] = {}  # of modules, which functions and attention ask again
        self._computed: dict[type, bool] = {}  # whether a class computes its forward

    def elsewhere(self, module: nn.Module) -> str | None:
        """Say where a module of the model is, if that is not the plan's device."""
        if id(module) not in self._elsewhere:
            self._elsewhere[id(module)] = device_fault(module, self.plan.target.device)
        return self._elsewhere[id(module)]

    def admit(self, steps: Sequence[Step], root: nn.Module) -> None:
        """Ask whether every kernel that the steps may run may run here, before any of them is fetched or loaded.

        Raises:
            TrustError: Nobody gave consent to one.
            ApplyError: One was chosen for a target that this machine is not; the message has both sides.
        """
        choices = [
            (step, choice)
            for step in steps
            for mode in dict.fromkeys(self.modes)
            for choice in (step.modes[mode].choices if mode in step.modes else ())
        ]
        for step, choice in choices:
            for needed in choice.kernel.with_dependencies():
                if reason := untrusted(needed, self.plan.trust):
                    raise TrustError(f"{row(step)}: {said(choice)}: {reason}", hint=consent(needed, self.plan.trust))
        particular = [choice for _, choice in choices if choice.needs or choice.kernel.variant]
        device = self.plan.target.device
        if particular and any(tensor.device.type == DEVICES[device].torch for tensor in tensors(root)):
            self._check_machine(particular, here(device))
        firsts = (step.modes[mode].choices[:1] for step in steps for mode in self.modes if mode in step.modes)
        remote = {choice.kernel for found in firsts for choice in found if choice.kernel.files}
        if remote:
            self._code |= fetch(
                remote, self.plan.trust, absent=True, made=self._sources
            )  # all at once; what fails says so when its turn comes

    def _check_machine(self, choices: Iterable[Choice], machine: Target) -> None:
        unfits = {said(choice): reason for choice in choices if (reason := unfit(choice, machine))}
        if unfits:
            differences = self.plan.target.difference(machine)
            told = ", ".join(
                f"{key} is {planned} there and {found} here" for key, (planned, found) in differences.items()
            )
            raise ApplyError(
                "the plan does not fit this machine: " + "; ".join(f"{said}: {why}" for said, why in unfits.items()),
                hint=f"plan again here; {told}",
            )

    def decide(self, sites: Sites, claims: Sequence[Claim | None]) -> list[Decided | None]:
        """Return what each site that a step claims runs in both modes, by place.

        Raises:
            ContractError: No kernel is left for a mode, and the row may not fall back.
            ApplyError: A condition asks for an attribute that the module has not.
        """
        outcomes: list[Decided | None] = []
        plains = self._plain
        for place, (module, claim) in enumerate(zip(sites.modules, claims, strict=True)):
            if claim is None:
                outcomes.append(None)
                continue
            plain = plains.get(type(module))
            if plain is not None and plain[0] is claim and _is_plain(module.__dict__, plain[1], plain[2]):
                outcomes.append(plain[3])  # 10,000 layers of one class are asked this alone
            else:
                outcomes.append(self._decide(sites[place], claim))
        return outcomes

    def _decide(self, site: Site, claim: Claim) -> Decided:
        step, excluded = claim
        if excluded is not None:
            kept = self.keep(f"excluded by {excluded}")
            return self._share(kept, kept)
        key = id(step), site.layer
        ready = self._ready.get(key)
        if ready is None:
            first = self._prepare(step, self.modes[0])
            second = first if self.modes[0] is self.modes[1] else self._prepare(step, self.modes[1])
            ready = self._ready[key] = first, second
        idle, training = ready[0].verdict, ready[1].verdict
        if idle is None or training is None:
            fault = _answer(lambda: self._barred(site, step))
            barred = None if fault is None else self.keep(fault)
            idle = idle or barred or self._choose(ready[0], site, step)
            training = idle if ready[1] is ready[0] else training or barred or self._choose(ready[1], site, step)
        decided = self._share(idle, training)
        self._remember(site, claim, ready, decided)
        return decided

    def _remember(self, site: Site, claim: Claim, ready: tuple[_Ready, _Ready], decided: Decided) -> None:
        """Keep an outcome for the class's other modules, if nothing but device and attributes can tell them apart."""
        names: set[str] = set()
        for mode, verdict in zip(ready, decided.verdicts, strict=True):
            if mode.verdict is verdict:
                continue
            option = mode.looked_at[0] if mode.looked_at else None
            if not isinstance(option, _Option) or option.verdict is not verdict or option.choice.conditions:
                return
            names.update(option.fit.names)
        if site.layer.condition is None:
            first = next(tensors(site.module), None)
            device = first.device if first is not None else None
            self._plain[type(site.module)] = _Plain(claim, device, tuple(names), decided)

    def _share(self, idle: Verdict, training: Verdict) -> Decided:
        key = id(idle), id(training)
        found = self._decided.get(key)  # it holds both verdicts, so their ids stay theirs
        if found is None:
            edit = Edit(self.owner, (idle.forward, training.forward), (idle.kernel, training.kernel))
            swaps = idle.kernel is not None or training.kernel is not None
            found = self._decided[key] = Decided((idle, training), edit, swaps)
        return found

    def keep(self, reason: str) -> Verdict:
        """Return the verdict of a site that stays as it is, for a reason."""
        return self._kept.setdefault(reason, Verdict(status="kept", reason=reason))

    def _prepare(self, step: Step, mode: Mode) -> _Ready:
        found = step.modes.get(mode, ModePlan(choices=()))
        verdict = None
        if not found.choices:
            verdict = self.keep(joined(found, []) or f"the plan has no kernel for {mode}")
        elif found.choices[0].original:
            choice = found.choices[0]
            if is_off(found):
                verdict = Verdict(status="off", reason=f"{choice.reason} ({choice.origin})")
            else:
                verdict = self.keep(joined(found, []) or choice.reason)
        return _Ready(mode, found, verdict, [])

    def _barred(self, site: Site, step: Step) -> str | None:
        """Say what keeps a module from any kernel, whichever it is."""
        module, layer = site.module, site.layer
        if fault := self.elsewhere(module):
            return fault
        if FUSION in module.__dict__:
            return "part of a fusion that was applied before, whose kernel runs its members as one"
        if "base_layer" in module._modules:
            return f"wrapped by the adapter {layer.cls.__module__}.{layer.cls.__qualname__} around base_layer"
        if isinstance(module, ScriptModule):
            return "compiled by TorchScript"
        if layer.cls not in self._computed:
            self._computed[layer.cls] = hasattr(type(getattr_static(layer.cls, "forward")), "__set__")
        if self._computed[layer.cls]:
            return "its class computes its forward, in a property or another descriptor, which nothing can stand before"
        _ = layer.cls.forward, layer.cls.train  # binding asks these of the class, whose metaclass may raise
        if not reachable(module):
            return "wrapped: something set a forward on the instance, and the layer's own cannot be reached inside it"
        if layer.condition is not None and step.match is None and not layer.condition(module):
            return "the layer's own kernel_condition says no"
        return None

    def _choose(self, ready: _Ready, site: Site, step: Step) -> Verdict:
        reasons: list[str] = []
        for index, choice in enumerate(ready.found.choices):
            if index == len(ready.looked_at):
                ready.looked_at.append(self._look(choice, site.layer, ready.mode, step))
            option = ready.looked_at[index]
            if option is None:
                return self.keep(joined(ready.found, reasons) or choice.reason)
            fault = option if isinstance(option, str) else _fault(option, site, step)
            if fault is None:
                assert isinstance(option, _Option)
                names = names_in(site.module, option.fit.parts)
                verdict = self._guarded(option.verdict, names) if names else option.verdict
                return verdict if not reasons else self._second(verdict, reasons)
            reasons.append(f"{said(choice)}: {fault}")
        where = f"{site.path or 'the model itself'} ({site.layer.cls.__qualname__})"
        raise ContractError(
            f"{where}: no kernel of {row(step)} is left for {ready.mode}: {joined(ready.found, reasons)}",
            hint=f"{self.hints.get(row(step), 'mend the kernel or the row')}, or let it fall back: "
            f"{row(step)}.fallback=original",
        )

    def _guarded(self, verdict: Verdict, names: tuple[str, ...]) -> Verdict:
        """Return the verdict of a kernel that reads inside these children, and gives way to what comes around them."""
        assert verdict.forward is not None
        return self._guards.setdefault((verdict, names), replace(verdict, forward=guarded(verdict.forward, names)))

    def _second(self, verdict: Verdict, reasons: list[str]) -> Verdict:
        """Return the verdict of a choice that was not the first, with why the others were passed over."""
        key = verdict, tuple(reasons)
        found = self._passed.get(key)
        if found is None:
            reason = f"{verdict.reason}; passed over: {'; '.join(reasons)}"
            found = self._passed[key] = replace(verdict, reason=reason)
        return found

    def _look(self, choice: Choice, layer: LayerClass, mode: Mode, step: Step) -> _Option | str | None:
        if choice.original:
            return None
        code = self.code_of(choice.kernel)
        if isinstance(code, str):
            return code
        fitting = _answer(lambda: self._fit(code, layer, mode))
        if isinstance(fitting, str):
            return fitting
        if fitting.fault is not None:
            if fitting.hint and step.own and not (choice.origin or "").startswith("preset:"):
                self.hints.setdefault(row(step), fitting.hint)
            return fitting.fault
        by = f", by match {_spelled(step)}" if step.match is not None else ""
        verdict = Verdict(
            status="swapped",
            reason=f"{choice.reason}{f' ({choice.origin})' if choice.origin else ''}{by}",
            kernel=choice.kernel,
            forward=fitting.forward,
        )
        return _Option(choice, fitting, verdict)

    def _fit(self, code: Any, layer: LayerClass, mode: Mode) -> Fit:
        return fit(code, layer, mode)

    def code_of(self, kernel: Kernel) -> Any:
        """Return a kernel's code, or why it cannot be had or may not run; either is found out once."""
        if kernel not in self._code:
            try:
                code = _answer(lambda: load(kernel, self.plan.trust, made=self._sources).code)
                asked = self.plan.deterministic and not isinstance(code, str)
                fault = undeclared(kernel, code, self.plan.target.device) if asked else None
                self._code[kernel] = fault or code
            except SourceError as error:
                self._code[kernel] = error.message.removeprefix(str(kernel.reference)).lstrip(": ")
        return self._code[kernel]


def _answer(ask: Callable[[], _Answer]) -> _Answer | str:
    """Return an answer, or as a reason that somebody's class raised instead of answering."""
    try:
        return ask()
    except KerncfgError:
        raise
    except Exception as error:
        return f"asking it raised {type(error).__name__}: {error}"


def _fault(option: _Option, site: Site, step: Step) -> str | None:
    return _answer(lambda: _module_fault(option, site, step))


def _module_fault(option: _Option, site: Site, step: Step) -> str | None:
    """Say what of this very module speaks against a choice; the user's own conditions may raise an `ApplyError`."""
    fault = module_fault(site.module, option.fit)
    if fault is not None or not option.choice.conditions:
        return fault
    return condition_fault(option.choice, site.module, site.path, step)


def _spelled(step: Step) -> str:
    return ", ".join(f"{key} {value}" for key, value in (step.match.to_dict() if step.match else {}).items())
