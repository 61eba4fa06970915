"""Where a kernel is: one grammar for every place that names one, both ways."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from kerncfg.errors import ConfigError

__all__ = ["ATTENTION", "INHERITED", "ORIGINAL", "KernelRef", "absolute", "is_folder", "is_relative", "parse_range"]

# What a model's own framework has for attention, each with the compiled package that it needs on CUDA, if any.
ATTENTION: Mapping[str, str | None] = {
    "eager": None,
    "sdpa": None,
    "flash_attention_2": "flash-attn",
    "flash_attention_3": "flash-attn-3",
    "flash_attention_4": "flash-attn-4",
}

# The forms of a reference, for messages.
_SHAPES = "org/repo@v1:Name, ./dir:Name, python:package.module:Name, builtin:Name, original or inherited"
_NAME = re.compile(r"[A-Za-z_]\w*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]*", re.ASCII)
_RANGE = re.compile(r"\s*(>=|<=|==|!=|~=|<|>)")
_PATH = re.compile(r"(/|~|\.\.?([/\\]|$|:)|[A-Za-z]:[\\/]|\\\\)")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_ADDRESS = re.compile(r"(?:hf://|(?:\w+://)?[^/]+/)(?:kernels/)?([^/]+/[^/:@?#]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRef:
    """Where a kernel is; two references are equal if their parts are, however they were written.

    `scheme` is `hub`, `path`, `python`, `builtin`, `original`, `inherited`, or `attention` for what the model's own
    framework has under `name`. Of a Hub reference `revision` is a branch, tag or commit and `version` a range; at
    most one is set.
    """

    scheme: str
    location: str = ""
    revision: str | None = None
    version: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.scheme in ("original", "inherited"):
            return self.scheme
        if self.scheme == "attention":
            return self.name or ""
        at = self.revision or self.version
        return self.place + (f"@{at}" if at else "") + (f":{self.name}" if self.name else "")

    @property
    def place(self) -> str:
        """The repository, folder or module alone, as trust names it."""
        return {"python": f"python:{self.location}", "builtin": "builtin"}.get(self.scheme, self.location)

    @classmethod
    def parse(cls, text: str, *, attention: bool = False) -> Self:
        """Read a reference in any of its forms; for `attention` also a framework's own, and kernels without a name.

        Raises:
            ConfigError: The text is none of them; the hint shows the right spelling.
        """
        text = text.strip()
        if text in ("original", "inherited"):
            return cls(scheme=text)
        if text in ATTENTION:
            if attention:
                return cls(scheme="attention", name=text)
            hint = f"take the row out, and write attention.default={text}"
            raise _refused(text, "this is an attention, which has rows of its own", hint)
        if "://" in text or text.startswith("www."):
            found = _ADDRESS.match(text)
            repository = found[1] if found else "org/repo"
            raise _refused(text, "a web address is no kernel reference", f"write {repository}@v1:Name")
        if text.startswith("builtin:"):
            return cls(scheme="builtin", name=_name(text, text.removeprefix("builtin:")))
        if text.startswith("python:"):
            return cls._python(text, named=not attention)
        if _PATH.match(text):
            return cls._path(text, named=not attention)
        return cls._hub(text, ("original", "inherited", *(ATTENTION if attention else ())))

    @classmethod
    def _python(cls, text: str, *, named: bool) -> Self:
        module, colon, name = text.removeprefix("python:").partition(":")
        if not _MODULE.fullmatch(module):
            raise _refused(text, f"{module!r} is no module name", "write python:package.module:Name")
        if not colon and named:
            raise _refused(text, "no kernel name after the module", f"write {text}:Name")
        return cls(scheme="python", location=module, name=_name(text, name) if colon else None)

    @classmethod
    def _path(cls, text: str, *, named: bool) -> Self:
        location, colon, name = text.rpartition(":")
        bare = not colon or (len(location) == 1 and _DRIVE.match(text) is not None)
        if bare and named:
            raise _refused(text, "no kernel name after the folder", f"write {text}:Name")
        location = text if bare else location
        if ":" in (location[2:] if _DRIVE.match(location) else location):
            raise _refused(text, "more than one ':' after the folder", "write ./dir:Name, with one name")
        trimmed = location.rstrip("/\\")
        root = not trimmed or trimmed.endswith(":")
        return cls(scheme="path", location=location if root else trimmed, name=None if bare else _name(text, name))

    @classmethod
    def _hub(cls, text: str, words: Sequence[str]) -> Self:
        place, colon, name = text.partition(":")
        repository, at, revision = place.partition("@")
        if not text:
            raise _refused(text, "a reference cannot be empty", f"write one of {_SHAPES}; for off write null")
        if ".." in repository.split("/"):
            hint = "write org/repo@v1:Name, or ./dir:Name for a folder"
            raise _refused(text, "a repository has no parent part", hint)
        if not _REPOSITORY.fullmatch(repository):
            close = difflib.get_close_matches(text.lower(), words, n=1)
            own = "".join(f"{word}, " for word in words if word in ATTENTION)
            hint = f"did you mean {close[0]}?" if close else f"write one of {own}{_SHAPES}"
            raise _refused(text, f"{repository!r} is no repository (organisation/name)", hint)
        ref = cls(scheme="hub", location=repository, name=_name(text, name) if colon else None)
        if not at:
            return ref
        return ref.at(revision=revision) if not _RANGE.match(revision) else ref.at(version=revision)

    def at(self, *, revision: str | None = None, version: int | str | None = None) -> Self:
        """Return the reference at a branch, tag or commit (`revision`), or at a version or range (`version`).

        Raises:
            ConfigError: The reference has one already, is not on the Hub, or the text is not valid there.
        """
        if self.scheme != "hub":
            raise _refused(str(self), "only a Hub kernel has versions", "leave version and revision out")
        if self.revision or self.version or (revision is not None and version is not None):
            raise _refused(str(self), "more than one of '@', version and revision", "keep one of them")
        if isinstance(version, int):
            return replace(self, revision=f"v{version}")
        if version is not None:
            return replace(self, version=parse_range(version))
        assert revision is not None
        if not _REVISION.fullmatch(revision) or ".." in revision:
            hint = f"write {self.location}@v1, @v2.1.0, @<commit> or a range such as @>=2.0,<3.0"
            raise _refused(f"{self.location}@{revision}", f"{revision!r} is no branch, tag, commit or range", hint)
        return replace(self, revision=revision)

    @property
    def everything(self) -> Self:
        """The reference to all that its place holds: on the Hub one answer serves every name, elsewhere one each."""
        return replace(self, name=None) if self.scheme == "hub" else self

    @property
    def pinned(self) -> bool:
        """Whether the same code will be found tomorrow: anything but a Hub reference without a commit."""
        return self.scheme != "hub" or bool(self.revision and re.fullmatch(r"[0-9a-f]{40}", self.revision))

    @property
    def proposed(self) -> bool:
        """Whether it names what anybody may put beside a repository: `refs/pr/1`, or what else is no branch or tag."""
        named = self.revision or ""
        return named.startswith("refs/") and not named.startswith(("refs/heads/", "refs/tags/"))

    @property
    def framework(self) -> bool:
        """Whether the model and its framework have it already, so that there is no code to find, pin or trust."""
        return self.scheme in ("original", "attention")


ORIGINAL = KernelRef(scheme="original")
INHERITED = KernelRef(scheme="inherited")


def parse_range(text: str) -> str:
    """Return a version range in its canonical spelling: no blanks, lowest bound first.

    Raises:
        ConfigError: The text is no range of PEP 440 comparisons.
    """
    try:
        clauses = list(SpecifierSet(text))
    except InvalidSpecifier:
        clauses = []
    if not clauses:
        hint = "write comparisons such as >=2.0,<3.0 or ==9.0"
        raise ConfigError(f"{text!r} is no version range", hint=hint)
    return ",".join(f"{clause.operator}{clause.version}" for clause in sorted(clauses, key=_clause_order))


def _clause_order(clause: Any) -> tuple[int, str, str]:
    return "<" in clause.operator, clause.version, clause.operator


def _name(text: str, name: str) -> str:
    if not name:
        raise _refused(text, "nothing after the ':', expected a kernel name", f"write {text}Name")
    if ":" in name:
        one = next(filter(None, name.split(":")), "Name")
        raise _refused(text, "two names, expected one", f"write {text.removesuffix(name)}{one}")
    if not _NAME.fullmatch(name):
        raise _refused(text, f"{name!r} is no kernel name", "write a Python name after the ':'")
    return name


def is_folder(text: str) -> bool:
    """Say whether a text is spelt as a folder, not as a repository or a module."""
    return _PATH.match(text) is not None


def is_relative(location: str) -> bool:
    """Say whether a folder starts from wherever it is named: `./dir` and `../dir`, not `/dir`, `~` or a drive."""
    return location.startswith(".")


def absolute(location: str, start: Path) -> str:
    """Return a folder in its one spelling, from `start` if it is relative; a drive of Windows stays as it is.

    Raises:
        ConfigError: Its `~name` is nobody's home here.
    """
    if _DRIVE.match(location):
        return location
    try:
        return os.path.normpath(start / Path(location).expanduser())
    except (RuntimeError, ValueError) as error:  # the latter for a name with a null character
        raise _refused(location, "there is no such home folder", "write the folder in full") from error


def _refused(text: str, why: str, hint: str) -> ConfigError:
    return ConfigError(f"{text!r}: {why}", hint=hint)
