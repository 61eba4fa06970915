"""The files of one build on this machine: each hashed whenever it is to run, fetched again if it is not what it was.

They lie where huggingface_hub has them, a blob for each content and a link to it for each commit, so that each finds
what the other brought. A file comes in under a name of its own and gets its place when its digest is right: nobody
ever sees a half of it, however many fetch at once and wherever one is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from kerncfg.errors import IntegrityError, SourceError
from kerncfg.sources.environment import parts
from kerncfg.sources.hub.asking import HubFault, words_of
from kerncfg.sources.hub.memory import Memory, checked, listed
from kerncfg.sources.hub.revisions import is_commit
from kerncfg.together import together

if TYPE_CHECKING:
    from kerncfg.documents.lock import File
    from kerncfg.documents.step import Kernel
    from kerncfg.sources.hub.asking import Hub

__all__ = ["bring", "fault", "folder_of", "listing", "single"]

_AT_ONCE = 8
_RUN = {".py", ".so", ".pyd", ".dylib", ".dll"}
_PART = ".part"  # of what is coming in
_STALE = 86_400.0  # seconds after which nobody is writing such a file any more

_coming: set[Path] = set()  # what is coming in now
_lock = threading.Lock()


@atexit.register
def _end() -> None:
    """Leave no half of a file where a process ends, as by an interrupt, while a thread waits for the rest."""
    _lock.acquire()  # never given back: nothing begins to come in any more
    for part in tuple(_coming):
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def listing(hub: Hub, memory: Memory, place: str, commit: str) -> list[File]:
    """Return the files of a commit of a repository of any type, from the cache if some run listed them.

    Raises:
        HubFault: The Hub gives no answer, or none as the Hub gives it.
        Moved: The repository has another name now.
    """
    known = memory.listing(place, commit)
    if known is not None:
        return known
    kind, name = parts(place)
    address = f"/api/{kind}/{quote(name)}/tree/{commit}?recursive=true"
    try:
        entries = list(hub.pages(address, place, f"the files of commit {commit[:12]}"))
        entries = [entry for entry in entries if entry["type"] == "file"]
        files = [listed(entry, place) for entry in entries]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"HTTP 200: the files of {place} came without {error}, needed path, size and oid of each"
        raise HubFault(message) from error
    memory.keep_listing(place, commit, entries)
    return files


def folder_of(hub: Hub, kernel: Kernel) -> Path:
    """Return the folder of a kernel's build in the cache.

    Raises:
        IntegrityError: The plan names a commit that is none, or a build that lies elsewhere.
    """
    if not is_commit(str(kernel.commit)) or "/" in checked(str(kernel.variant), kernel.place):
        message = f"{kernel.reference}: the plan has commit {kernel.commit!r} and build {kernel.variant!r}"
        raise IntegrityError(f"{message}, needed 40 hexadecimal digits and the name of a folder")
    return hub.settings.snapshot(kernel.place, str(kernel.commit)) / "build" / str(kernel.variant)


def bring(hub: Hub, kernel: Kernel, progress: Callable[[int], None] = lambda size: None) -> Path:
    """Return the folder of a kernel's build, every file of it there and hashed; those that are not are fetched.

    Raises:
        IntegrityError: What the Hub sends is not what the plan says, or the folder holds code that it does not name.
        SourceError: A file cannot be had.
    """
    folder = folder_of(hub, kernel)
    place, commit = kernel.place, str(kernel.commit)
    failed: list[BaseException] = []
    hub_said = functools.cache(
        lambda: {(each.path, each.digest) for each in Memory(hub.settings).listing(place, commit) or ()}
    )

    def one(file: File) -> None:
        if failed:
            return  # one file that cannot be had is enough
        path = f"build/{kernel.variant}/{file.path}"
        try:
            single(hub, place, commit, path, file, listed=lambda: (path, file.digest) in hub_said())
            progress(file.size)
        except BaseException as error:
            failed.append(error)

    lacking = [file for file in kernel.files if fault(folder / checked(file.path, kernel.place), file)]
    for file in kernel.files:
        if file not in lacking:
            progress(file.size)
    together(one, lacking, most=_AT_ONCE)
    if failed:
        raise failed[0]
    named = {file.path for file in kernel.files}
    for parent, folders, names in os.walk(folder):
        paths = [Path(parent, name).relative_to(folder) for name in names if _runs(name)]
        # A folder that is a link leads to what nobody has listed.
        paths += [Path(parent, name).relative_to(folder) for name in folders if Path(parent, name).is_symlink()]
        if strange := [path.as_posix() for path in paths if path.as_posix() not in named]:
            message = f"{kernel.reference}: {folder} holds {strange[0]}, which commit {kernel.commit} has not"
            raise IntegrityError(message, hint="remove the file; nothing that the plan does not name is imported")
    return folder


def _runs(name: str) -> bool:
    return Path(name).suffix in _RUN or ".so" in Path(name).suffixes  # such as libx.so.1


def single(
    hub: Hub, repository: str, commit: str, path: str, file: File, *, listed: Callable[[], bool] = lambda: True
) -> Path:
    """Return one file of a commit with the right bytes in it, fetched if need be, and once more if they are not.

    What came with another commit serves only where this one is `listed` to have the same file there. Where a plan or a
    lock alone says so it might be what anybody proposed, so the file is fetched from its own commit.

    Raises:
        IntegrityError: What the cache holds, and what the Hub sends, is not what the listing says.
        SourceError: It cannot be had.
    """
    settings = hub.settings
    place = settings.snapshot(repository, commit) / checked(path, repository)
    wrong = fault(place, file)
    if wrong is None:
        return place
    blob = settings.folder(repository) / "blobs" / file.digest.partition(":")[2]
    whole = fault(blob, file) is None and listed()  # another commit has the same file
    if not whole and place.exists() and settings.offline:
        raise IntegrityError(f"{path} of {repository} is broken in the cache: {wrong}, and HF_HUB_OFFLINE is set")
    try:
        if not whole:
            _fetch(hub, repository, commit, path, file, blob)
        _link(place, blob)
    except OSError as error:
        raise SourceError(f"{path} of {repository} cannot be kept in {settings.cache}: {error.strerror}") from error
    return place


def _fetch(hub: Hub, repository: str, commit: str, path: str, file: File, blob: Path) -> None:
    """Put a file's content into its place among the blobs, when it is the right one."""
    hub.check_reachable(repository, words_of(path, commit))  # before anything is written
    blob.parent.mkdir(parents=True, exist_ok=True)
    wrong: str | None = None
    for _ in range(2):
        part = _part(blob)
        try:
            with _lock:
                _coming.add(part)
                created = part.open("x+b")
            with created as opened:
                hub.file(repository, commit, path, opened, file.size)
                opened.flush()
                wrong = _differs(opened, file)
            if wrong is None:
                part.replace(blob)
                _sweep(blob)
                return
        finally:
            part.unlink(missing_ok=True)
            _coming.discard(part)
    raise IntegrityError(f"{path} of {repository} at {commit[:12]} came broken from the Hub, twice: {wrong}")


def _part(file: Path) -> Path:
    """Return the name under which a file comes in; unlike those of `tempfile`, others may read it afterwards."""
    return file.with_name(f"{file.name}.{uuid4().hex}{_PART}")


def _sweep(blob: Path) -> None:
    """Remove what processes that were stopped have left of the same file."""
    for left in blob.parent.glob(f"{blob.name}.*{_PART}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()


def _link(place: Path, blob: Path) -> None:
    """Let a file of a commit lead to its content; where the machine has no links it is a copy."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = _part(place)
    try:
        try:
            part.symlink_to(os.path.relpath(blob, place.parent))
        except OSError:
            shutil.copyfile(blob, part)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def fault(place: Path, file: File) -> str | None:
    """Return how a file differs from what it should be, or `None` if its bytes are the right ones."""
    try:
        with place.open("rb") as opened:
            return _differs(opened, file)
    except OSError:
        return f"found nothing, needed {file.size} bytes"


def _differs(opened: IO[bytes], file: File) -> str | None:
    size = opened.seek(0, os.SEEK_END)
    if size != file.size:
        return f"found {size} bytes, needed {file.size}"
    opened.seek(0)
    kind, _, needed = file.digest.partition(":")
    if kind == "sha256":
        found = hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]
    else:
        found = hashlib.sha1(b"blob %d\0" % size + opened.read(), usedforsecurity=False).hexdigest()
    return None if found == needed else f"found {kind} {found[:12]}, needed {needed[:12]}"
