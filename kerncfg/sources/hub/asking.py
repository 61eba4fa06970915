"""One conversation with the Hub: its JSON and its files, with bounded patience and a reason for every no."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session, tqdm  # type: ignore[attr-defined, unused-ignore]

from kerncfg.errors import SourceError

if TYPE_CHECKING:
    from kerncfg.sources.environment import Settings

__all__ = ["Hub", "HubFault", "Moved"]

WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before each further try; the Hub's own word for it goes before
PATIENCE = 60.0  # the longest wait, in seconds, that the Hub may ask for
TIMEOUT = 10.0  # seconds without a byte, as huggingface_hub has it
_AGAIN = {408, 429, 500, 502, 503, 504}
_NEXT = re.compile(r'<([^>]*)>;\s*rel="next"')
_REPOSITORY = re.compile(r"/(?:api/)?kernels/([^/]+/[^/?]+)")


Answer = TypeVar("Answer")


class HubFault(SourceError):
    """The Hub said no, or nothing; `status` is the HTTP status if it said something, `code` its own word for it."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def away(self) -> bool:
        """Whether the Hub may well answer another time: it could not be reached, or was ill or busy."""
        return self.status is None or self.status in _AGAIN


class Moved(Exception):
    """The Hub says that a repository has another name now."""

    def __init__(self, repository: str) -> None:
        super().__init__(repository)
        self.repository = repository


class Hub:
    """The Hub as the settings have it. That it cannot be reached is found out once for each of these objects."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._first = threading.Lock()
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

    def json(self, path: str, repository: str) -> Any:
        """Return what an address of the Hub's API answers.

        Raises:
            HubFault: There is no answer, or it is a no.
            Moved: The repository has another name now.
        """
        return self.once(path, lambda: self._answer(f"{self.settings.endpoint}{path}", repository).json())

    def pages(self, path: str, repository: str) -> Iterator[Any]:
        """Yield the entries of an answer that may come in several pages.

        Raises:
            HubFault: There is no answer, or it is a no.
            Moved: The repository has another name now.
        """
        url: str | None = f"{self.settings.endpoint}{path}"
        while url is not None:
            response = self._answer(url, repository)
            yield from response.json()
            following = _NEXT.search(response.headers.get("Link", ""))
            url = urljoin(url, following[1]) if following else None
            if url and urlsplit(url)[:2] != urlsplit(self.settings.endpoint)[:2]:
                raise HubFault(f"the next page of {repository} is said to be at another place, {urlsplit(url).netloc}")

    def file(self, repository: str, commit: str, path: str, *, again: bool = False) -> Path:
        """Return a file of a commit in the cache, downloaded if it is not there, or in any case if `again`.

        Raises:
            HubFault: There is no answer, or it is a no.
            SourceError: It cannot be written.
        """
        for wait in (*WAITS[:2], None):  # huggingface_hub tries several times itself, but not after a reset
            try:
                return self._download(repository, commit, path, again)
            except HubFault as fault:
                if wait is None or self.settings.offline or not fault.away or self._away:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _download(self, repository: str, commit: str, path: str, again: bool) -> Path:
        self._check_reachable(repository)
        settings = self.settings
        try:
            return Path(
                hf_hub_download(
                    repository, path, repo_type="kernel", revision=commit, cache_dir=settings.cache,
                    endpoint=settings.endpoint, token=settings.token or False, force_download=again,
                    tqdm_class=_Silent,
                )
            )  # fmt: skip
        except HfHubHTTPError as error:
            raise self._refused(error.response, repository, f"its file {path}") from error
        except (OSError, ValueError) as error:
            cause = error.__cause__
            if isinstance(cause, HfHubHTTPError):
                raise self._refused(cause.response, repository, f"its file {path}") from error
            if isinstance(cause, _transport().HTTPError):
                raise self._unheard(cause, repository) from error
            raise SourceError(f"{path} of {repository} cannot be kept in {settings.cache}: {error}") from error
        except _transport().HTTPError as error:
            raise self._unheard(error, repository) from error

    def _answer(self, url: str, repository: str) -> Any:
        if not self._met:
            with self._first:  # one asks whether anybody is there at all
                if not self._met:
                    self._check_reachable(repository)
                    return self._tried(url, repository)
        self._check_reachable(repository)
        return self._tried(url, repository)

    def _tried(self, url: str, repository: str) -> Any:
        # huggingface_hub's own headers come with a question of telemetry, to the Hub it knew when it was imported.
        headers = {"user-agent": "kerncfg"}
        if self.settings.token:
            headers["authorization"] = f"Bearer {self.settings.token}"
        for wait in (*WAITS, None):
            try:
                response = get_session().get(url, headers=headers, follow_redirects=False, timeout=TIMEOUT)
            except _transport().HTTPError as error:
                if wait is None or _is_refused(error):
                    raise self._unheard(error, repository) from error
                time.sleep(wait)
                continue
            self._met = True
            asked = _asked_wait(response)
            if response.status_code in _AGAIN and wait is not None and (asked or 0) <= PATIENCE:
                time.sleep(wait if asked is None else asked)
                continue
            if response.has_redirect_location:
                raise self._moved(response, repository)
            if response.status_code != 200:
                raise self._refused(response, repository, "it")
            return response
        raise AssertionError("unreachable")

    def _check_reachable(self, repository: str) -> None:
        if self._away is not None:
            raise HubFault(self._silence(repository, self._away))
        if self.settings.offline:
            raise HubFault(f"HF_HUB_OFFLINE is set, and {repository} is not in the cache, {self.settings.cache}")

    def _moved(self, response: Any, repository: str) -> Exception:
        place = urljoin(str(response.url), response.headers["Location"])
        found = _REPOSITORY.search(urlsplit(place).path)
        if urlsplit(place).netloc != urlsplit(self.settings.endpoint).netloc or not found or found[1] == repository:
            shown = place.partition("?")[0]
            return HubFault(f"HTTP {response.status_code}: {repository} is said to be at {shown}, no kernel there")
        return Moved(found[1])

    def _unheard(self, error: Exception, repository: str) -> HubFault:
        """Return the fault of a request that got no answer; the next one is not even sent, if nobody is there."""
        what = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        if not self._met or _is_refused(error):
            self._away = what
        return HubFault(self._silence(repository, what))

    def _silence(self, repository: str, what: str) -> str:
        return f"the Hub at {self.settings.shown} gave no answer about {repository}: {what}"

    def _refused(self, response: Any, repository: str, what: str) -> HubFault:
        status, code = response.status_code, response.headers.get("X-Error-Code")
        sent = "with the token that was sent" if self.settings.token else "and no token was sent: set HF_TOKEN"
        page = f"{self.settings.shown}/kernels/{quote(repository)}"
        if code == "RevisionNotFound":
            message = f"{repository} has no such revision"
        elif code == "EntryNotFound":
            message = f"{repository} has no such file at this commit, needed {what}"
        elif code == "GatedRepo":
            message = f"{repository} is gated, {sent}; ask for access at {page}"
        elif status == 401:
            message = f"{repository} is private or does not exist, {sent}"
        elif status == 403:
            message = f"access to {repository} is forbidden, {sent}"
        elif status == 404:
            message = f"there is no kernel repository {repository} at {self.settings.shown}"
        elif status == 429:
            asked = _asked_wait(response)
            wanted = f", it asks to wait {asked:g} s and kerncfg waits {PATIENCE:g} s at most" if asked else ""
            message = f"too many requests, needed {what} of {repository}{wanted}"
        else:
            message = f"the Hub at {self.settings.shown} failed, needed {what} of {repository}"
        return HubFault(f"HTTP {status}: {message}", status=status, code=code)


class _Silent(tqdm):
    """No bar for each file: `kerncfg fetch` shows one for all."""

    def __init__(self, *args: Any, **said: Any) -> None:
        super().__init__(*args, **{**said, "disable": True})  # type: ignore[no-untyped-call]


def _transport() -> Any:
    """Return the HTTP library that huggingface_hub speaks through, for the names of its errors."""
    return sys.modules[type(get_session()).__module__.partition(".")[0]]


def _is_refused(error: Exception) -> bool:
    """Whether nobody listens there: no name, no route, or a refused connection, which waiting does not mend."""
    return isinstance(error, (_transport().ConnectError, _transport().ConnectTimeout))


def _asked_wait(response: Any) -> float | None:
    """Return the seconds that the Hub asks to wait, from either form of `Retry-After`."""
    said = response.headers.get("Retry-After", "")
    if said.isdigit():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except ValueError:
        return None
