"""Repositories of the loopback Hub: commits, branches, tags, and kernel builds in the on-Hub layout."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Literal, Self

from tests.hub.git import DAWN, File, commit_id, trees

Kind = Literal["kernel", "model", "dataset"]
Content = str | bytes | File

README = "README.md"
ATTRIBUTES = ".gitattributes"
_SHORTEST = 7  # hex digits that the Hub takes for a commit

# Old clients import the folder named after the kernel; it stands for the build above it.
_COMPATIBILITY = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location(__name__ + "_above", Path(__file__).parent.parent / "__init__.py")
_above = module_from_spec(_spec)
sys.modules[_spec.name] = _above
_spec.loader.exec_module(_above)
globals().update({name: value for name, value in vars(_above).items() if not name.startswith("__")})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit; `trees` holds git's id of every folder."""

    id: str
    title: str
    when: int
    files: Mapping[str, File]
    trees: Mapping[str, str]
    parent: str | None = None

    @property
    def date(self) -> str:
        return datetime.fromtimestamp(self.when, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Repository:
    """A repository that tests write to; the Hub reads it as it stands at each request.

    `gated` is as on the Hub; `private` and `gated` ones are read with a token that the Hub knows.
    """

    def __init__(
        self,
        name: str,
        kind: Kind = "kernel",
        *,
        private: bool = False,
        gated: Literal[False, "auto", "manual"] = False,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.private = private
        self.gated = gated
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.proposals: dict[str, str] = {}
        self.commits: dict[str, Commit] = {}
        self._lock = RLock()

    def commit(
        self,
        files: Mapping[str, Content | None],
        branch: str = "main",
        *,
        start: str | None = None,
        title: str | None = None,
        tag: str | None = None,
        fresh: bool = False,
    ) -> str:
        """Lay files over a branch's newest commit (`None` takes one away), move the branch, and give the commit.

        A branch that is not there yet starts at `start`, or else empty, as does every commit that is `fresh`.
        """
        with self._lock:
            parent = self.branches.get(branch) or (self.find(start).id if start else None)
            left = {} if fresh or parent is None else dict(self.commits[parent].files)
            for path, content in files.items():
                left.pop(path, None)
                if content is not None:
                    left[path] = _file(content)
            made = self._store(left, parent, title or f"Commit {len(self.commits) + 1}")
            self.branches[branch] = made
            if tag:
                self.tags[tag] = made
            return made

    def _store(self, files: dict[str, File], parent: str | None, title: str) -> str:
        folders, when = trees(files), DAWN + 60 * len(self.commits)
        made = commit_id(folders[""], parent, title, when)
        self.commits[made] = Commit(id=made, title=title, when=when, files=files, trees=folders, parent=parent)
        return made

    def tag(self, name: str, at: str = "main") -> str:
        """Tag, or tag anew, what `at` names, and give the commit."""
        with self._lock:
            self.tags[name] = self.find(at).id
            return self.tags[name]

    def branch(self, name: str, at: str = "main") -> str:
        """Make a branch, or move one, to what `at` names, and give the commit."""
        with self._lock:
            self.branches[name] = self.find(at).id
            return self.branches[name]

    def propose(self, files: Mapping[str, Content | None], start: str = "main", number: int = 1) -> str:
        """Open a pull request, as anybody may: its commit has the name `refs/pr/N` and is on no branch."""
        made = self.commit(files, f"refs/pr/{number}", start=start)
        with self._lock:
            self.proposals[f"refs/pr/{number}"] = self.branches.pop(f"refs/pr/{number}")
        return made

    def history(self, commit: Commit) -> list[Commit]:
        """Give a commit and those before it, the newest first."""
        found = [commit]
        with self._lock:
            while (parent := found[-1].parent) is not None:
                found.append(self.commits[parent])
        return found

    def delete(self, name: str) -> None:
        """Take a branch or a tag away; its commits stay, as they do on the Hub."""
        with self._lock:
            (self.branches if name in self.branches else self.tags).pop(name)

    def twins(self, branch: str = "main", digits: int = _SHORTEST) -> tuple[str, str]:
        """Make two commits whose ids begin alike, so that those digits alone name neither."""
        seen: dict[str, str] = {}
        with self._lock:
            parent = self.find(branch)
            number = 0
            while True:
                title, when = f"Twin {number}", DAWN + 60 * len(self.commits)
                made = commit_id(parent.trees[""], parent.id, title, when)
                other = seen.setdefault(made[:digits], made)
                if other != made:
                    for each in (other, made):
                        self.commits[each] = Commit(
                            id=each, title=title, when=when, files=parent.files, trees=parent.trees, parent=parent.id
                        )
                    return other, made
                number += 1

    def resolve(self, revision: str) -> Commit | None:
        """Give the commit that a branch, tag, full or unique short commit names, as the Hub resolves it."""
        with self._lock:
            if revision in self.proposals:
                return self.commits[self.proposals[revision]]
            for names, prefix in ((self.branches, "refs/heads/"), (self.tags, "refs/tags/")):
                for name in (revision, revision.removeprefix(prefix)):
                    if name in names:
                        return self.commits[names[name]]
            if revision in self.commits:
                return self.commits[revision]
            alike = [each for each in self.commits if each.startswith(revision)]
            return self.commits[alike[0]] if len(revision) >= _SHORTEST and len(alike) == 1 else None

    def find(self, revision: str) -> Commit:
        """Give the commit that `revision` names; a test that names none is wrong."""
        found = self.resolve(revision)
        if found is None:
            raise KeyError(f"{self.name} has no revision {revision}; it has {[*self.branches, *self.tags]}")
        return found

    def refs(self) -> tuple[dict[str, str], dict[str, str]]:
        """Give branches and tags with their commits, as they stand."""
        with self._lock:
            return dict(self.branches), dict(self.tags)

    def describe(self, text: str = "") -> Self:
        """Put README.md and .gitattributes on `main`, which the Hub never lacks."""
        attributes = "*.so filter=lfs diff=lfs merge=lfs -text\n"
        self.commit({README: f"# {self.name}\n{text}", ATTRIBUTES: attributes}, title="initial commit")
        return self

    def release(
        self,
        builds: Iterable[Build],
        branch: str = "v1",
        *,
        tag: str | None = None,
        extra: Mapping[str, Content | None] | None = None,
    ) -> str:
        """Commit builds to a version branch, in place of those that were there, and give the commit."""
        if not self.branches:
            self.describe()
        files = {path: content for build in builds for path, content in build.files().items()}
        kept = self.resolve(branch) or self.find("main")
        gone = {path: None for path in kept.files if path.startswith("build/")}
        return self.commit({**gone, **files, **(extra or {})}, branch, start="main", tag=tag, title=f"Build {branch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build of a kernel: its files below `build/VARIANT`, and what its metadata.json says.

    `modules` are paths inside the build with their contents. `metadata` is laid over the usual, where `None` takes a
    key away; as bytes or text it is the whole file. `digest` is the algorithm, or `None` for metadata without digests.
    `compatibility` adds the folder that old clients read.
    """

    name: str
    modules: Mapping[str, Content]
    variant: str = "torch-cpu"
    version: int = 1
    metadata: Mapping[str, Any] | str | bytes | None = None
    digest: Literal["sha256", "sha512"] | None = "sha256"
    compatibility: bool = False

    @property
    def folder(self) -> str:
        return f"build/{self.variant}"

    def files(self) -> dict[str, Content]:
        """Give the build's files by their paths in the repository."""
        modules = {path: _file(content) for path, content in self.modules.items()}
        if self.compatibility:
            modules[f"{self.name.replace('-', '_')}/__init__.py"] = _file(_COMPATIBILITY)
        said: Content
        said = self.metadata if isinstance(self.metadata, (str, bytes)) else json.dumps(self._said(modules), indent=2)
        return {f"{self.folder}/{path}": file for path, file in {**modules, "metadata.json": _file(said)}.items()}

    def _said(self, modules: Mapping[str, File]) -> dict[str, Any]:
        assert not isinstance(self.metadata, (str, bytes))
        backend = backend_of(self.variant)
        content = hashlib.sha1(repr(sorted((path, file.blob) for path, file in modules.items())).encode())
        said = {
            "name": self.name,
            "id": f"_{self.name.replace('-', '_')}_{backend}_{content.hexdigest()[:7]}",
            "version": self.version,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
            **({"digest": {"algorithm": self.digest, "files": self._digests(modules)}} if self.digest else {}),
            **(self.metadata or {}),
        }
        return {key: value for key, value in said.items() if value is not None}

    def _digests(self, modules: Mapping[str, File]) -> dict[str, str]:
        return {
            path: base64.b64encode(hashlib.new(str(self.digest), file.data).digest()).decode()
            for path, file in sorted(modules.items())
            if "__pycache__" not in path.split("/") and not path.endswith(".pyc")
        }


def backend_of(variant: str) -> str:
    """Give the backend that metadata.json names for a variant: `cuda` for `torch213-cu126-x86_64-linux`."""
    words = variant.split("-")
    known = {"cu": "cuda", "rocm": "rocm", "xpu": "xpu", "cann": "cann", "npu": "cann", "universal": "cpu"}
    named = {"cpu", "metal", "neuron", "tpu", "cuda", *known}
    for word in words[1:]:
        letters = word.rstrip("0123456789")
        if letters in named:
            return known.get(letters, letters)
    return "cpu"


def _file(content: Content) -> File:
    if isinstance(content, File):
        return content
    return File(data=content.encode() if isinstance(content, str) else content)
