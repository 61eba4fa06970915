"""Kernels that fail verification give way: the next one of their row runs, or the original, and is verified in turn.

`fall_back` does so for what `verify` has just found. `gated` does it before a model is handed out, accepts only what
was verified and passed, and keeps the verdicts: they are used again while plan, environment, model, inputs and
thresholds are the same. Of a model that is its classes, their code, and shapes, dtypes and plain attributes, not the
values of its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kerncfg.applier.apply import Bindings, apply
from kerncfg.documents.plan import ModePlan, Plan, Rejection, Step
from kerncfg.errors import ApplyError, ContractError
from kerncfg.evidence.contents import contents, shape_of, tensors_of
from kerncfg.evidence.verify import verify
from kerncfg.verdicts import Judged, Verdicts, environment, identity

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kerncfg.documents.target import Mode
    from kerncfg.evidence.rows import Verification

__all__ = ["fall_back", "gated", "keep_verdicts", "unverified", "without"]

# What speaks against a kernel of a row, by the row's name and the kernel's reference.
Failures = Mapping[tuple[str, str], str]


def without(plan: Plan, failures: Failures) -> Plan:
    """Return the plan in which these kernels are passed over, with the reason; what stands behind them moves up.

    Raises:
        ContractError: No kernel is left for a mode, and the row may not fall back.
    """
    return replace(plan, steps=tuple(_step(step, failures) for step in plan.steps))


def fall_back(
    bindings: Bindings, found: Verification, inputs: Mapping[str, Any], policy: Mapping[str, Any]
) -> tuple[Bindings, Verification]:
    """Take the kernels that failed off the model, and verify what runs instead until nothing fails.

    Returns the bindings that are on the model then, and what was found: the rows that failed first, then those of the
    last verification. On an error the model is as it was before it had kernels.

    Raises:
        ContractError: No kernel is left for a mode, and the row may not fall back.
        ApplyError: The plan is strict, and a row of the user's swaps nothing any more.
    """
    rows = list(found.rows)
    removed: dict[tuple[str, str], str] = {}
    kept: list[Any] = []
    while failures := _refused(bindings, found, policy):
        removed |= failures
        kept += [row for row in rows if not row.passed]
        bindings = _again(bindings, without_on(bindings, failures))
        found = verify(bindings, inputs, policy)
        rows = list(found.rows)
    told = tuple((name, kernel, reason) for (name, kernel), reason in removed.items())
    return bindings, replace(found, rows=(*kept, *found.rows), removed=told)


def gated(
    plan: Plan,
    model: nn.Module,
    inputs: Mapping[str, Any],
    policy: Mapping[str, Any],
    *,
    mode: Mode | str | None = None,
    compile: bool = False,
) -> Bindings:
    """Apply a plan, and let only those of its kernels run that are verified and pass.

    `policy` is the node `policy.verify`. Kept verdicts are used where there are any, and new ones kept.

    Raises:
        ApplyError: The plan cannot be carried out, or a kernel failed and `on_fail` is `error`; nothing is swapped.
        ContractError: No kernel is left for a mode, and the row may not fall back.
    """
    verdicts = Verdicts.usual()
    bindings = apply(plan, model, mode=mode, compile=compile)
    try:
        while failures := _failing(bindings, inputs, policy, verdicts):
            if policy["on_fail"] == "error":
                hint = "mend or remove these rows; policy.verify.on_fail=fallback would do without them"
                raise ApplyError(_said(failures), hint=hint)
            bindings = _again(bindings, without_on(bindings, failures))
    except BaseException:
        bindings.revert()
        raise
    return bindings


def keep_verdicts(
    bindings: Bindings, found: Verification, inputs: Mapping[str, Any], policy: Mapping[str, Any]
) -> tuple[Judged, ...]:
    """Keep what a verification of these bindings found, for the gate and for `policy.deterministic`; return it."""
    failures = _refused(bindings, found, {**policy, "gate": True})
    judged = []
    for name, kernel in _running(bindings):
        rows = [row for row in found.rows if (row.name, row.kernel) == (name, str(kernel.reference))]
        known = [row.steady for row in rows if row.steady is not None]
        reason = failures.get((name, str(kernel.reference)))
        judged.append(
            Judged(
                name=name,
                kernel=str(kernel.reference),
                identity=identity(kernel),
                passed=reason is None,
                reason=reason,
                repeatable=all(known) if known else None,
            )
        )
    Verdicts.usual().keep(_question(bindings, inputs, policy), judged)
    return tuple(judged)


def unverified(found: Verification) -> ApplyError:
    """Return the error of a verification whose policy takes a kernel that computes something else for one."""
    failed = dict.fromkeys(f"{row.name} ({row.kernel})" for row in found.rows if not row.passed)
    reasons = [*failed, *([f"the model: {found.model.reason}"] if found.model and not found.model.passed else [])]
    hint = "mend or remove these rows; policy.verify.on_fail=report would only report it"
    return ApplyError(f"verification failed, and policy.verify.on_fail is error: {'; '.join(reasons)}", hint=hint)


def without_on(bindings: Bindings, failures: Failures) -> Plan:
    """Return the plan of bindings without some kernels; on an error the bindings are reverted."""
    try:
        return without(bindings.plan, failures)
    except ContractError:
        bindings.revert()
        raise


def _again(bindings: Bindings, plan: Plan) -> Bindings:
    first, second = bindings.modes
    bindings.revert()
    return apply(plan, bindings.model, mode=first if first is second else None, compile=first.compiled)


def _failing(
    bindings: Bindings, inputs: Mapping[str, Any], policy: Mapping[str, Any], verdicts: Verdicts
) -> dict[tuple[str, str], str]:
    if not bindings.sites:
        return {}
    judged = verdicts.find(_question(bindings, inputs, policy))
    if judged is None:
        judged = keep_verdicts(bindings, verify(bindings, inputs, policy), inputs, policy)
    return {(one.name, one.kernel): one.reason or "failed" for one in judged if not one.passed}


def _refused(bindings: Bindings, found: Verification, policy: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return what may not run: what failed, and under the gate what was not verified."""
    refused = {key: f"failed verification: {reason}" for key, reason in found.failures.items()}
    if policy.get("gate"):
        verified = {(row.name, row.kernel) for row in found.rows}
        for name, kernel in _running(bindings):
            if (name, str(kernel.reference)) not in verified:
                reason = "policy.verify.gate takes what is verified, and the run of the model did not reach this"
                refused[name, str(kernel.reference)] = reason
    return refused


def _running(bindings: Bindings) -> list[tuple[str, Any]]:
    """Return every kernel that some mode runs, with its row."""
    pairs = ((site.name, kernel) for site in bindings.sites for kernel in site.kernels.values() if kernel is not None)
    return list(dict.fromkeys(pairs))


def _said(failures: Failures) -> str:
    reasons = "; ".join(f"{name} ({kernel}): {reason}" for (name, kernel), reason in failures.items())
    return f"verification failed, and policy.verify.on_fail is error: {reasons}"


def _step(step: Step, failures: Failures) -> Step:
    mine = {kernel: reason for (name, kernel), reason in failures.items() if name in (step.name, step.key, step.title)}
    if not mine:
        return step
    return replace(step, modes={mode: _mode(step, mode, found, mine) for mode, found in step.modes.items()})


def _mode(step: Step, mode: Mode, found: ModePlan, failures: Mapping[str, str]) -> ModePlan:
    left = tuple(choice for choice in found.choices if str(choice.kernel.reference) not in failures)
    gone = [choice for choice in found.choices if choice not in left]
    if gone and not left:
        said = "; ".join(f"{choice.kernel.reference}: {failures[str(choice.kernel.reference)]}" for choice in gone)
        raise ContractError(
            f"no kernel of {step.key} is left for {mode}: {said}",
            hint=f"mend the kernel or the row, or let it fall back: {step.key}.fallback=original",
        )
    passed = (
        Rejection(reference=(ref := str(choice.kernel.reference)), reason=failures[ref], origin=choice.origin)
        for choice in gone
    )
    return replace(found, choices=left, rejected=(*found.rejected, *passed))


def _question(bindings: Bindings, inputs: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "plan": bindings.plan.digest,
        "environment": environment(bindings.plan.target.device),
        "model": _fingerprint(bindings.model),
        "modes": [mode.value for mode in bindings.modes],
        "inputs": {place: _outline(part) for place, part in contents(dict(inputs), "input").items()},
        "thresholds": policy["thresholds"],
    }


def _outline(part: Any) -> str:
    return f"{part.dtype} {shape_of(part)}" if hasattr(part, "untyped_storage") else str(part)


def _fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for words in _described(model):
        digest.update(words.encode())
    return digest.hexdigest()


def _described(model: nn.Module) -> Iterator[str]:
    """Yield what a forward depends on beside the values of weights."""
    seen: set[type] = set()
    for path, module in model.named_modules():
        cls = type(module)
        if cls not in seen:
            seen.add(cls)
            code = getattr(cls.forward, "__code__", None)
            yield f"{cls.__module__}.{cls.__qualname__} {code.co_code.hex() if code else ''} {_constants(code)}\n"
        plain = {name: value for name, value in vars(module).items() if isinstance(value, (int, float, str))}
        plain.pop("training", None)
        yield f"{path} {cls.__qualname__} {sorted(plain.items())} {_shapes(module)}\n"
    if (spoken := getattr(getattr(model, "config", None), "to_dict", None)) is not None:
        yield str(sorted(spoken().items(), key=str))


def _constants(code: Any) -> str:
    return repr([one for one in code.co_consts if isinstance(one, (int, float, str, type(None)))]) if code else ""


def _shapes(module: nn.Module) -> list[str]:
    own: list[torch.Tensor] = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return [f"{one.dtype} {shape_of(one)} {one.device.type}" for one in tensors_of(own)]
