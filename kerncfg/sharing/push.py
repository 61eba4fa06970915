"""An experiment to the Hub: packed and shown first, sent only then.

What leaves the machine are the files of a `Parcel` and nothing else: no value of the environment, no token, no consent,
no folder of this machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kerncfg.api import document, plan_of
from kerncfg.compiler.checking import check
from kerncfg.compiler.compose import Origins
from kerncfg.compiler.interpolate import resolved
from kerncfg.compiler.policy import trusted
from kerncfg.compiler.reading import Place, read
from kerncfg.documents.plan import Plan
from kerncfg.errors import ConfigError
from kerncfg.locking import made as made_lock
from kerncfg.locking import usual
from kerncfg.machine import detect, hub_is_on
from kerncfg.outcome import Outcome, blaming, check_documents
from kerncfg.outcome import read as read_run
from kerncfg.saved import default_trust
from kerncfg.sharing import secrets
from kerncfg.sharing.card import card, command
from kerncfg.sharing.experiment import checked_name, files_of, shareable
from kerncfg.sources.hub.configs import place_of
from kerncfg.sources.hub.uploading import send

__all__ = ["STAYS", "Parcel", "packed", "push"]

STAYS = "values of the environment, tokens, consents, folders, the command line and the log of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What would leave the machine: the files by their paths in the repository, and where to.

    `commit` is that of the Hub once they are sent.
    """

    name: str
    address: str
    repository: str
    files: Mapping[str, bytes]
    digest: str
    consents: tuple[str, ...]
    commit: str | None = None

    @property
    def command(self) -> str:
        """The one line that runs the experiment, elsewhere."""
        return command(self.address, self.name, self.consents)

    def to_dict(self) -> dict[str, Any]:
        """Return what leaves the machine as plain data: sizes, not contents."""
        return {
            "name": self.name,
            "address": self.address,
            "commit": self.commit,
            "digest": self.digest,
            "files": {path: len(content) for path, content in sorted(self.files.items())},
            "command": self.command,
        }


def push(
    what: str | Path,
    repository: str,
    *overrides: str,
    config_dir: str | Path | None = None,
    name: str | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | None = None,
    private: bool = False,
    dry_run: bool = False,
) -> Parcel:
    """Publish a run's folder or an experiment to the Hub, and return what was sent, with its commit.

    Args:
        what: The folder of a run, or the name of an experiment.
        repository: Where to, `org/repo`; with `datasets/` or `kernels/` before it for another type than a model's.
        overrides: What is said besides, for an experiment.
        config_dir: The folder that the experiment is in.
        name: What others call the experiment; by default its name, or that of the repository.
        trust: Whose code may run, as for `plan`; it is not sent.
        lock: The lock, by default `kerncfg.lock` in the working directory, else the Hub is asked.
        private: Whether the repository, if it is made, is private.
        dry_run: Only pack; nothing is sent.

    Raises:
        ConfigError: The experiment names what only this machine has.
        SourceError: The Hub cannot be reached or refuses.
    """
    parcel = packed(what, repository, *overrides, config_dir=config_dir, name=name, trust=trust, lock=lock)
    return parcel if dry_run else sent(parcel, private=private)


def sent(parcel: Parcel, *, private: bool = False) -> Parcel:
    """Send a parcel, and return it with its commit."""
    title = f"Share the experiment {parcel.name}"
    commit = send(parcel.repository, parcel.files, title=title, private=private)
    return replace(parcel, commit=commit)


def packed(
    what: str | Path,
    repository: str,
    *overrides: str,
    config_dir: str | Path | None = None,
    name: str | None = None,
    trust: Sequence[str] = (),
    lock: str | Path | None = None,
) -> Parcel:
    """Return what would leave the machine; arguments are those of `push`."""
    place = place_of(f"hf://{repository.removeprefix('hf://')}")
    if place.folder or "@" in repository:
        raise ConfigError(f"{repository!r} names more than a repository", hint="write org/repo")
    folder = Path(what)
    if folder.is_dir() and overrides:
        raise ConfigError(f"{what} is the folder of a run, which has its overrides", hint=f"leave {overrides[0]} out")
    outcome = _run(folder) if folder.is_dir() else None
    usual_name = re.sub(r"[^\w-]", "-", place.repository.rpartition("/")[2]) if outcome else str(what)
    called = checked_name(name or usual_name)
    if outcome:
        data, origins = _of_run(folder)
    else:
        data, origins = document(f"experiment={what}", *overrides, config_dir=config_dir)
    config = check(data, origins=origins)
    said = shareable(data, origins)
    files = files_of(said, called)
    known = made_lock(config, config.trust.plus(*trust), previous=usual(lock), hub=hub_is_on(os.environ))
    plan = _plan(outcome, folder) or plan_of(config, detect(data["target"]), origins=origins, trust=trust, lock=known)
    _check_places(plan)
    shown = _without_places(plan, f"experiment/{called}.yaml")
    files["plan.json"] = shown.to_json()
    if known.pins:
        files["kerncfg.lock"] = known.to_json()
    address = place.at("main")
    consents = tuple(_consents(plan))
    with blaming(folder) if outcome else nullcontext():
        files |= _evidence(outcome)
        evidence = (outcome.verification, outcome.measurement) if outcome else (None, None)
        files["README.md"] = card(called, address, shown, consents, *evidence)
    secrets.check(files)
    return Parcel(
        name=called,
        address=address,
        repository=place.repository,
        files={path: text.encode() for path, text in sorted(files.items())},
        digest=plan.digest,
        consents=consents,
    )


def _run(folder: Path) -> Outcome:
    """Return what a run left, all of it valid: others are to read it."""
    with blaming(folder):
        outcome = read_run(folder)
    check_documents(folder)
    return outcome


def _evidence(outcome: Outcome | None) -> dict[str, str]:
    """Return the documents of a run as files."""
    stages = ("report", "verification", "measurement") if outcome else ()
    return {
        f"{stage}.json": json.dumps(found.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for stage in stages
        if (found := getattr(outcome, stage))
    }


def _of_run(folder: Path) -> tuple[dict[str, Any], Origins]:
    """Return the document that a run was made from, as it stands in the run's folder."""
    file = folder / "config.yaml"
    node = read(file, Place("file", str(file)))
    return resolved(node), Origins(node)


def _plan(outcome: Outcome | None, folder: Path) -> Plan | None:
    if outcome is not None and outcome.plan is None:
        raise ConfigError(f"the run in {folder} made no plan, so there is nothing to share", hint="run it again")
    return outcome.plan if outcome else None


def _check_places(plan: Plan) -> None:
    """Refuse a plan whose kernels others do not have, as where LOCAL_KERNELS put a folder in the place of one."""
    local = sorted({kernel.place for kernel in plan.kernels() if kernel.reference.scheme in ("path", "python")})
    if local:
        message = f"the plan runs {', '.join(local)}, which others do not have"
        raise ConfigError(message, hint="name kernels on the Hub, and unset LOCAL_KERNELS")


def _consents(plan: Plan) -> Iterator[str]:
    """Yield the repositories whose code the plan runs, but for those that everybody trusts by default."""
    usual_ones = default_trust()
    found = {kernel.reference.location for kernel in plan.kernels() if trusted(kernel.reference, usual_ones)}
    yield from sorted(found)


def _without_places(plan: Plan, place: str) -> Plan:
    """Return a plan that tells of no place on this machine, and of each row where others find it."""

    def kept(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: kept(child, "origin" if key == "asked" else name) for name, child in value.items()}
        if isinstance(value, list):
            return [kept(child, key) for child in value]
        if key == "origin" and isinstance(value, str) and not value.startswith(("preset:", "hf://")):
            return place
        return value

    return Plan.from_dict({**kept(plan.to_dict()), "notes": [], "cache": None})
