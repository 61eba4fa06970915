"""What the loopback Hub answers to whoever writes: repositories made, and commits of files that are no large ones.

The protocol is that of huggingface_hub's `create_repo` and `create_commit`: `/api/repos/create`, `/api/validate-yaml`,
`/api/TYPE/ID/preupload/REV` and `/api/TYPE/ID/commit/REV`, which takes one JSON object a line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml

from tests.hub.repos import Repository

if TYPE_CHECKING:
    from tests.hub.answers import Asked
    from tests.hub.repos import Content, Kind
    from tests.hub.server import Hub

LARGE = 10_000_000  # bytes from which a file is sent elsewhere, which this Hub has no answer for

Refuse = Callable[[int, str | None, str], Exception]


def may_write(hub: Hub, asked: Asked, name: str, refuse: Refuse) -> None:
    """Refuse who may not write to a repository of this name."""
    if asked.token is None:
        raise refuse(401, None, "Invalid username or password.")
    writable = hub.writers.get(asked.token, frozenset())
    if name.partition("/")[0] not in writable and "*" not in writable:
        raise refuse(403, None, f"You don't have the rights to write to {name}")


def create(hub: Hub, asked: Asked, refuse: Refuse) -> tuple[int, dict[str, Any]]:
    """Make a repository, and give the status and what is said; one that is there is a conflict, with its address."""
    said = json.loads(asked.body)
    kind: Kind = said.get("type") or "model"
    name = f"{said['organization']}/{said['name']}"
    may_write(hub, asked, name, refuse)
    url = f"{hub.url}/{'' if kind == 'model' else f'{kind}s/'}{name}"
    if hub.repository(kind, name) is not None:
        return 409, {"error": f"You already created this {kind} repo: {name}", "url": url}
    made = Repository(name, kind, private=said.get("visibility") == "private")
    hub.add(made.describe())
    return 200, {"url": url, "name": name}


def validate_yaml(asked: Asked, refuse: Refuse) -> dict[str, Any]:
    """Check the metadata at the start of a README.md."""
    content: str = json.loads(asked.body)["content"]
    if not content.startswith("---\n"):
        return {"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]}
    try:
        yaml.safe_load(content.split("---\n")[1])
    except yaml.YAMLError as error:
        raise refuse(400, None, str(error)) from error
    return {"errors": [], "warnings": []}


def preupload(repository: Repository, revision: str, asked: Asked) -> dict[str, Any]:
    """Say how each file is to be sent, and which the repository has already."""
    there = repository.find(revision).files
    return {
        "files": [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                "shouldIgnore": False,
                "oid": there[file["path"]].blob if file["path"] in there else None,
            }
            for file in json.loads(asked.body)["files"]
        ]
    }


def commit(hub: Hub, repository: Repository, revision: str, asked: Asked, refuse: Refuse) -> dict[str, Any]:
    """Take the files of a commit."""
    lines = [json.loads(line) for line in asked.body.splitlines()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    files: dict[str, Content | None] = {}
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "deletedFile":
            files[value["path"]] = None
        elif line["key"] != "header":
            raise refuse(400, None, f"this Hub takes no {line['key']}")
    parent = header.get("parentCommit")
    if parent is not None and repository.find(revision).id != parent:
        raise refuse(412, None, "A commit has happened since. Please refresh and try again.")
    made = repository.commit(files, revision, title=header["summary"])
    prefix = "" if repository.kind == "model" else f"{repository.kind}s/"
    return {"success": True, "commitOid": made, "commitUrl": f"{hub.url}/{prefix}{repository.name}/commit/{made}"}
