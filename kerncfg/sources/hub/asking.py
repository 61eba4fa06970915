"""One conversation with the Hub: its JSON and its files, with bounded patience and a reason for every no."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from kerncfg.documents.plain import loads
from kerncfg.errors import SourceError
from kerncfg.sources.environment import parts

if TYPE_CHECKING:
    from kerncfg.sources.environment import Settings

__all__ = ["Hub", "HubFault", "Moved", "words_of"]

WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before each further try; the Hub's own word for it goes before
PATIENCE = 60.0  # seconds: the longest wait that the Hub may ask for, and the longest that an answer may take
TIMEOUT = 10.0  # seconds without a byte, as huggingface_hub has it
SLOWEST = 20_000  # bytes a second, below which a large file is not waited for
NO_HUB = "NoHub"  # in place of the Hub's own word for it, where somebody else answered
_AGAIN = {408, 429, 500, 502, 503, 504}
_NEXT = re.compile(r'<([^>]*)>;\s*rel="next"')
_REPOSITORY = r"/(?:api/)?{}/([A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:/|$)"


Answer = TypeVar("Answer")
Read = Callable[[Any], Answer]


class HubFault(SourceError):
    """The Hub said no, or nothing; `status` is the HTTP status if it said something, `code` its own word for it.

    `hidden`: it says the same of what is there and not for this asker.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, hidden: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.hidden = hidden

    @property
    def away(self) -> bool:
        """Whether the Hub may well answer another time: it could not be reached, or was ill or busy."""
        return self.status is None or self.status in _AGAIN

    @property
    def barred(self) -> bool:
        """Whether this says nothing about what is there: not to this asker, or it was no Hub that answered."""
        told = self.status == 200 or (self.status == 404 and self.code is not None)
        return self.hidden or self.code == NO_HUB or not (self.away or told)


class Moved(Exception):
    """The Hub says that a repository has another name now."""

    def __init__(self, repository: str) -> None:
        super().__init__(repository)
        self.repository = repository


class Hub:
    """The Hub as the settings have it. That it cannot be reached is found out once for each of these objects.

    `refuses` says why a file may not come from where its repository moved to, or `None` where it may.
    """

    def __init__(self, settings: Settings, *, refuses: Callable[[str, str], str | None] = lambda *_: None) -> None:
        self.settings = settings
        self._refuses = refuses
        self._first = threading.Lock()  # held for ever by the thread that asks first
        self._heard = threading.Event()  # it knows whether anybody is there
        self._met = False
        self._away: str | None = None  # why nobody can be reached there
        self._lock = threading.Lock()
        self._known: dict[str, Future[Any]] = {}

    def once(self, key: str, ask: Callable[[], Answer]) -> Answer:
        """Return an answer, or raise its refusal, that is asked for once in a run, however many threads need it."""
        with self._lock:
            mine = key not in self._known
            future = self._known.setdefault(key, Future())
        if mine:
            try:
                future.set_result(ask())
            except BaseException as error:
                future.set_exception(error)
        found: Answer = future.result()
        return found

    def json(self, path: str, repository: str, what: str) -> dict[str, Any]:
        """Return what an address of the Hub's API answers about `what` of a repository.

        Raises:
            HubFault: There is no answer, or it is a no.
            Moved: The repository has another name now.
        """
        url = f"{self.settings.endpoint}{path}"
        return self.once(path, lambda: self._get(url, repository, what, lambda response: self._parsed(response, dict)))

    def pages(self, path: str, repository: str, what: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of an answer that may come in several pages.

        Raises:
            HubFault: There is no answer, or it is a no.
            Moved: The repository has another name now.
        """
        url = f"{self.settings.endpoint}{path}"
        asked: set[str] = set()
        while url:
            asked.add(url)
            entries, link = self._get(
                url, repository, what, lambda response: (self._parsed(response, list), response.headers.get("Link", ""))
            )
            yield from entries
            following = _NEXT.search(link)
            url = urljoin(url, following[1]) if following else ""
            if url in asked or (url and _origin(url) != _origin(self.settings.endpoint)):
                place = f"{urlsplit(url).hostname}{urlsplit(url).path}"
                raise HubFault(f"the next page of {what} is said to be at {place}, needed another one of this Hub")

    def file(self, repository: str, commit: str, path: str, into: IO[bytes], size: int) -> None:
        """Write a file of a commit into `into`, as the Hub sends it; what was cut off goes on where it ended.

        Raises:
            HubFault: There is no answer, or it is a no.
        """
        kind, name = parts(repository)
        inside = quote(name if kind == "models" else f"{kind}/{name}")
        url = f"{self.settings.endpoint}/{inside}/resolve/{commit}/{quote(path)}"

        def read(response: Any) -> None:
            if response.status_code == 200:  # all of it, whatever was asked for
                into.seek(0)
                into.truncate()
            for chunk in self._chunks(response, size):
                into.write(chunk)
                if into.tell() > size:
                    return  # not the file that it should be, whatever follows

        what = words_of(path, commit)
        self._get(url, repository, what, read, resume=lambda: into.tell() if into.tell() < size else 0)

    def _get(
        self, url: str, repository: str, what: str, read: Read[Answer], *, resume: Callable[[], int] | None = None
    ) -> Answer:
        if not self._met and not self._first.acquire(blocking=False):
            self._heard.wait()
        try:
            self.check_reachable(repository, what)
            return self._tried(url, repository, what, read, resume)
        finally:
            self._heard.set()

    def _tried(
        self, url: str, repository: str, what: str, read: Read[Answer], resume: Callable[[], int] | None
    ) -> Answer:
        # Here, for what is in the cache is not asked for, and the client takes longer to import than to load a kernel.
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

        library = _library()
        for tries, wait in enumerate((*WAITS, None), 1):
            headers = self._headers(resume() if resume else 0)
            follow = resume is not None  # a large file lies elsewhere
            try:
                with get_session().stream(
                    "GET", url, headers=headers, follow_redirects=follow, timeout=TIMEOUT
                ) as response:
                    self._met = True
                    self._heard.set()
                    for hop in response.history:
                        moved = self._moved(hop, repository)
                        if isinstance(moved, Moved) and (reason := self._refuses(repository, moved.repository)):
                            raise HubFault(reason, status=200)
                    if response.status_code in (200, 206):
                        return read(response)
            except OfflineModeIsEnabled as error:
                message = f"huggingface_hub was offline when it was imported and asks nothing, needed {what}"
                raise HubFault(f"{message} of {repository}") from error
            except (library.HTTPError, library.InvalidURL) as error:
                if wait is None or _is_final(error):
                    raise self._unheard(error, repository, what, tries) from error
                time.sleep(wait)
                continue
            asked = _asked_wait(response)
            if response.status_code in _AGAIN and wait is not None and (asked or 0) <= PATIENCE:
                time.sleep(wait if asked is None else asked)
                continue
            raise (
                self._moved(response, repository)
                if response.has_redirect_location
                else self._refused(response, repository, what, tries)
            )
        raise AssertionError("unreachable")

    def _headers(self, start: int) -> dict[str, str]:
        # huggingface_hub's own headers come with a question of telemetry, to the Hub it knew when it was imported.
        headers = {"user-agent": "kerncfg"}
        if self.settings.token:
            headers["authorization"] = f"Bearer {self.settings.token}"
        if start:
            headers["range"] = f"bytes={start}-"
        return headers

    def check_reachable(self, repository: str, what: str) -> None:
        """Raise why nothing can be asked about `what` of a repository, if that is known already.

        Raises:
            HubFault: Nobody is there, nobody is to be asked, or the address or the token are none.
        """
        if self._away is not None:
            raise HubFault(self._silence(repository, what, self._away))
        if self.settings.fault:
            raise HubFault(self.settings.fault, status=200)
        if self.settings.offline:
            found = f"HF_HUB_OFFLINE is set, and {repository} is not in the cache, {self.settings.cache}"
            raise HubFault(f"{found}; needed {what}")
        if self.settings.token and not re.fullmatch(r"[!-~]+", self.settings.token):
            message = "HF_TOKEN holds a blank or a character beyond ASCII, needed one word as the Hub gave it"
            raise HubFault(message, status=401, code="Token")

    def _chunks(self, response: Any, size: int = 0) -> Iterator[bytes]:
        """Yield a body piece by piece; one that trickles is given up as one that stopped would be."""
        end = time.monotonic() + PATIENCE + size / SLOWEST
        for chunk in response.iter_bytes():
            yield chunk
            if time.monotonic() > end:
                raise _library().ReadTimeout(f"the answer was not complete after {PATIENCE + size / SLOWEST:g} s")

    def _parsed(self, response: Any, kind: type) -> Any:
        """Return the JSON of an answer, if it is of the right kind, as what a proxy says in the Hub's place is not."""
        body = b"".join(self._chunks(response))
        try:
            found = loads(body)
        except ValueError:
            found = None
        entries = found if isinstance(found, list) else [found]
        if not isinstance(found, kind) or not all(isinstance(entry, dict) for entry in entries):
            start = body[:40].decode("utf-8", "replace")
            place = f"{self.settings.shown}{urlsplit(str(response.url)).path}"
            raise HubFault(f"HTTP 200: {place} answered {start!r}, needed the JSON of a Hub")
        return found

    def _moved(self, response: Any, repository: str) -> Exception:
        place = urlsplit(urljoin(str(response.url), response.headers["Location"]))
        kind, name = parts(repository)
        found = re.match(_REPOSITORY.format(kind), place.path, re.ASCII)
        if place.hostname != urlsplit(self.settings.endpoint).hostname or not found or found[1] == name:
            shown = f"{place.hostname}{place.path}"
            message = f"{repository} is said to be at {shown}, needed a {kind[:-1]} repository of this Hub"
            return HubFault(f"HTTP {response.status_code}: {message}", status=response.status_code, code=NO_HUB)
        return Moved(f"{repository.removesuffix(name)}{found[1]}")

    def _unheard(self, error: Exception, repository: str, what: str, tries: int) -> HubFault:
        """Return the fault of a request that got no answer; the next one is not even sent, if nobody is there."""
        why = f"{type(error).__name__}{f': {error}' if str(error) else ''}{_times(tries)}"
        if not self._met or _is_final(error):
            self._away = why
        return HubFault(self._silence(repository, what, why))

    def _silence(self, repository: str, what: str, why: str) -> str:
        return f"the Hub at {self.settings.shown} gave no answer about {repository}, needed {what}: {why}"

    def _refused(self, response: Any, repository: str, what: str, tries: int) -> HubFault:
        status, code = response.status_code, response.headers.get("X-Error-Code")
        hidden = False
        sent = self.settings.sent
        kind, name = parts(repository)
        page = f"{self.settings.shown}/{quote(name if kind == 'models' else f'{kind}/{name}')}"
        if code == "RevisionNotFound":
            message = f"{repository} has no such revision, needed {what}"
        elif code == "EntryNotFound":
            message = f"{repository} has no such file, needed {what}"
        elif code == "GatedRepo":
            message = f"{repository} is gated, {sent}; needed {what}: ask for access at {page}"
        elif status == 401 and self.settings.token and "@" not in self.settings.endpoint:
            message = f"the token that was sent was rejected, needed {what} of {repository}: renew HF_TOKEN"
        elif status == 401:
            message = f"{repository} is private or does not exist, {sent}; needed {what}"
        elif status == 403:
            message = f"access to {repository} is forbidden, {sent}; needed {what}"
        elif status == 404:
            hidden = self.settings.asker is not None
            seen = f", as far as {self.settings.asker} may see" if hidden else ""
            message = f"there is no {kind[:-1]} repository {name} at {self.settings.shown}{seen}, needed {what}"
        elif status == 429:
            asked = _asked_wait(response)
            wanted = f", it asks to wait {asked:g} s and kerncfg waits {PATIENCE:g} s at most" if asked else ""
            message = f"too many requests, needed {what} of {repository}{wanted}"
        else:
            message = f"the Hub at {self.settings.shown} failed, needed {what} of {repository}"
        return HubFault(f"HTTP {status}: {message}{_times(tries)}", status=status, code=code, hidden=hidden)


def words_of(path: str, commit: str) -> str:
    """Return what a file is called in a reason."""
    return f"its file {path} of commit {commit[:12]}"


def _times(tries: int) -> str:
    return f", asked {tries} times" if tries > 1 else ""


def _library() -> Any:
    """Return the HTTP library that huggingface_hub speaks through, for the names of its errors."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

    return sys.modules[type(get_session()).__module__.partition(".")[0]]


def _is_final(error: Exception) -> bool:
    """Whether nobody listens there, or nothing can be sent there: neither does waiting mend."""
    library = _library()
    names = ("ConnectError", "ConnectTimeout", "UnsupportedProtocol", "LocalProtocolError", "InvalidURL")
    return isinstance(error, tuple(getattr(library, name) for name in names))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _asked_wait(response: Any) -> float | None:
    """Return the seconds that the Hub asks to wait, from either form of `Retry-After`."""
    said = response.headers.get("Retry-After", "")
    if said.isdigit():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
