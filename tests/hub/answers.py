"""What the Hub answers to each request, without a socket: routes, access, redirects, listings, files.

Paths are matched as they were sent: a slash inside a branch's name is percent-encoded, that of a route is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from tests.hub import writing

if TYPE_CHECKING:
    from tests.hub.git import File
    from tests.hub.repos import Commit, Kind, Repository
    from tests.hub.server import Hub

_KINDS: dict[str, Kind] = {"models": "model", "kernels": "kernel", "datasets": "dataset"}
_API = re.compile(r"/api/(?P<kind>models|kernels|datasets)/(?P<rest>.+)")
_FILE = re.compile(
    r"/(?:(?P<kind>kernels|datasets)/)?(?P<name>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as it came in; header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {key: values[-1] for key, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def token(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme == "Bearer" and token else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status, headers, a body, and for the log the route and the repository."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    kind: str = "other"
    repository: str | None = None


class Refused(Exception):
    """An answer given in place of the one that was asked for."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def answer(hub: Hub, asked: Asked) -> Answer:
    """Answer one request."""
    kind, name, reply = _route(hub, asked)
    try:
        _known_token(hub, asked)
        given = reply()
    except Refused as refused:
        given = refusal(refused.status, refused.code, refused.message)
    return Answer(status=given.status, headers=given.headers, body=given.body, kind=kind, repository=name)


def refusal(status: int, code: str | None = None, message: str | None = None) -> Answer:
    """Answer with an error as the Hub words it."""
    message = message or f"Error {status}"
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return _json({"error": message}, status=status, headers=headers)


def _json(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    said = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return Answer(status=status, headers=said, body=json.dumps(data).encode())


def _route(hub: Hub, asked: Asked) -> tuple[str, str | None, Callable[[], Answer]]:
    """Find what is asked for: the route's name, the repository's, and what answers."""
    path = asked.path
    if match := _FILE.fullmatch(path):
        kind = _KINDS[match["kind"] or "models"]
        name = unquote(match["name"])
        return "resolve", name, lambda: _resolve(hub, asked, kind, name, unquote(match["revision"]), match["path"])
    if match := _API.fullmatch(path):
        return _api(hub, asked, match["kind"], match["rest"].split("/"))
    if match := re.fullmatch(r"/api/(?:organizations|users)/([^/]+)/overview", path):
        publisher = unquote(match[1])
        return "overview", None, lambda: _overview(hub, publisher)
    if match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
        digest = match[1]
        return "cdn", None, lambda: _cdn(hub, asked, digest)
    if path == "/api/agent-harnesses":
        return "harnesses", None, lambda: _json({"standardEnvVars": [], "harnesses": {}})
    if path == "/api/whoami-v2":
        return "whoami", None, lambda: _whoami(asked)
    if path == "/api/repos/create":
        return "create", None, lambda: _created(hub, asked)
    if path == "/api/validate-yaml":
        return "validate-yaml", None, lambda: _json(writing.validate_yaml(asked, Refused))
    return "other", None, lambda: refusal(404, "RepoNotFound", f"No route {path}")


def _api(hub: Hub, asked: Asked, plural: str, parts: list[str]) -> tuple[str, str | None, Callable[[], Answer]]:
    kind = _KINDS[plural]
    # A repository of the early days has no owner in its name.
    words = 1 if len(parts) == 1 or (hub.lacks(kind, "/".join(parts[:2])) and not hub.lacks(kind, parts[0])) else 2
    name, rest = unquote("/".join(parts[:words])), parts[words:]
    route = rest[0] if rest else "info"
    revision = unquote(rest[1]) if len(rest) > 1 else "main"

    def readable() -> Repository:
        return _readable(hub, asked, kind, name)

    def writable() -> Repository:
        writing.may_write(hub, asked, name, Refused)
        return readable()

    replies: dict[str, Callable[[], Answer]] = {
        "preupload": lambda: _json(writing.preupload(writable(), revision, asked)),
        "commit": lambda: _json(writing.commit(hub, writable(), revision, asked, Refused)),
        "info": lambda: _info(readable(), "main"),
        "revision": lambda: _info(readable(), revision),
        "refs": lambda: _refs(readable()),
        "commits": lambda: _commits(hub, asked, readable(), revision),
        "tree": lambda: _tree(hub, asked, readable(), revision, unquote("/".join(rest[2:]))),
        "paths-info": lambda: _paths(asked, readable(), revision),
    }
    if (moved := hub.moved(kind, name)) is not None and route in replies:
        target = "/".join(["/api", plural, moved, *rest])
        return route, name, lambda: _elsewhere(asked, target)
    return route, name, replies.get(route, lambda: refusal(404, None, f"No route {asked.path}"))


def _known_token(hub: Hub, asked: Asked) -> None:
    if "authorization" in asked.headers and asked.token not in hub.tokens:
        raise Refused(401, None, "Invalid credentials in Authorization header")


def _readable(hub: Hub, asked: Asked, kind: Kind, name: str) -> Repository:
    """Give a repository that whoever asks may know of."""
    found = hub.repository(kind, name)
    if found is not None and (not found.private or _may_read(hub, asked, name)):
        return found
    # To a stranger the Hub may say of what is private that it is not there, and of what is not that it may be private.
    if asked.token is None and (found is not None or hub.hides_missing):
        raise Refused(401, "RepoNotFound", "Repository not found")
    raise Refused(404, "RepoNotFound", "Repository not found")


def _may_read(hub: Hub, asked: Asked, name: str) -> bool:
    readable = hub.tokens.get(asked.token or "", frozenset())
    return name in readable or "*" in readable


def _elsewhere(asked: Asked, path: str) -> Answer:
    query = urlsplit(asked.target).query
    return Answer(status=307, headers={"Location": path + (f"?{query}" if query else "")})


def _at(repository: Repository, revision: str) -> Commit:
    found = repository.resolve(revision)
    if found is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return found


def _overview(hub: Hub, publisher: str) -> Answer:
    if publisher not in hub.publishers:
        raise Refused(404, None, "This organization does not exist")
    counts = {"numUsers": 1, "numModels": 0, "numDatasets": 0, "numSpaces": 0}
    trusted = hub.publishers[publisher]
    said = {"name": publisher, "fullname": publisher, "avatarUrl": "", "details": "", "isVerified": trusted}
    return _json({**said, **counts, "trustedKernelPublisher": trusted})


def _whoami(asked: Asked) -> Answer:
    if asked.token is None:
        raise Refused(401, None, "Invalid username or password.")
    return _json({"type": "user", "name": "tester", "orgs": [], "auth": {"accessToken": {"role": "read"}}})


def _created(hub: Hub, asked: Asked) -> Answer:
    status, said = writing.create(hub, asked, Refused)
    return _json(said, status=status)


def _info(repository: Repository, revision: str) -> Answer:
    commit = _at(repository, revision)
    said = {
        "id": repository.name,
        "modelId": repository.name,
        "author": repository.name.partition("/")[0],
        "sha": commit.id,
        "private": repository.private,
        "gated": repository.gated,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "lastModified": commit.date,
        "createdAt": min(each.date for each in repository.commits.values()),
        "siblings": [{"rfilename": path} for path in sorted(commit.files)],
    }
    return _json(said)


def _refs(repository: Repository) -> Answer:
    branches, tags = (
        [{"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": commit} for name, commit in found.items()]
        for folder, found in zip(("heads", "tags"), repository.refs(), strict=True)
    )
    return _json({"branches": branches, "converts": [], "tags": tags, "pullRequests": []})


def _commits(hub: Hub, asked: Asked, repository: Repository, revision: str) -> Answer:
    entries = [
        {"id": each.id, "title": each.title, "message": "", "authors": [], "date": each.date}
        for each in repository.history(_at(repository, revision))
    ]
    return _paged(hub, asked, entries)


def _paged(hub: Hub, asked: Asked, entries: list[dict[str, Any]]) -> Answer:
    query = asked.query
    start, size = int(query.get("cursor", 0)), min(int(query.get("limit", hub.page_size)), hub.page_size)
    headers = {}
    if start + size < len(entries):
        url = f"{hub.url}{asked.path}?{urlencode({**query, 'cursor': start + size})}"
        headers["Link"] = f'<{url}>; rel="next"'
    return _json(entries[start : start + size], headers=headers)


def _entry(path: str, file: File) -> dict[str, Any]:
    said = {"type": "file", "oid": file.blob, "size": len(file.data), "path": path}
    if file.lfs:
        said["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": len(file.pointer)}
    return said


def _entries(commit: Commit) -> dict[str, dict[str, Any]]:
    """Every folder and file of a commit by path."""
    folders = {path: {"type": "directory", "oid": oid, "size": 0, "path": path} for path, oid in commit.trees.items()}
    return {**folders, **{path: _entry(path, file) for path, file in commit.files.items()}}


def _dated(entry: dict[str, Any], commit: Commit) -> dict[str, Any]:
    """An entry as `expand` gives it; the last commit is said to be the one that was asked for."""
    last = {"id": commit.id, "title": commit.title, "date": commit.date}
    return {**entry, "lastCommit": last}


def _tree(hub: Hub, asked: Asked, repository: Repository, revision: str, folder: str) -> Answer:
    commit, query = _at(repository, revision), asked.query
    if folder and folder not in commit.trees:
        raise Refused(404, "EntryNotFound", f'"{folder}" does not exist on "{revision}"')
    inside = f"{folder}/" if folder else ""
    deep = query.get("recursive", "false").lower() in ("true", "1")
    entries = [
        entry
        for path, entry in sorted(_entries(commit).items())
        if path and path.startswith(inside) and path != folder and (deep or "/" not in path[len(inside) :])
    ]
    if hub.shuffle is not None:
        Random(hub.shuffle).shuffle(entries)
    if query.get("expand", "false").lower() in ("true", "1"):
        entries = [_dated(entry, commit) for entry in entries]
    return _paged(hub, asked, entries)


def _paths(asked: Asked, repository: Repository, revision: str) -> Answer:
    commit = _at(repository, revision)
    if asked.headers.get("content-type", "").startswith("application/json"):
        said = json.loads(asked.body)
        paths, expand = said["paths"], bool(said.get("expand"))
    else:
        form = parse_qs(asked.body.decode())
        paths, expand = form.get("paths", []), form.get("expand", ["false"])[-1].lower() == "true"
    entries = _entries(commit)
    found = [entries[path] for path in paths if path in entries]
    return _json([_dated(entry, commit) for entry in found] if expand else found)


def _resolve(hub: Hub, asked: Asked, kind: Kind, name: str, revision: str, path: str) -> Answer:
    if (moved := hub.moved(kind, name)) is not None:
        prefix = "" if kind == "model" else f"/{kind}s"
        return _elsewhere(asked, f"{prefix}/{moved}/resolve/{quote(revision, safe='')}/{path}")
    repository = _readable(hub, asked, kind, name)
    if repository.gated and not _may_read(hub, asked, name):
        message = f"Access to {kind} {name} is restricted."
        raise Refused(403 if asked.token else 401, "GatedRepo", message)
    commit = _at(repository, revision)
    file = commit.files.get(unquote(path))
    if file is None:
        missing = refusal(404, "EntryNotFound", "Entry not found")
        return Answer(status=404, headers={**missing.headers, "X-Repo-Commit": commit.id}, body=missing.body)
    headers = {"X-Repo-Commit": commit.id}
    if file.lfs and hub.cdn:
        linked = {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.data))}
        return Answer(status=302, headers={**headers, **linked, "Location": f"{hub.cdn_url}/cdn/{file.sha256}"})
    return _file(asked, file, headers)


def _cdn(hub: Hub, asked: Asked, digest: str) -> Answer:
    file = hub.large_file(digest)
    return refusal(404) if file is None else _file(asked, file, {})


def _file(asked: Asked, file: File, headers: Mapping[str, str]) -> Answer:
    """Give a file, or the part that a range asks for."""
    said = {**headers, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.headers.get("range", ""))
    if match is None:
        return Answer(headers=said, body=file.data)
    size, start = len(file.data), int(match[1])
    end = min(int(match[2]) if match[2] else size - 1, size - 1)
    if start > end:
        return Answer(status=416, headers={**said, "Content-Range": f"bytes */{size}"})
    part = {**said, "Content-Range": f"bytes {start}-{end}/{size}"}
    return Answer(status=206, headers=part, body=file.data[start : end + 1])
