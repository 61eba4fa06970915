"""Each swapped kernel against the original, on the inputs it really gets, and against float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kerncfg.evidence.capture import (
    Sample,
    capture,
    cloned,
    measured_modes,
    one_line,
    originals,
    same,
    tensors_of,
    undisturbed,
)
from kerncfg.evidence.judge import Difference, judge, relative_error
from kerncfg.evidence.rows import Check, Row, Verification, Whole
from kerncfg.evidence.trial import Trial, attempt, in_float64

if TYPE_CHECKING:
    from kerncfg.applier.apply import Bindings
    from kerncfg.documents.plan import Kernel
    from kerncfg.documents.target import Mode

__all__ = ["Verification", "verify"]

# Every kernel runs once for each: what does not depend on chance gives the same bits twice.
_SEEDS = (20_260_101, 20_260_102)

Thresholds = Mapping[str, Mapping[str, float]]


def verify(bindings: Bindings, inputs: Mapping[str, Any], policy: Mapping[str, Any]) -> Verification:
    """Compare each swapped kernel with the model's own forward, and the model with all of them with itself.

    The inputs of each site come from one run of the model with `inputs`, the keyword arguments of one
    forward. A kernel that serves training runs its backward too, from a random gradient. Original and kernel
    get clones of the same inputs, the same weights and the same random state, twice with different ones.
    `policy` is the node `policy.verify`; `judge` says how its thresholds are used. A kernel that raises or
    writes to its inputs fails its row. The model is left exactly as it was.
    """
    if not bindings.sites:
        return Verification(rows=(), model=None, notes=("nothing is swapped, so there is nothing to verify",))
    thresholds: Thresholds = policy["thresholds"]
    captured = capture(bindings, inputs)
    modes = measured_modes(bindings)
    findings: dict[tuple[int, Kernel], list[_Finding]] = {}
    with undisturbed(bindings.model):
        for mode in modes:
            bindings.model.train(mode.training)
            with originals(bindings):
                for place, sample in enumerate(captured.samples):
                    if kernel := sample.binding.kernels.get(mode):
                        findings.setdefault((place, kernel), []).append(_compare(sample, mode, thresholds))
    notes = [f"{path}: not reached by the run of the model, so not verified" for path in captured.unreached]
    return Verification(
        rows=tuple(
            _row(captured.samples[place], kernel, found, modes)
            for (place, kernel), found in sorted(findings.items(), key=lambda item: item[0][0])
        ),
        model=_unrun(captured.samples, findings, modes) or _whole(bindings, inputs, modes, thresholds),
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


def _compare(sample: Sample, mode: Mode, thresholds: Thresholds) -> _Finding:
    """Run original, kernel and reference for every seed; the first fault ends it."""
    finding = _Finding(mode=mode)
    binding, training = sample.binding, mode.training
    owns, kernels, truths = [], [], []
    for seed in _SEEDS:
        own = attempt(binding.original(), binding.module, sample, seed=seed, training=training)
        kernel = attempt(
            binding.forward(mode), binding.module, sample, seed=seed, training=training, upstream=own.upstream
        )
        finding.hazards += [hazard for hazard in kernel.hazards if hazard not in finding.hazards]
        if fault := _fault(own, kernel):
            finding.fault, finding.forward = fault, Difference(reasons=(fault,))
            return finding
        owns.append(own)
        kernels.append(kernel)
        truths.append(in_float64(sample, seed=seed, training=training, upstream=own.upstream))
    finding.reference = _no_reference(owns, truths) or "float64"
    known = finding.reference == "float64"
    trios = [(own, kernel, truth if known else None) for own, kernel, truth in zip(owns, kernels, truths, strict=True)]
    finding.forward = Difference.merged(part for trio in trios for part in _outputs(*trio, thresholds))
    finding.repeatable = all(map(_same, kernels[0].outputs, kernels[1].outputs))
    if owns[0].gradients:
        finding.backward = Difference.merged(part for trio in trios for part in _gradients(*trio, thresholds))
        finding.backward_repeatable = all(map(_same, kernels[0].gradients.values(), kernels[1].gradients.values()))
    return finding


def _fault(own: Trial, kernel: Trial) -> str | None:
    if own.fault:
        return f"the original cannot be run alone: {own.fault}"
    if kernel.fault:
        return kernel.fault
    if kernel.structure != own.structure:
        return f"returns {kernel.structure}, the original {own.structure}"
    return None


def _no_reference(owns: Sequence[Trial], truths: Sequence[Trial]) -> str | None:
    """Return why float64 says nothing here, if so: it failed, or chance plays a part that a dtype changes."""
    if failed := next((truth.fault for truth in truths if truth.fault), None):
        return f"none, the original does not run in float64: {failed}"
    if any(len(own.outputs) != len(truth.outputs) for own, truth in zip(owns, truths, strict=True)):
        return "none, in float64 the original returns something else"
    for one, other in zip(owns[0].outputs, owns[1].outputs, strict=True):
        if one.is_floating_point() and not _alike(one, other):
            return "none, the original draws random numbers"
    return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    limit: float = torch.finfo(one.dtype).eps ** 0.5
    return one.shape == other.shape and relative_error(one, other) <= limit


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and same(one, other)


def _outputs(own: Trial, kernel: Trial, truth: Trial | None, thresholds: Thresholds) -> list[Difference]:
    truths: Sequence[torch.Tensor | None] = truth.outputs if truth else [None] * len(own.outputs)
    trios = zip(own.outputs, kernel.outputs, truths, strict=True)
    several = len(own.outputs) > 1
    return [judge(f"output {place}" if several else "output", *trio, thresholds) for place, trio in enumerate(trios)]


def _gradients(own: Trial, kernel: Trial, truth: Trial | None, thresholds: Thresholds) -> list[Difference]:
    """Judge each gradient; one that is missing stands for zeros."""
    found = []
    for name, gradient in own.gradients.items():
        theirs = kernel.gradients.get(name)
        if gradient is None and theirs is None:
            continue
        like = gradient if gradient is not None else theirs
        assert like is not None
        zeros = torch.zeros_like(like)
        exact = truth.gradients.get(name) if truth else None
        found.append(
            judge(
                f"gradient of {name}",
                zeros if gradient is None else gradient,
                zeros if theirs is None else theirs,
                exact,
                thresholds,
            )
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
    known = [finding.repeatable for finding in findings if finding.repeatable is not None]
    reasons = [
        f"in {finding.mode}, {reason}" if len(findings) > 1 else reason
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
        modes=tuple(finding.mode.value for finding in findings),
        device=sample.device,
        dtype=sample.dtype,
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
    """Spare the model a kernel that raises, or that writes to weights which nobody would put back."""
    for (place, _), found in findings.items():
        if fault := next((finding.fault for finding in found if finding.fault), None):
            reason = f"not run with its kernels: {samples[place].paths[0]}: {fault}"
            return _whole_row(modes[0], Difference(reasons=(reason,)), passed=False)
    return None


def _whole(bindings: Bindings, inputs: Mapping[str, Any], modes: Sequence[Mode], thresholds: Thresholds) -> Whole:
    """Compare the model's output in the first mode that swaps something; accuracy is shown, not judged.

    Differences of single kernels grow on the way through a model by as much as the model itself amplifies
    them.
    """
    mode = next(mode for mode in modes if any(site.kernels.get(mode) for site in bindings.sites))
    model = bindings.model
    with undisturbed(model), torch.no_grad():
        model.train(mode.training)
        with originals(bindings):
            torch.manual_seed(_SEEDS[0])
            own = tensors_of(model(**cloned(dict(inputs))))
        torch.manual_seed(_SEEDS[0])
        try:
            kernel = tensors_of(model(**cloned(dict(inputs))))
        except Exception as error:  # foreign code again
            return _whole_row(mode, Difference(reasons=(f"raised {one_line(error)}",)), passed=False)
    if len(own) != len(kernel):
        reason = f"returns {len(kernel)} tensors, without kernels {len(own)}"
        return _whole_row(mode, Difference(reasons=(reason,)), passed=False)
    pairs = enumerate(zip(own, kernel, strict=True))
    found = Difference.merged(judge(f"output {place}", *pair, None, thresholds) for place, pair in pairs)
    return _whole_row(mode, found, passed=found.max_abs is None or math.isfinite(found.max_abs))


def _whole_row(mode: Mode, found: Difference, *, passed: bool) -> Whole:
    measures = {name: getattr(found, name) for name in ("max_abs", "max_rel", "identical", "within")}
    return Whole(mode=mode.value, passed=passed, reason=found.reasons[0] if found.reasons else None, **measures)
