"""Git's ids, computed as git does, so that equal content has equal ids on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

AUTHOR = "Tests <tests@example.invalid>"
DAWN = 1_767_225_600  # 2026-01-01T00:00:00Z, when the first commit of every repository was made


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The bytes of one file; with `lfs` git holds a pointer to them, as the Hub does for large files."""

    data: bytes
    lfs: bool = False

    @property
    def sha256(self) -> str:
        return _sha256(self.data)

    @property
    def pointer(self) -> bytes:
        """What git holds for an LFS file."""
        lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}", f"size {len(self.data)}")
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def blob(self) -> str:
        """Git's id of the file."""
        return object_id("blob", self.pointer if self.lfs else self.data)

    @property
    def etag(self) -> str:
        """What the Hub gives as the file's ETag: the SHA-256 of an LFS file, git's id of any other."""
        return self.sha256 if self.lfs else self.blob


@cache
def object_id(kind: str, body: bytes) -> str:
    """SHA-1 of an object of git."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(body)) + body, usedforsecurity=False).hexdigest()


@cache
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def trees(files: Mapping[str, File]) -> dict[str, str]:
    """Git's id of every folder, by path; that of the root is at the empty path."""
    children: dict[str, dict[str, tuple[bytes, str]]] = {"": {}}
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        children.setdefault(folder, {})[name] = (b"100644", file.blob)
        while folder:
            folder = folder.rpartition("/")[0]
            children.setdefault(folder, {})
    found: dict[str, str] = {}
    for folder in sorted(children, key=lambda path: (path.count("/") if path else -1, path), reverse=True):
        # Git sorts a folder as if its name ended in a slash.
        entries = sorted(children[folder].items(), key=lambda each: each[0] + "/" * (each[1][0] == b"40000"))
        body = b"".join(b"%s %s\0" % (mode, name.encode()) + bytes.fromhex(oid) for name, (mode, oid) in entries)
        found[folder] = object_id("tree", body)
        if folder:
            parent, _, name = folder.rpartition("/")
            children[parent][name] = (b"40000", found[folder])
    return found


def commit_id(tree: str, parent: str | None, title: str, when: int) -> str:
    """Git's id of a commit; `when` is in seconds since 1970."""
    lines = [f"tree {tree}", *([f"parent {parent}"] if parent else ())]
    lines += [f"author {AUTHOR} {when} +0000", f"committer {AUTHOR} {when} +0000", "", title, ""]
    return object_id("commit", "\n".join(lines).encode())
