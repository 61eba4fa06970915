"""The one way out: files of ours to a repository on the Hub, as one commit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kerncfg.errors import SourceError
from kerncfg.sources.environment import Settings, parts

__all__ = ["send"]

_LOG_IN = "set HF_TOKEN to a token that may write, or log in with `hf auth login`"


def send(repository: str, files: Mapping[str, bytes], *, title: str, private: bool) -> str:
    """Commit files to the main branch of a repository, which is made if it is not there, and return the commit.

    Raises:
        SourceError: The Hub cannot be reached or refuses.
    """
    settings = Settings.read()
    settings.check()
    if settings.offline:
        raise SourceError(f"nothing was sent to {repository}: HF_HUB_OFFLINE is set", hint="unset it")
    if settings.token is None:
        raise SourceError(f"nothing was sent to {repository}: no token was found to write with", hint=_LOG_IN)
    # Only now, for the client reads HF_ENDPOINT when it is imported, and raises where that is no address.
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    kind, name = parts(repository)
    api = HfApi(endpoint=settings.endpoint, token=settings.token)
    added = [CommitOperationAdd(path, content) for path, content in sorted(files.items())]
    try:
        api.create_repo(name, repo_type=kind[:-1], private=private or None, exist_ok=True)
        made: Any = api.create_commit(name, added, commit_message=title, repo_type=kind[:-1])
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise SourceError(f"nothing was sent to {repository}: HTTP {status}", hint=_advice(status, name)) from error
    except _unheard() as error:
        said = " ".join(str(error).split())
        raise SourceError(f"nothing was sent to {repository}: {type(error).__name__}: {said}") from error
    return str(made.oid)


def _advice(status: int | None, name: str) -> str:
    if status == 401:
        return f"the Hub does not know the token: {_LOG_IN}"
    if status == 403:
        return f"the token may not write to {name.partition('/')[0]}: name another organisation, or {_LOG_IN}"
    return "try again later"


def _unheard() -> tuple[type[Exception], ...]:
    """Return what is raised where nobody answers: by huggingface_hub, and by the library that it speaks through."""
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

    library = sys.modules[type(get_session()).__module__.partition(".")[0]]
    spoken: type[Exception] = library.HTTPError  # type: ignore[attr-defined, unused-ignore]
    return OfflineModeIsEnabled, ValueError, spoken
