"""What one job of `kerncfg run` did, in memory and as the files of its folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg import errors
from kerncfg.applier.report import Report
from kerncfg.compiler.reading import Place, parse_bytes
from kerncfg.compiler.schema import validate
from kerncfg.documents.plain import DEEP, loads
from kerncfg.documents.step import Choice, Rejection
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError, Issue, KerncfgError
from kerncfg.evidence.rows import Measurement, Verification
from kerncfg.saved import load_plan

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan, Step

__all__ = [
    "SCHEMA",
    "STAGES",
    "WRONG",
    "Environment",
    "Outcome",
    "blaming",
    "check_documents",
    "folders",
    "read",
    "write_json",
]

SCHEMA = 1
STAGES = ("plan", "report", "verification", "measurement")

# What a value that no run writes raises, wherever it is first made use of.
WRONG = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)

_FILE = "outcome.json"
_PACKAGES = ("kerncfg", "torch", "triton", "transformers", "hydra-core", "huggingface_hub", "kernels", "liger-kernel")
# Variables that change what runs or how fast, none of which holds a secret.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "LOCAL_KERNELS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ENABLE_MPS_FALLBACK",
    "TORCHDYNAMO_DISABLE",
    "TRITON_INTERPRET",
    "USE_HUB_KERNELS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a job ran: versions of what is installed, and the variables that change what runs."""

    python: str
    system: str
    processors: int | None
    packages: Mapping[str, str]
    variables: Mapping[str, str]

    @classmethod
    def here(cls) -> Environment:
        """Look at this process."""
        packages = {}
        for name in _PACKAGES:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                continue
        return cls(
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            processors=os.cpu_count(),
            packages=packages,
            variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one job did, as far as it came; `error` is why it came no further.

    `command` is what to type to do it again, `started` the time in UTC, `sweep` what all jobs of one sweep share.
    An outcome that is not `finished` is of a job that still runs, or that was killed.
    """

    folder: Path | None  # `None` where nothing is written
    overrides: list[str]
    swept: list[str] = field(default_factory=list)  # those of the overrides that a sweep chose for this job
    number: int = 1
    total: int | None = 1  # `None` where only Hydra can tell how many a sweep has
    plan: Plan | None = None
    report: Report | None = None
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    error: KerncfgError | None = None
    command: list[str] = field(default_factory=list)
    started: str | None = None
    sweep: str | None = None
    environment: Environment | None = None
    finished: bool = False

    @property
    def home(self) -> Path:
        """The folder of a job that writes."""
        assert self.folder is not None
        return self.folder

    @property
    def page(self) -> Path | None:
        """Its page, if there is one."""
        file = self.folder and self.folder / "report.html"
        return file if file and file.is_file() else None

    @property
    def passed(self) -> bool:
        """Whether the job ran to its end and every kernel passed verification."""
        return self.error is None and (self.verification is None or self.verification.passed)

    @property
    def unswapped(self) -> dict[str, str]:
        """Why rows that the user wrote, to run a kernel on this device, swapped nothing.

        Rows of presets are none of them, nor are those that conditions of the user's keep out (`capability`, `dtype`).
        """
        if self.plan is None or self.report is None:
            return {}
        idle = self.report.idle
        return {
            step.key: f"{idle[step.key]}{_refusals(step, idle[step.key])}"
            for step in self.plan.steps
            if step.key in idle and any(_asks(one, idle[step.key]) for one in _candidates(step))
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything the job produced as plain data."""
        parts = {name: getattr(self, name) for name in (*STAGES, "error")}
        return {
            "folder": str(self.folder) if self.folder else None,
            "overrides": self.overrides,
            "swept": self.swept,
            "passed": self.passed,
            "seconds": self.seconds,
            **{name: part.to_dict() if part is not None else None for name, part in parts.items()},
        }

    def save(self) -> None:
        """Write `outcome.json`: all but the documents, which have files of their own."""
        names = (
            "number",
            "total",
            "overrides",
            "swept",
            "passed",
            "finished",
            "seconds",
            "command",
            "started",
            "sweep",
        )
        data = {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "error": self.error.to_dict() if self.error else None,
            "environment": asdict(self.environment) if self.environment else None,
        }
        write_json(self.home / _FILE, data)


def _candidates(step: Step) -> Iterator[Choice | Rejection]:
    for mode in (Mode.INFERENCE, Mode.TRAINING):
        if found := step.modes.get(mode):
            yield from (choice for choice in found.choices if not choice.original)
            yield from found.rejected


def _asks(one: Choice | Rejection, why: str) -> bool:
    """Whether a candidate is the user's own, and not kept out by a condition that the user put on it."""
    if one.origin is None or one.origin.startswith(("preset: ", "hf://")):
        return False
    if isinstance(one, Rejection):
        return not one.reason.startswith(("needs capability ", "needs torch "))
    return not (one.conditions and why.startswith("needs "))


def _refusals(step: Step, why: str) -> str:
    """Return why the plan took none of a row's candidates, where it took none and the reason does not say so yet."""
    found = list(_candidates(step))
    reasons = [one.reason for one in found if isinstance(one, Rejection)]
    new = [reason for reason in dict.fromkeys(reasons) if reason not in why]
    return f": {'; '.join(new)}" if new and len(reasons) == len(found) else ""


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write plain data as JSON that people can read and compare."""
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def folders(place: Path) -> list[Path]:
    """Return the folders of runs at a place: itself, or those below it, in the order of their names and numbers.

    Raises:
        ConfigError: There is none.
    """
    if not place.is_dir():
        found = "a file" if place.exists() else "not there"
        raise ConfigError(f"{place} is {found}, expected the folder of a run", hint=_MADE_BY)
    if _is_run(place):
        return [place]
    below = {file.parent for name in (_FILE, "plan.json") for file in place.rglob(name)}
    if not below:
        message = f"{place} holds no run: neither {_FILE} nor plan.json is in it or below it"
        raise ConfigError(message, hint=_MADE_BY)
    return sorted(below, key=_natural)


def read(folder: Path) -> Outcome:
    """Return what a run left in its folder; what it did not come to is `None`.

    Raises:
        ConfigError: The folder is none of a run, or one of its files cannot be read.
        IntegrityError: The plan was edited.
    """
    if not _is_run(folder):
        hint = "name one of the runs below it" if folder.is_dir() and any(folder.rglob(_FILE)) else _MADE_BY
        raise ConfigError(f"{folder} holds no run: neither {_FILE} nor plan.json is in it", hint=hint)
    said = _json(folder / _FILE, "outcome") or _from_hydra(folder)
    environment, error = said.get("environment"), said.get("error")
    names = ("number", "total", "overrides", "swept", "finished", "seconds", "command", "started", "sweep")
    plan = folder / "plan.json"
    outcome = Outcome(
        folder=folder,
        **{name: said[name] for name in names},
        environment=Environment(**environment) if environment else None,
        error=_error(error) if error else None,
        plan=load_plan(plan) if plan.exists() else None,
    )
    for name, kind in _DOCUMENTS.items():
        setattr(outcome, name, _document(folder / f"{name}.json", name, kind))
    if not outcome.finished and outcome.error is None:
        outcome.error = KerncfgError("the run did not come to its end: it was stopped, or still runs")
    return outcome


@contextmanager
def blaming(folder: Path) -> Iterator[None]:
    """Make what is raised inside, where the files of a run's folder are made use of, an error about these files.

    Their schemas, which take longer than reading them, are asked only then.

    Raises:
        ConfigError: A file holds what it cannot, with the key's path where its schema knows; or something was raised.
    """
    try:
        yield
    except WRONG as error:
        check_documents(folder)
        names = " or ".join(f"{name}.json" for name in _DOCUMENTS if (folder / f"{name}.json").is_file())
        said = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"{names or _FILE} holds a value that no run writes: {said}"
        raise ConfigError([Issue(message=message, file=str(folder), hint="run it again")]) from error


def check_documents(folder: Path) -> None:
    """Ask the schemas about the report, the verification and the measurement in a folder, as far as they are there.

    Raises:
        ConfigError: One is not valid; it holds every fault of all, with file and key path.
    """
    issues: list[Issue] = []
    for name in _DOCUMENTS:
        file = folder / f"{name}.json"
        try:
            if (data := _json(file, name)) is not None:
                _check(data, name, file)
        except ConfigError as error:
            issues += error.issues
    if issues:
        raise ConfigError(issues)


_DOCUMENTS: Mapping[str, Any] = {"report": Report, "verification": Verification, "measurement": Measurement}
_MADE_BY = "`kerncfg run` makes such folders below outputs/"


def _is_run(folder: Path) -> bool:
    return (folder / _FILE).is_file() or (folder / "plan.json").is_file()


def _natural(folder: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in folder.parts]


def _json(file: Path, name: str) -> Any:
    """Return the valid content of a file, or `None` if there is no such file."""
    try:
        data = loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise ConfigError([Issue(message=f"cannot be read: {reason}", file=str(file))]) from error
    if name == "outcome":
        _check(data, name, file)
    return data


def _check(data: Any, name: str, file: Path) -> None:
    try:
        validate(data, name)
    except ConfigError as error:
        issues = [
            Issue(message=issue.message, path=issue.path, file=str(file), hint=issue.hint) for issue in error.issues
        ]
        raise ConfigError(issues) from error
    except RecursionError as error:
        raise ConfigError([Issue(message=DEEP, file=str(file))]) from error


def _document(file: Path, name: str, kind: Any) -> Any:
    """Return a document; the schema, which takes longer than all else, is asked only what is wrong with it."""
    data = _json(file, name)
    if data is None:
        return None
    try:
        return kind.from_dict(data)
    except RecursionError as error:
        raise ConfigError([Issue(message=DEEP, file=str(file))]) from error
    except WRONG as error:
        _check(data, name, file)
        raise ConfigError([Issue(message=f"holds what no {name} can hold", file=str(file))]) from error


def _from_hydra(folder: Path) -> dict[str, Any]:
    """Return what Hydra wrote about a run that has no `outcome.json`."""
    file = folder / ".hydra" / "overrides.yaml"
    words: list[str] = []
    if file.is_file():
        lines = file.read_bytes()
        found = parse_bytes(b"words:\n" + lines if lines.strip() != b"[]" else b"", Place("file", str(file)))
        words = [str(item.value) for item in found.value["words"].value] if found.value else []
    ended = (folder / "measurement.json").is_file()
    blank: dict[str, Any] = {"seconds": {}, "started": None, "sweep": None, "swept": [], "total": None}
    number = int(folder.name) + 1 if folder.name.isdecimal() else 1
    return {**blank, "overrides": words, "command": ["kerncfg", "run", *words], "finished": ended, "number": number}


def _error(data: Mapping[str, Any]) -> KerncfgError:
    """Return an error from the plain data of its `to_dict`."""
    if data.get("issues"):
        return ConfigError([Issue(**issue) for issue in data["issues"]])
    kind = getattr(errors, data["error"], KerncfgError)
    if not (isinstance(kind, type) and issubclass(kind, KerncfgError)) or kind is ConfigError:
        kind = KerncfgError
    return kind(data["message"], hint=data["hint"])


def command(words: Sequence[str], config_dir: Path | None, trust: Sequence[str], lock: Any) -> list[str]:
    """Return what to type to do a job again."""
    options = ["--config-dir", str(config_dir)] if config_dir else []
    options += [word for name in trust for word in ("--trust", name)]
    options += ["--lock", str(lock)] if isinstance(lock, (str, Path)) else []
    return ["kerncfg", "run", *options, *words]
