"""Each swapped kernel against the original, on the inputs it really gets, and against float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.capture import Sample, capture, input_contents, measured_modes, originals
from kerncfg.evidence.compare import Judge, Thresholds, compare, opaque
from kerncfg.evidence.contents import contents, copied, equal
from kerncfg.evidence.judge import Difference, judge, judge_rows, relative_error
from kerncfg.evidence.keeping import described, undisturbed
from kerncfg.evidence.rows import Check, Row, Verification, Whole
from kerncfg.evidence.trial import Trial, attempt, in_float64
from kerncfg.evidence.whole import MOVED, failed, whole
from kerncfg.evidence.wording import UNSTEADY

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["Verification", "verify"]

# Every kernel runs once for each: what does not depend on chance gives the same bits twice.
_SEEDS = (20_260_101, 20_260_102)
_OF = "gradient of "


def verify(bindings: Bindings, inputs: Mapping[str, Any], policy: Mapping[str, Any]) -> Verification:
    """Compare each swapped kernel with the model's own forward, and the model with all of them with itself.

    The inputs of each site come from one run of the model with `inputs`, the keyword arguments of one
    forward. A kernel that serves training runs its backward too, from a random gradient. Original and kernel
    get clones of the same inputs, the same weights and the same random state, twice with different ones.
    `policy` is the node `policy.verify`; `judge` says how its thresholds are used. A kernel that raises, or that
    changes what the original leaves alone (its inputs, the module, the process), fails its row. So does one that is
    less repeatable than the original where the plan is deterministic; elsewhere that is a hazard. The model and the
    inputs are left exactly as they were, but for inputs that refuse to be copied, which are noted.
    """
    if not bindings.sites:
        return Verification(rows=(), model=None, notes=("nothing is swapped, so there is nothing to verify",))
    thresholds: Thresholds = policy["thresholds"]
    captured = capture(bindings, inputs, padding=True)
    modes = measured_modes(bindings)
    findings: dict[tuple[int, Kernel], list[_Finding]] = {}
    with undisturbed(bindings.model, [part for binding in bindings.sites for part in binding.modules]):
        for mode in modes:
            bindings.model.train(mode.training)
            with originals(bindings):
                for place, sample in enumerate(captured.samples):
                    if kernel := sample.binding.kernels.get(mode):
                        findings.setdefault((place, kernel), []).extend(_compared_all(sample, mode, thresholds))
    for finding in (one for found in findings.values() for one in found if bindings.plan.deterministic):
        _refuse_unsteady(finding)
    notes = [f"{path}: not reached by the run of the model, so not verified" for path in captured.unreached]
    notes += captured.notes
    for place, kernel in [key for key, found in findings.items() if not any(one.called for one in found)]:
        del findings[place, kernel]
        notes += [
            f"{path}: {captured.samples[place].binding.name} was not called by the run of the model, so not verified"
            for path in captured.samples[place].paths
        ]
    notes += [
        f"inputs{place}: {kind} cannot be copied, so every run got it as the one before left it"
        for place, kind in copied(dict(inputs))[1]
    ]
    model = _unrun(captured.samples, findings, modes) or whole(bindings, inputs, modes, thresholds, notes)
    return Verification(
        rows=tuple(
            _row(captured.samples[place], kernel, found, modes)
            for (place, kernel), found in sorted(findings.items(), key=lambda item: item[0][0])
        ),
        model=model,
        notes=tuple(notes),
    )


@dataclass(slots=True, kw_only=True)
class _Finding:
    mode: Mode
    forward: Difference = field(default_factory=Difference)
    repeatable: bool | None = None
    backward: Difference | None = None
    backward_repeatable: bool | None = None
    hazards: list[str] = field(default_factory=list)
    reference: str = "float64"
    fault: str | None = None
    called: bool = True  # where the kernel is only a part of the forward: whether it was run at all
    padded: bool = False


def _compared_all(sample: Sample, mode: Mode, thresholds: Thresholds) -> list[_Finding]:
    found = [_compare(sample, mode, thresholds)]
    if sample.padded is not None and not found[0].forward.reasons:
        found.append(_compare(sample.padded, mode, thresholds))
        found[1].padded = True
    return found


def _compare(sample: Sample, mode: Mode, thresholds: Thresholds) -> _Finding:
    """Compare for every seed; what cannot be copied is named before anybody is blamed."""
    calls = sample.binding.calls
    before = calls() if calls else 0
    finding = _compared(sample, mode, thresholds)
    finding.called = calls is None or calls() > before or finding.fault is not None
    if sample.shared:
        names = " and ".join(sample.shared)
        finding.reference = f"none, {names} cannot be copied, so every run got it as the one before left it"
        reasons = tuple(f"cannot be compared, since {names} cannot be copied: {why}" for why in finding.forward.reasons)
        finding.forward = replace(finding.forward, reasons=reasons)
    return finding


def _compared(sample: Sample, mode: Mode, thresholds: Thresholds) -> _Finding:
    """Run original, kernel and reference for every seed; the first fault ends it."""
    finding = _Finding(mode=mode, fault=sample.fault)
    if sample.fault:
        finding.forward = Difference(reasons=(sample.fault,))
        return finding
    binding, training, grad = sample.binding, mode.training, False
    owns, kernels, truths = [], [], []
    for seed in _SEEDS:
        own = attempt(sample.original(), binding.whole, sample, seed=seed, training=training, grad=grad)
        if own.fault and not (training or grad):
            grad = True  # a layer that differentiates in its own forward cannot run without
            own = attempt(sample.original(), binding.whole, sample, seed=seed, training=training, grad=grad)
        given: dict[str, Any] = {"seed": seed, "training": training, "grad": grad, "upstream": own.upstream}
        kernel = attempt(sample.forward(mode), binding.whole, sample.of_kernel, **given)
        owns.append(own)
        kernels.append(kernel)
        finding.hazards += [hazard for hazard in _hazards(own, kernel) if hazard not in finding.hazards]
        if fault := _fault(own, kernel) or _reused(owns, kernels):
            finding.fault, finding.forward = fault, Difference(reasons=(fault,))
            return finding
        truths.append(in_float64(sample, **given))
    finding.reference = _no_reference(owns, truths) or "float64"
    known = finding.reference == "float64"
    trios = [(own, kernel, truth if known else None) for own, kernel, truth in zip(owns, kernels, truths, strict=True)]
    finding.forward = Difference.merged(part for trio in trios for part in _forwards(sample, *trio, thresholds))
    finding.repeatable = _alike_parts(kernels[0].outputs, kernels[1].outputs)
    if owns[0].gradients and kernels[0].gradients:
        parts = [
            _gradients(*trio, thresholds, _amplified(sample, own, seed, thresholds))
            for seed, trio, own in zip(_SEEDS, trios, owns, strict=True)
        ]
        finding.backward = Difference.merged(part for found in parts for part in found)
        finding.backward_repeatable = _alike_parts(kernels[0].gradients, kernels[1].gradients)
    finding.hazards += _unsteady(finding, owns)
    return finding


def _unsteady(finding: _Finding, owns: Sequence[Trial]) -> list[str]:
    """Return where the kernel is less repeatable than the original."""
    forward, backward = UNSTEADY
    found = []
    if finding.repeatable is False and _alike_parts(owns[0].outputs, owns[1].outputs):
        found.append(forward)
    if finding.backward_repeatable is False and _alike_parts(owns[0].gradients, owns[1].gradients):
        found.append(backward)
    return found


def _refuse_unsteady(finding: _Finding) -> None:
    """Fail what `policy.deterministic` forbids."""
    reasons = tuple(f"{words}, and policy.deterministic is on" for words in finding.hazards if words in UNSTEADY)
    finding.forward = replace(finding.forward, reasons=(*finding.forward.reasons, *reasons))


def _fault(own: Trial, kernel: Trial) -> str | None:
    """Say what forbids a comparison: something raised, or the kernel did what the original does not do."""
    if own.fault:
        return f"the original cannot be run alone: {own.fault}"
    written = [place for place in kernel.given if place not in own.given]
    if written:
        return f"the forward writes to its {' and '.join(written[:3])}"
    if kernel.fault:
        return kernel.fault
    if done := {place: change for place, change in kernel.module.items() if place not in own.module}:
        return described(done)
    if switched := [name for name in kernel.process if name not in own.process]:
        return f"changes {' and '.join(switched)} for the whole process"
    return None


def _reused(owns: Sequence[Trial], kernels: Sequence[Trial]) -> str | None:
    """Say that a result's memory was given out again while the result was still held."""
    if len(kernels) < 2 or not _memory(kernels[-2]) & _memory(kernels[-1]) or _memory(owns[-2]) & _memory(owns[-1]):
        return None
    return "returns the same memory from two calls, so that the second changes the result of the first"


def _memory(trial: Trial) -> set[int]:
    plain = [tensor for tensor in trial.live if tensor.layout == torch.strided and not tensor.is_meta]
    return {tensor.untyped_storage().data_ptr() for tensor in plain if tensor.numel()}


def _hazards(own: Trial, kernel: Trial) -> list[str]:
    draws = [words for words in kernel.draws if words not in own.draws]
    draws += [words for words in kernel.threads if words not in own.threads]
    unseen = [f"{words}, which cannot be looked into, and is not compared" for words in opaque(own.outputs)]
    left = [place for place in own.module if place not in kernel.module and place not in _kept_values(own)]
    counts = [f"leaves the module's {place} as it was, which the original sets" for place in left]
    aliases = [words for words in kernel.aliases if words not in own.aliases]
    return [*kernel.hazards, *draws, *unseen, *counts, *aliases, *_laid_otherwise(own, kernel)]


def _laid_otherwise(own: Trial, kernel: Trial) -> list[str]:
    pairs = [(place, step, own.strides[place]) for place, step in kernel.strides.items() if place in own.strides]
    return [
        f"{place} has the strides {mine}, the original's {theirs}"
        for place, mine, theirs in pairs
        if mine != theirs and len(mine) == len(theirs)
    ]


def _no_reference(owns: Sequence[Trial], truths: Sequence[Trial]) -> str | None:
    """Return why float64 says nothing here, if so: it failed, or chance plays a part that a dtype changes."""
    if failure := next((truth.fault for truth in truths if truth.fault), None):
        return f"none, the original does not run in float64: {failure}"
    if any(own.outputs.keys() != truth.outputs.keys() for own, truth in zip(owns, truths, strict=True)):
        return "none, in float64 the original returns something else"
    for place, one in owns[0].outputs.items():
        if isinstance(one, torch.Tensor) and one.is_floating_point() and not _alike(one, owns[1].outputs.get(place)):
            return "none, the original draws random numbers"
    return None


def _alike(one: torch.Tensor, other: Any) -> bool:
    if not isinstance(other, torch.Tensor) or equal(one, other):
        return isinstance(other, torch.Tensor)
    limit: float = torch.finfo(one.dtype).eps ** 0.5
    plain = one.layout == torch.strided and not one.is_nested
    return plain and one.shape == other.shape and relative_error(one, other) <= limit


def _alike_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(equal(part, other[place]) for place, part in one.items())


def _forwards(
    sample: Sample, own: Trial, kernel: Trial, truth: Trial | None, thresholds: Thresholds
) -> list[Difference]:
    """Compare the results, and what is left of the inputs and of the module where the original changes them."""
    before = input_contents(sample.args, sample.kwargs)
    places = [place for place in _kept_values(own) if place in kernel.module]
    everything = [_everything(trial, own, before, places) for trial in (own, kernel, *([truth] if truth else []))]
    found = compare(everything[0], everything[1], everything[2] if truth else None, thresholds, sample.dtype)
    left = [place for place in _kept_values(own) if place not in kernel.module]
    reasons = tuple(f"leaves the module's {place} as it was, which the original writes to" for place in left)
    return [*found, Difference(reasons=reasons)]


def _everything(trial: Trial, own: Trial, before: Mapping[str, Any], places: Sequence[str]) -> dict[str, Any]:
    found = dict(trial.outputs)
    for place in own.given:
        found[f"{place} after the call"] = trial.given.get(place, before.get(place))
    for place in places:
        if place in trial.module:
            found |= contents(trial.module[place].value, f"the module's {place} after the call")
    return found


def _kept_values(own: Trial) -> list[str]:
    """Return what the original keeps in its module as tensors; counters and the like are its own affair."""
    return [place for place, change in own.module.items() if isinstance(change.value, torch.Tensor)]


def _amplified(sample: Sample, own: Trial, seed: int, thresholds: Thresholds) -> Judge | None:
    """Return what judges gradients of attention: what softmax lets through is left over from cancellation.

    So the original with its inputs moved by up to one eps says how far rounding carries, as it does for whole models.
    """
    if sample.binding.kind != "attention":
        return None
    moved: list[Trial] = []

    def by(what: str, o: torch.Tensor, k: torch.Tensor, r: torch.Tensor | None) -> Difference:
        found = judge_rows(what, o, k, r, [], thresholds, [o.dtype])
        if found.passed:
            return found
        if not moved:
            alike: dict[str, Any] = {"seed": seed, "training": True, "upstream": own.upstream}
            trials = (sample.moved(number) for number in range(MOVED))
            moved.extend(attempt(one.original(), one.binding.whole, one, **alike) for one in trials)
        name = what.removeprefix(_OF)
        others = [gradient for one in moved if (gradient := one.gradients.get(name)) is not None]
        return judge_rows(what, o, k, r, others, thresholds, [o.dtype])

    return by


def _gradients(
    own: Trial, kernel: Trial, truth: Trial | None, thresholds: Thresholds, by: Judge | None = None
) -> list[Difference]:
    """Judge each gradient; one that is missing stands for zeros."""
    found = []
    usual: Judge = by or (lambda what, o, k, r: judge(what, o, k, r, thresholds))
    for name, gradient in own.gradients.items():
        theirs = kernel.gradients.get(name)
        if gradient is None and theirs is None:
            continue
        like = gradient if gradient is not None else theirs
        assert like is not None
        zeros = torch.zeros_like(like)
        exact = truth.gradients.get(name) if truth else None
        found.append(
            usual(f"{_OF}{name}", zeros if gradient is None else gradient, zeros if theirs is None else theirs, exact)
        )
    return found


def _row(sample: Sample, kernel: Kernel, findings: Sequence[_Finding], modes: Sequence[Mode]) -> Row:
    forward = Difference.merged(finding.forward for finding in findings)
    backwards = [finding for finding in findings if finding.backward is not None]
    backward = None
    if backwards:
        measured = Difference.merged(finding.backward for finding in backwards if finding.backward)
        backward = Check.of(
            measured,
            passed=measured.passed,
            repeatable=all(finding.backward_repeatable for finding in backwards),
        )
    served = tuple(dict.fromkeys(finding.mode.value for finding in findings))
    several = len(served) > 1
    known = [finding.repeatable for finding in findings if finding.repeatable is not None]
    reasons = [
        ", ".join([*([f"in {finding.mode}"] if several else []), *(["with padding"] if finding.padded else []), reason])
        for finding in findings
        for reason in (*finding.forward.reasons, *(finding.backward.reasons if finding.backward else ()))
    ]
    return Row.of(
        forward,
        passed=forward.passed and (backward is None or backward.passed),
        reason=next(iter(reasons), None),
        repeatable=all(known) if known else None,
        name=sample.binding.name,
        path=sample.paths[0],
        sites=len(sample.paths),
        kernel=str(kernel.reference),
        modes=served,
        device=sample.device,
        dtype=sample.dtype,
        shape=sample.shape,
        reference=next((finding.reference for finding in findings if finding.reference != "float64"), "float64"),
        hazards=tuple(dict.fromkeys(hazard for finding in findings for hazard in finding.hazards)),
        backward=backward,
        backward_reason=None if backward else _why_no_backward(sample, kernel, findings, modes),
    )


def _why_no_backward(sample: Sample, kernel: Kernel, findings: Sequence[_Finding], modes: Sequence[Mode]) -> str:
    training = next((mode for mode in modes if mode.training), None)
    if training is None:
        return "the mode is fixed to inference"
    there = sample.binding.kernels.get(training)
    if there != kernel:
        return f"training runs {there.reference if there else 'the original'}"
    if any(finding.forward.reasons for finding in findings):
        return "the forward failed"
    return "nothing here needs a gradient"


def _unrun(
    samples: Sequence[Sample], findings: Mapping[tuple[int, Kernel], Sequence[_Finding]], modes: Sequence[Mode]
) -> Whole | None:
    """Spare the model a kernel that raises, or that writes to what nobody would put back."""
    for (place, _), found in findings.items():
        if any(finding.fault for finding in found):
            return failed(modes[0], f"not run with its kernels: {samples[place].paths[0]}: see its row")
    return None
