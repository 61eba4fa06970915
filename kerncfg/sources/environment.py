"""Where the Hub is, where its files are kept, and who asks: read from the environment whenever it is needed.

huggingface_hub reads the same variables once, when it is imported; a program that sets one later would not be heard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit, urlunsplit

from kerncfg.errors import SourceError

__all__ = ["Settings", "local_kernels", "parts", "tokens"]

_HUB = "https://huggingface.co"
_KINDS = ("datasets", "kernels", "models")
_TRUE = {"1", "ON", "YES", "TRUE"}  # what huggingface_hub takes for true


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The Hub's address, the folder of its cache, the token to send if any, and whether it may be asked at all."""

    endpoint: str
    cache: Path
    token: str | None = field(repr=False)
    offline: bool

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables that `kernels` and huggingface_hub read, with their meaning there."""
        said = os.environ if environment is None else environment
        home = _home(said)
        cache = said.get("KERNELS_CACHE") or said.get("HF_HUB_CACHE") or said.get("HUGGINGFACE_HUB_CACHE")
        return cls(
            endpoint=said.get("HF_ENDPOINT", _HUB).strip().rstrip("/"),
            cache=_folder(cache or home / "hub").absolute(),
            token=_token(said, home),
            offline=_is_true(said, "HF_HUB_OFFLINE") or _is_true(said, "TRANSFORMERS_OFFLINE"),
        )

    @property
    def fault(self) -> str | None:
        """What is wrong with the Hub's address; of the address itself nothing is told, for it may hold secrets."""
        what = _wrong(self.endpoint)
        return f"HF_ENDPOINT {what}, needed an address such as {_HUB}" if what else None

    @property
    def shown(self) -> str:
        """The Hub's address without the user and password that may stand in it; nothing of one that is none."""
        if self.fault:
            return "HF_ENDPOINT"
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    @property
    def place(self) -> str:
        """The cache's folder, in characters that a file in UTF-8 can hold."""
        return str(self.cache).encode("utf-8", "backslashreplace").decode()

    @property
    def asker(self) -> str | None:
        """What tells the Hub who asks, in words; `None` if nothing does."""
        if "@" in self.endpoint:  # httpx sends these in the token's place
            return "the user and password of HF_ENDPOINT"
        return "the token that was sent" if self.token else None

    @property
    def sent(self) -> str:
        """What goes to the Hub to say who asks, as the end of a sentence."""
        return f"with {self.asker}" if self.asker else "and no token was sent: set HF_TOKEN"

    def check(self) -> None:
        """Refuse an address at which no Hub can be.

        Raises:
            SourceError: `HF_ENDPOINT` is empty or no address of a place on the web.
        """
        if self.fault:
            raise SourceError(self.fault, hint="mend HF_ENDPOINT, or unset it for the Hub itself")

    def folder(self, repository: str) -> Path:
        """Return the folder of a repository in the cache."""
        return self.cache / "--".join(parts(repository)).replace("/", "--")

    def snapshot(self, repository: str, commit: str) -> Path:
        """Return the folder of one commit of a repository in the cache."""
        return self.folder(repository) / "snapshots" / commit


def _wrong(address: str) -> str | None:
    if not address:
        return "is empty"
    found = _split(address)
    if found is None or not re.fullmatch(r"[!-~]+", address) or "@" in found.path:
        return "is no web address"
    if found.scheme not in ("http", "https"):
        return "begins with neither http:// nor https://"
    if re.search("[?#]", address):
        return "goes on after a '?' or '#'"
    if not found.hostname:
        return "names no machine"
    try:
        found.hostname.encode("idna")
    except UnicodeError:
        return "names no machine: a part between its dots is empty or too long"
    return None


def _split(address: str) -> SplitResult | None:
    try:
        found = urlsplit(address)
        return found if found.port != 0 else None
    except ValueError:  # brackets or a port that are none
        return None


def parts(repository: str) -> tuple[str, str]:
    """Return what a repository holds and its name: `org/repo` has kernels, `datasets/org/repo` says what it has."""
    kind, _, name = repository.partition("/")
    return (kind, name) if kind in _KINDS and "/" in name else ("kernels", repository)


def local_kernels(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the folders that `LOCAL_KERNELS=org/repo=/dir:org/other=/dir` puts in place of repositories."""
    said = (os.environ if environment is None else environment).get("LOCAL_KERNELS", "")
    found: dict[str, str] = {}
    name = ""
    for part in said.split(":"):
        repository, equals, folder = part.partition("=")
        if equals:
            name, found[repository.strip()] = repository.strip(), folder
        elif name:  # a colon within a folder, as after a drive's letter
            found[name] += f":{part}"
    return {name: str(Path(folder).expanduser().absolute()) for name, folder in found.items() if name and folder}


def _folder(said: str | Path) -> Path:
    return Path(os.path.expandvars(said)).expanduser()


def _home(said: Mapping[str, str]) -> Path:
    return _folder(said.get("HF_HOME") or Path(said.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")


def tokens(environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield every token of the Hub that this machine keeps, whether it is sent or not, with the name of its place."""
    said = os.environ if environment is None else environment
    yield from ((name, said[name].strip()) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if said.get(name))
    own = _home(said) / "token"
    for file in dict.fromkeys((own, _folder(said.get("HF_TOKEN_PATH") or own))):
        yield from (("the token file of the Hub", line) for line in _lines(file))
        # huggingface_hub keeps the tokens of several accounts as an INI file beside the one that is in use.
        pairs = (line.partition("=") for line in _lines(file.with_name("stored_tokens")))
        yield from ((f"stored_tokens ({key.strip()})", value.strip()) for key, _, value in pairs if "token" in key)


def _lines(file: Path) -> list[str]:
    try:
        return list(filter(None, map(str.strip, file.read_text("utf-8", errors="replace").splitlines())))
    except OSError:  # nobody logged in on this machine, or not whoever runs this
        return []


def _token(said: Mapping[str, str], home: Path) -> str | None:
    token = said.get("HF_TOKEN") or said.get("HUGGING_FACE_HUB_TOKEN")
    if token or _is_true(said, "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return (token or "").strip() or None
    try:
        return _folder(said.get("HF_TOKEN_PATH") or home / "token").read_text("utf-8").strip() or None
    except OSError:  # nobody logged in on this machine
        return None


def _is_true(said: Mapping[str, str], name: str) -> bool:
    return said.get(name, "").upper() in _TRUE
