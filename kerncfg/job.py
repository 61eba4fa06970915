"""One job of the main job: model, plan, apply, verify, bench, and their files in the job's folder.

It knows nothing of how it was started: a run, a sweep in other processes and the commands `verify` and `bench` carry
out the same job.
"""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.api import checked, plan_of
from kerncfg.applier.apply import Bindings, apply
from kerncfg.compiler.interpolate import with_environment
from kerncfg.compiler.policy import unconsented
from kerncfg.compiler.shared import remember
from kerncfg.compiler.writing import document_lines
from kerncfg.errors import ConfigError, KerncfgError, KerncfgWarning, TrustError
from kerncfg.evidence.bench import bench
from kerncfg.evidence.gate import fall_back, keep_verdicts, unverified
from kerncfg.evidence.verify import verify
from kerncfg.locking import usual
from kerncfg.machine import detect
from kerncfg.models import build
from kerncfg.outcome import STAGES, Outcome, write_json
from kerncfg.page.drawing import draw

if TYPE_CHECKING:
    from kerncfg.compiler.compose import Origins
    from kerncfg.documents.lock import Lock
    from kerncfg.documents.plan import Plan
    from kerncfg.documents.target import Target
    from kerncfg.models import Loaded

__all__ = ["check", "perform"]

_BUILT = ("model", "target")  # the nodes that a model is built from


class _Stages:
    """Keeps what each stage of a job gives: in the outcome with the seconds it took, as a file, and shown."""

    def __init__(self, outcome: Outcome, show: Callable[[Outcome, str], None]) -> None:
        self.outcome, self.show = outcome, show
        self.start()

    def start(self) -> None:
        self.started = time.perf_counter()

    def keep(self, stage: str, result: Any) -> None:
        setattr(self.outcome, stage, result)
        self.outcome.seconds[stage] = round(time.perf_counter() - self.started, 3)
        if self.outcome.folder is not None:
            write_json(self.outcome.folder / f"{stage}.json", result.to_dict())
        self.show(self.outcome, stage)


def perform(
    outcome: Outcome,
    *,
    config_dir: Path | None,
    trust: Sequence[str],
    lock: Lock | None,
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
    stages: Sequence[str] = STAGES,
    shared: Mapping[str, str] | None = None,
) -> None:
    """Carry out one job and fill its outcome; each document is written as soon as it is there.

    `stages` says which of `verification` and `measurement` it goes through, `shared` at which commits the places on the
    Hub are that its files come from.

    Raises:
        TrustError: A fetched row names code that nobody here consented to; nothing of it was run.
    """
    done = _Stages(outcome, show)
    remember(shared or {})
    asked, data, origins = checked(*outcome.overrides, config_dir=config_dir)
    if outcome.folder is not None:
        text = "\n".join(document_lines(data, origins)) + "\n"
        (outcome.folder / "config.yaml").write_text(text, encoding="utf-8")
    target = detect(data["target"])
    plan = plan_of(asked, target, origins=origins, trust=trust, lock=lock)
    done.keep("plan", plan)
    _check_consent(plan, outcome)
    done.start()
    loaded = _loaded(data, target, origins)
    policy = data["policy"]["verify"]
    with ExitStack() as applied:
        bindings = applied.enter_context(_applied(plan, loaded))
        done.keep("report", bindings.report)
        if "verification" in stages:
            done.start()
            bindings = _verified(bindings, loaded.inputs, policy, done, applied)
        if "measurement" in stages:
            done.start()
            measured = bench(bindings, loaded.inputs)
            done.keep("measurement", measured)
            if outcome.folder is not None:
                draw(measured, outcome.folder)
    verified = outcome.verification
    if verified is not None and not verified.passed and policy["on_fail"] == "error":
        raise unverified(verified)


def _loaded(data: dict[str, Any], target: Target, origins: Origins) -> Loaded:
    """Return the model that the config asks for; errors say where it was said, and no value of the environment."""
    node, secrets = with_environment(data, "model")
    try:
        return build(node, target)
    except KerncfgError as error:
        raise _in_words(_located(error, origins), secrets) from (None if secrets else error.__cause__)


def _applied(plan: Plan, loaded: Loaded) -> Bindings:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)  # the report that follows says the same
        return apply(plan, loaded.model)


def _verified(
    bindings: Bindings, inputs: Mapping[str, Any], policy: Mapping[str, Any], done: _Stages, applied: ExitStack
) -> Bindings:
    """Verify, and return the bindings that are on the model then, to be taken off at the end like those before."""
    found = verify(bindings, inputs, policy)
    keep_verdicts(bindings, found, inputs, policy)
    gives_way = policy["on_fail"] == "fallback" or (policy.get("gate") and policy["on_fail"] == "report")
    now, found = fall_back(bindings, found, inputs, policy) if gives_way else (bindings, found)
    done.keep("verification", found)
    if now is not bindings:
        applied.enter_context(now)
        done.keep("report", now.report)
    return now


def _check_consent(plan: Plan, outcome: Outcome) -> None:
    """Ask, by refusing, whether code may run that a fetched row names."""
    places = {
        row: place
        for step in plan.steps
        for found in step.modes.values()
        for rejection in found.rejected
        if step.own and (place := unconsented(rejection, plan.trust))
        for row in [f"{step.title}, said at {rejection.origin}"]
    }
    if not places:
        return
    options = [word for place in dict.fromkeys(places.values()) for word in ("--trust", place)]
    typed = shlex.join([*outcome.command[:2], *options, *outcome.command[2:]]) if outcome.command else None
    code = ", ".join(dict.fromkeys(places.values()))
    message = f"{'; '.join(places)}: would run code of {code}, and a fetched file is no consent to that"
    raise TrustError(message, hint=f"if you trust it, type {typed or ' '.join(options)}")


def check(
    overrides: Sequence[str],
    stage: str,
    *,
    config_dir: Path | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | None = None,
    show: Callable[[Outcome, str], None] = lambda outcome, stage: None,
) -> Outcome:
    """Carry out the main job as far as `verification` or `measurement`, the only one of the two; nothing is written.

    `show` is called as by `run`, after each stage.

    Raises:
        KerncfgError: What the job raised; the outcome of a verification that `on_fail: error` refuses is in its error.
    """
    outcome = Outcome(folder=None, overrides=list(overrides))
    try:
        perform(outcome, config_dir=config_dir, trust=trust, lock=usual(lock), show=show, stages=(stage,))
    except KerncfgError as error:
        if getattr(outcome, stage) is None:
            raise
        outcome.error = error
    return outcome


def _located(error: KerncfgError, origins: Origins) -> KerncfgError:
    """Return an error of the `model` or `target` node with the place where the value was said."""
    if isinstance(error, ConfigError):
        return ConfigError([origins.issue(_path(issue.path), issue.message, hint=issue.hint) for issue in error.issues])
    name, _, rest = error.message.partition(": ")
    if rest and name.partition(".")[0] in _BUILT:
        return type(error)(str(origins.issue(_path(name), rest)), hint=error.hint)
    return error


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _in_words(error: KerncfgError, secrets: Mapping[str, str]) -> KerncfgError:
    """Return an error in which no value of the environment is shown."""
    message, hint = error.message, error.hint
    for value in sorted(secrets, key=len, reverse=True):
        message = message.replace(value, secrets[value])
        hint = hint and hint.replace(value, secrets[value])
    return error if message == error.message else type(error)(message, hint=hint)
