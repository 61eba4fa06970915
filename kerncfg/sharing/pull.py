"""An experiment from the Hub into a folder; nothing of it is run, and nothing of it can grant trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncfg.compiler.fetched import KIND, forbidden
from kerncfg.compiler.overrides import NODES
from kerncfg.compiler.reading import Place, parse_bytes
from kerncfg.compiler.shared import header_of, prefix_of
from kerncfg.errors import ConfigError, Issue, SourceError
from kerncfg.sources.hub.configs import gathered
from kerncfg.sources.hub.memory import checked

__all__ = ["Pulled", "pull"]

_NAMES = ("README.md", "kerncfg.lock", "plan.json", "report.json", "verification.json", "measurement.json")
_FEW = 3  # files that are there already, named in the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What came: from which address and commit, the folder, and the files with their sizes."""

    address: str
    commit: str
    folder: Path
    files: Mapping[str, int]

    @property
    def experiments(self) -> list[str]:
        """The names of the experiments among the files."""
        return [Path(path).stem for path in self.files if path.startswith("experiment/")]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "address": self.address,
            "commit": self.commit,
            "folder": str(self.folder),
            "files": dict(self.files),
            "experiments": self.experiments,
        }


def pull(repository: str, folder: str | Path | None = None, *, force: bool = False, dry_run: bool = False) -> Pulled:
    """Fetch a shared experiment into a folder, and return what came.

    Args:
        repository: `org/repo`, `org/repo@revision`, with `datasets/` or `kernels/` before it for another type.
        folder: Where to, by default a folder named like the repository; it is made.
        force: Write over files that are there.
        dry_run: Only say what would be written.

    Raises:
        ConfigError: Files are there already, or one says what a fetched file may not; nothing was written.
        SourceError: The Hub cannot be reached, has no such place, or the folder cannot be written.
    """
    found = gathered(f"hf://{repository.removeprefix('hf://')}", _is_wanted)
    place = Path(folder) if folder is not None else Path(found.place.repository.rpartition("/")[2])
    contents = {checked(path, found.place.repository): found.read(path) for path in sorted(found.files)}
    if issues := [issue for path, data in contents.items() if path.endswith(".yaml") for issue in _faults(path, data)]:
        raise ConfigError(issues)
    there = [path for path, data in contents.items() if _differs(place / path, data)]
    if there and not force and not dry_run:
        more = f" and {len(there) - _FEW} more" if len(there) > _FEW else ""
        message = f"{place} has {', '.join(there[:_FEW])}{more} already, with other content"
        raise ConfigError(message, hint="name another folder, or write over them with --force")
    if not dry_run:
        _write(place, contents)
    sizes = {path: len(data) for path, data in contents.items()}
    return Pulled(address=found.address, commit=found.commit, folder=place, files=sizes)


def _is_wanted(path: str) -> bool:
    """Whether a file is part of an experiment; others, as those that CI or an editor runs, stay where they are."""
    group = path.endswith(".yaml") and path.partition("/")[0] in NODES and "/." not in path
    return group or path in _NAMES


def _faults(path: str, data: bytes) -> list[Issue]:
    place = Place(KIND, path)
    place.prefix = prefix_of(path, header_of(data[:512].decode("utf-8-sig", "replace"), place))
    return forbidden(parse_bytes(data, place), place.prefix, consent=True)


def _differs(file: Path, data: bytes) -> bool:
    try:
        return file.read_bytes() != data
    except FileNotFoundError:
        return file.is_symlink()
    except OSError:
        return True


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    try:
        for path, data in contents.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".{file.name}.part")
            part.write_bytes(data)
            part.replace(file)  # a link that stands there is replaced, not followed
    except OSError as error:
        raise SourceError(f"{folder} cannot be written: {error.strerror}: {error.filename}") from error
