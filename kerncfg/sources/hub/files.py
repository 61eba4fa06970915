"""The files of one build on this machine: each hashed whenever it is to run, fetched again if it is not what it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from kerncfg.errors import IntegrityError, SourceError
from kerncfg.sources.hub.memory import checked

if TYPE_CHECKING:
    from kerncfg.documents.lock import File
    from kerncfg.documents.step import Kernel
    from kerncfg.sources.hub.asking import Hub

__all__ = ["bring", "fault", "single"]

_AT_ONCE = 8
_RUN = (".py", ".so", ".pyd", ".dylib", ".dll")


def bring(hub: Hub, kernel: Kernel, progress: Callable[[int], None] = lambda size: None) -> Path:
    """Return the folder of a kernel's build, every file of it there and hashed; those that are not are fetched.

    Raises:
        IntegrityError: What the Hub sends is not what the plan says, or the folder holds code that it does not name.
        SourceError: A file cannot be had.
    """
    assert kernel.commit is not None and kernel.variant is not None
    repository = kernel.place
    folder = hub.settings.snapshot(repository, kernel.commit) / "build" / kernel.variant

    def one(file: File) -> None:
        single(hub, repository, kernel.commit or "", f"build/{kernel.variant}/{file.path}", file)
        progress(file.size)

    lacking = [file for file in kernel.files if fault(folder / checked(file.path, repository), file)]
    for file in kernel.files:
        if file not in lacking:
            progress(file.size)
    if lacking:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kerncfg-files") as pool:
            list(pool.map(one, lacking))
    named = {file.path for file in kernel.files}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).as_posix()
        if path.suffix in _RUN and inside not in named and "__pycache__" not in path.parts:
            message = f"{kernel.reference}: {folder} holds {inside}, which the build of commit {kernel.commit} has not"
            raise IntegrityError(message, hint="remove the file; nothing that the plan does not name is imported")
    return folder


def single(hub: Hub, repository: str, commit: str, path: str, file: File) -> Path:
    """Return one file of a commit with the right bytes in it, fetched if need be, and once more if they are not.

    Raises:
        IntegrityError: What the cache holds, and what the Hub sends, is not what the listing says.
        SourceError: It cannot be had.
    """
    settings = hub.settings
    place = settings.snapshot(repository, commit) / checked(path, repository)
    wrong = fault(place, file)
    if wrong is None:
        return place
    broken = place.exists()
    if broken and settings.offline:
        raise IntegrityError(f"{path} of {repository} is broken in the cache: {wrong}, and HF_HUB_OFFLINE is set")
    for again in (True,) if broken else (False, True):
        if place.exists():
            _remove(place)  # huggingface_hub looks at the size alone, and would keep the wrong bytes for ever
        place = hub.file(repository, commit, path, again=again)
        wrong = fault(place, file)
        if wrong is None:
            return place
    _remove(place)
    raise IntegrityError(f"{path} of {repository} at {commit[:12]} is broken, fetched anew: {wrong}")


def _remove(pointer: Path) -> None:
    """Remove a broken file from the cache: the link, and the content that it leads to."""
    try:
        pointer.resolve().unlink(missing_ok=True)
        pointer.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(f"{pointer} is broken and cannot be removed: {error.strerror}") from error


def fault(place: Path, file: File) -> str | None:
    """Return how a file differs from what it should be, or `None` if its bytes are the right ones."""
    try:
        size = place.stat().st_size
        if size != file.size:
            return f"found {size} bytes, needed {file.size}"
        kind, _, needed = file.digest.partition(":")
        with place.open("rb") as opened:
            if kind == "sha256":
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            else:
                header = f"blob {size}\0".encode()
                found = hashlib.sha1(header + opened.read(), usedforsecurity=False).hexdigest()
    except OSError:
        return f"found nothing, needed {file.size} bytes"
    return None if found == needed else f"found {kind} {found[:12]}, needed {needed[:12]}"
