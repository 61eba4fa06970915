"""What no file for others may hold: secrets of this machine, texts that look like secrets, folders of this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kerncfg.errors import IntegrityError
from kerncfg.sources.environment import tokens

__all__ = ["check"]

_SECRET = re.compile(
    r"(?:^|_)(TOKEN|SECRET|(API_?|ACCESS_|PRIVATE_)KEY|PASSW(OR)?D|CREDENTIALS?)(?:_|$)", re.IGNORECASE
)
_SHORTEST = 6  # characters of a secret that is looked for; a shorter one would be found in any text

# What secrets look like that no variable of this machine need hold. A letter before one makes it a part of a word.
_SHAPES = {
    "what looks like a token of the Hub": r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}",
    "what looks like a token of GitHub": r"(?<![A-Za-z0-9])(?:gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,})",
    "what looks like a token of GitLab": r"(?<![A-Za-z0-9])glpat-[\w-]{16,}",
    "what looks like a secret key (sk-)": r"(?<![A-Za-z0-9])sk-[\w-]{20,}",
    "what looks like a token of Slack": r"(?<![A-Za-z0-9])xox[abprs]-[\w-]{8,}",
    "what looks like an access key of AWS": r"(?<![A-Za-z0-9])A(?:KI|SI)A[A-Z0-9]{16}(?![A-Za-z0-9])",
    "what looks like a JSON web token": r"(?<![A-Za-z0-9])eyJ[\w-]{4,}\.eyJ[\w-]{4,}\.[\w-]*",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "an address with a password": r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:,\"'\[\]{}]*:[^\s/@\"'\[\]{}]+@",
}
_PATTERNS = {what: re.compile(shape, re.ASCII) for what, shape in _SHAPES.items()}
_KEY = re.compile(r"\s*(?:- )*([\"']?)([^\"':]+)\1\s*:(?:\s|$)")


def check(files: Mapping[str, str]) -> None:
    """Refuse files, by their paths, that hold what is not for others; the value itself is not shown.

    Raises:
        IntegrityError: One does. It names the file, the line and its key, and the kind of secret.
    """
    kept = _kept()
    for path, text in files.items():
        for what, _ in _found(path, kept):
            _refuse("the name of a file", what)
        for what, place in _found(text, kept):
            _refuse(f"{path}:{text.count(chr(10), 0, place) + 1}{_key(text, place, kept)}", what)


def _refuse(where: str, what: str) -> None:
    message = f"{where} would hold {what}, which is not for others"
    raise IntegrityError(message, hint="nothing was sent; say the value in another way")


def _kept() -> dict[str, str]:
    """Return what of this machine is looked for, by what it is."""
    secrets = {f"the value of {name}": value for name, value in os.environ.items() if _SECRET.search(name)}
    secrets |= {f"the token in {place}": token for place, token in tokens()}
    kept = {what: value for what, value in secrets.items() if len(value) >= _SHORTEST}
    folders = {"your home folder": Path.home(), "the working directory": Path.cwd()}
    return kept | {what: f"{folder}{os.sep}" for what, folder in folders.items() if folder.name}


def _found(text: str, kept: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield what a text holds that it should not, and where."""
    for what, value in kept.items():
        for form in dict.fromkeys((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])):
            if (place := text.find(form)) >= 0:
                yield what, place
    for what, pattern in _PATTERNS.items():
        if found := pattern.search(text):
            yield what, found.start()


def _key(text: str, place: int, kept: Mapping[str, str]) -> str:
    """Return the key whose value stands at a place, unless the key too is a secret."""
    start = text.rfind("\n", 0, place) + 1
    key = _KEY.match(text, start, place)
    return f" ({key[2]})" if key and not any(_found(key[2], kept)) else ""
