"""The verbs composed for callers: words and documents in, plans and bindings out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.checking import check
from kerncfg.compiler.compose import Origins, compose
from kerncfg.compiler.composed import plain
from kerncfg.compiler.policy import Request, refused
from kerncfg.compiler.resolve import resolve
from kerncfg.compiler.shared import of_job
from kerncfg.documents.lock import Lock
from kerncfg.documents.plain import half
from kerncfg.documents.target import Mode, Target
from kerncfg.errors import ApplyError, ConfigError, TrustError
from kerncfg.locking import localised, usual
from kerncfg.locking import made as made_lock
from kerncfg.machine import detect, device_of, here, hub_is_on
from kerncfg.saved import load_plan, names
from kerncfg.sources import consent, pin, untrusted
from kerncfg.sources import fetch as fetch_kernels
from kerncfg.sources.environment import Settings, local_kernels

if TYPE_CHECKING:
    from torch import nn

    from kerncfg.applier.apply import Bindings
    from kerncfg.compiler.tree import Fault
    from kerncfg.documents.config import Config
    from kerncfg.documents.plan import Kernel, Plan
    from kerncfg.documents.reference import KernelRef
    from kerncfg.evidence.rows import Measurement, Verification

__all__ = [
    "bench",
    "checked",
    "document",
    "fetch",
    "kernelize",
    "load_plan",
    "lock",
    "plan",
    "plan_of",
    "verify",
]


def plan(
    *overrides: str,
    config_dir: str | Path | None = None,
    target: str | Mapping[str, Any] | Target | None = None,
    config: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | Lock | None = None,
) -> Plan:
    """Return the plan for a configuration, without touching a model.

    Args:
        overrides: What would stand on the command line: `kernels=bundled`, `kernels.RMSNorm.cpu=builtin:RMSNorm`.
        config_dir: A folder of one's own, whose files go before the packaged ones.
        target: The name of a target, a `target` node, or a `Target`; by default this machine.
        config: A document as data instead of files, such as the configuration of a Hydra application, or single nodes
            of it; nodes it lacks are the packaged ones. It grants no trust.
        trust: Publishers (`org`), repositories (`org/repo`), folders, or `python:package.module`.
        lock: A lock, or its file; by default `kerncfg.lock` in the working directory, if there is one.

    Raises:
        ConfigError: What was asked is not valid; it carries every fault.
        LockError: The lock cannot be read.
        ResolutionError: A row that may not fall back has no kernel.
    """
    return _planned(overrides, config_dir, target, config, trust, lock)[0]


def _planned(
    overrides: Sequence[str],
    config_dir: str | Path | None,
    target: str | Mapping[str, Any] | Target | None,
    config: Mapping[str, Any] | None,
    trust: Sequence[str],
    lock: str | Path | Lock | None,
) -> tuple[Plan, dict[str, Any]]:
    """Return the plan, and the document that it was made from."""
    named = (f"target={target}",) if isinstance(target, str) else ()
    node = target if isinstance(target, Mapping) else None
    asked, data, origins = checked(*overrides, *named, config_dir=config_dir, config=config, target=node)
    found = target if isinstance(target, Target) else detect(data["target"])
    return plan_of(asked, found, origins=origins, trust=trust, lock=lock), data


def lock(
    *overrides: str,
    config_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    previous: Lock | None = None,
    upgrade: Sequence[str] = (),
) -> Lock:
    """Return the lock of a configuration: the commit and the builds of every Hub kernel that it names, for any target.

    Args:
        overrides: What would stand on the command line.
        config_dir: A folder of one's own, whose files go before the packaged ones.
        config: A document as data instead of files; it grants no trust.
        trust: Publishers, repositories, as for `plan`; nothing is asked about others.
        previous: A lock whose pins stay as they are.
        upgrade: Names of rows, or repositories, that are asked about all the same.

    Raises:
        ConfigError: What was asked is not valid; it carries every fault.
        SourceError: The Hub gave no answer about what was to be upgraded.
    """
    found, _, _ = checked(*overrides, config_dir=config_dir, config=config)
    named = found.trust.plus(*names(trust))
    return made_lock(found, named, previous=previous, upgrade=upgrade, hub=hub_is_on(os.environ))


def document(
    *overrides: str, config_dir: str | Path | None = None, config: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Origins]:
    """Return the composed document and where each of its values was said; it is not validated yet.

    Raises:
        ConfigError: Files or overrides that cannot be composed, or an override of a node that `config` gives.
    """
    return _composed(overrides, config_dir, config, None)


def checked(
    *overrides: str,
    config_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> tuple[Config, dict[str, Any], Origins]:
    """Return what is asked for, with the document that says it and where each of its values was said.

    Raises:
        ConfigError: What was asked is not valid; it carries every fault, whichever pass finds it.
    """
    faults: list[Fault] = []
    data, origins = _composed(overrides, config_dir, config, faults)
    if target is not None:
        data, origins = {**data, "target": target}, origins.saying(["target"])
    return check(data, origins=origins, found=faults), data, origins


def _composed(
    overrides: Sequence[str],
    config_dir: str | Path | None,
    config: Mapping[str, Any] | None,
    faults: list[Fault] | None,
) -> tuple[dict[str, Any], Origins]:
    _check_texts(overrides)
    config = plain(config) if config else config
    if clash := [word for word in overrides if config and _node(word) in config]:
        raise ConfigError(
            f"override {clash[0]!r} and config= both say {_node(clash[0])!r}", hint="say it in one of the two"
        )
    data, origins = compose(overrides, config_dir=Path(config_dir) if config_dir else None, faults=faults)
    if broken := half(config):
        raise ConfigError(f"config= holds half of a character: {broken}, expected text in UTF-8")
    if config:
        data, origins = {**data, **config}, origins.saying(config)
        origins = replace(origins, shared=(*origins.shared, *of_job()))
    return data, origins


def plan_of(
    config: Config,
    target: Target,
    *,
    origins: Origins,
    trust: Sequence[str] = (),
    lock: str | Path | Lock | None = None,
) -> Plan:
    """Return the plan of what is asked for, for a target; `origins` knows what of it came from the Hub."""
    known = lock if isinstance(lock, Lock) else usual(lock)
    config = localised(config, local_kernels())
    named = config.trust.plus(*names(trust))
    request = Request(
        target=target,
        trust=named,
        require_pin=config.policy.require_pin,
        hub=hub_is_on(os.environ),
        locked=known is not None,
    )
    rows = config.every() if config.enabled else ()
    offered = [candidate for row in rows for cell in row.at(target.device).values() for candidate in cell]
    flagged = {candidate.ref for candidate in offered if candidate.trust_remote_code}
    asked = sorted({candidate.ref for candidate in offered if not refused(candidate, request)}, key=str)
    hub = _hub_for(asked)
    asking = replace(named, references=frozenset(str(ref.everything) for ref in flagged))
    pins = pin(asked, target=target, trust=asking, known=known, locked=known is not None)
    made = resolve(config, pins, request)
    consent = replace(named, references=frozenset(map(str, flagged)))
    return replace(
        made,
        trust=consent,
        endpoint=hub.shown if hub else None,
        cache=hub.place if hub else None,
        searchpath=dict(origins.shared),
        notes=(*made.notes, *origins.notes),
    )


def _hub_for(references: Iterable[KernelRef]) -> Settings | None:
    """Return the Hub that may be asked about references, if one may; an address that no Hub can have is refused."""
    if not any(ref.scheme == "hub" for ref in references):
        return None
    found = Settings.read()
    found.check()
    return found


def _check_texts(overrides: Sequence[Any]) -> None:
    for override in overrides:
        if not isinstance(override, str):
            found = type(override).__name__
            hint = "overrides are texts such as 'kernels=bundled'; pass a document as config="
            raise ConfigError(f"an override is a text, found a {found}", hint=hint)
        if broken := half(override):
            raise ConfigError(f"an override holds half of a character: {broken}, expected text in UTF-8")


def fetch(
    plan: Plan, *, dry_run: bool = False, progress: Callable[[Kernel, int], None] = lambda kernel, size: None
) -> dict[Kernel, str]:
    """Bring every kernel of the Hub in a plan to this machine's cache, and return why those that failed did.

    Folders and modules are here or nowhere: nothing is fetched for them, and nothing of them is run.

    Args:
        plan: A plan, with the trust of whoever asks.
        dry_run: Only check that everything may be fetched.
        progress: Told after each file how many bytes of which kernel have come.

    Raises:
        TrustError: Nobody consented to a kernel's publisher; nothing was fetched.
    """
    of_hub = (kernel for kernel in plan.kernels() if kernel.reference.scheme == "hub")
    kernels = sorted(of_hub, key=lambda kernel: str(kernel.reference))
    for kernel in kernels:
        if reason := untrusted(kernel, plan.trust):
            raise TrustError(f"{kernel.reference}: {reason}", hint=consent(kernel, plan.trust))
    _hub_for(kernel.reference for kernel in kernels)
    return {} if dry_run else fetch_kernels(kernels, plan.trust, progress=progress)


def kernelize(
    model: nn.Module,
    *overrides: str,
    mode: Mode | str | None = None,
    compile: bool = False,
    config_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | Lock | None = None,
    verify: bool | None = None,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
) -> Bindings:
    """Plan for the device that the model is on, apply the plan, and return the bindings, which can be undone.

    Arguments are those of `plan` and `apply`; a target said in `overrides` or `config` is kept. With `verify`, which is
    what `policy.verify.gate` says by default, only kernels run that are verified with `inputs` and pass; `inputs` are
    the keyword arguments of one forward, or a tuple of its positional ones, by default token ids made for the model.
    What was found is kept, and not asked again. The policy's `on_fail: error` makes a failure an `ApplyError`.
    """
    from kerncfg.applier.apply import apply

    _check_texts(overrides)
    said = any(_node(word) == "target" for word in overrides) or (config is not None and "target" in config)
    target = None if said else _target_of(model)
    made, data = _planned(overrides, config_dir, target, config, trust, lock)
    policy = data["policy"]["verify"]
    if not (policy.get("gate", False) if verify is None else verify):
        return apply(made, model, mode=mode, compile=compile)
    from kerncfg.evidence.gate import gated

    given = _inputs(model, inputs)
    return gated(made, model, given, {**policy, "gate": True}, mode=mode, compile=compile)


def verify(
    bindings: Bindings,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    policy: Mapping[str, Any] | None = None,
) -> Verification:
    """Compare each kernel that was applied with the model's own forward, and the model with all of them with itself.

    Args:
        bindings: What `apply` or `kernelize` returned, not reverted.
        inputs: The keyword arguments of one forward, or a tuple of its positional ones; by default token ids made for
            the model.
        policy: The node `policy.verify`; by default the packaged one.

    Raises:
        ApplyError: No inputs can be made, those given do not fit, or the model's own forward raised.
    """
    from kerncfg.evidence.verify import verify as compare

    given = _inputs(bindings.model, inputs)
    return compare(bindings, given, document()[0]["policy"]["verify"] if policy is None else policy)


def bench(
    bindings: Bindings, inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, seconds: float = 0.5
) -> Measurement:
    """Measure each kernel that was applied, and the whole model, against the original.

    Args:
        bindings: What `apply` or `kernelize` returned, not reverted.
        inputs: The keyword arguments of one forward, or a tuple of its positional ones; by default token ids made for
            the model.
        seconds: How long each comparison may take, but for its warm-up.

    Raises:
        ApplyError: No inputs can be made, those given do not fit, or the model's own forward raised.
    """
    from kerncfg.evidence.bench import bench as measure

    return measure(bindings, _inputs(bindings.model, inputs), seconds=seconds)


def _inputs(model: nn.Module, inputs: Mapping[str, Any] | Sequence[Any] | None) -> Mapping[str, Any]:
    from kerncfg.models import example, given

    if inputs is not None:
        return given(model, inputs)
    try:
        return example(model)
    except ConfigError as error:
        raise ApplyError(error.issues[0].message, hint="pass inputs=, the keyword arguments of one forward") from error


def _target_of(model: nn.Module) -> Target | None:
    """Return the target for the device of the model's first parameter or buffer; `None` if it has none."""
    first = next(iter([*model.parameters(), *model.buffers()]), None)
    return None if first is None else here(device_of(first.device))


def _node(override: str) -> str:
    match = re.match(r"[~+]*(\w+)", override)
    return match[1] if match else ""
