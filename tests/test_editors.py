"""What people see in an editor: yaml-language-server, the real one from npm,
checks and completes by the modelines."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from kerncfg.locations import conf, schemas

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VERSION = "1.25.0"  # of yaml-language-server
SETTINGS: dict[str, Any] = {
    "yaml": {
        "validate": True,
        "completion": True,
        "schemaStore": {"enable": False},
        "kubernetesCRDStore": {"enable": False},
    }
}


class Server:
    """A language server and the few words of its protocol that an editor says here."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0
        self.faults: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        about = {"processId": None, "rootUri": None, "capabilities": {"workspace": {"configuration": True}}}
        self.ask("initialize", about)
        self.tell("initialized", {})
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def tell(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while (message := self.next()).get("id") != self.number or "method" in message:
            pass
        return message["result"]

    def next(self) -> dict[str, Any]:
        """Return the next message, having answered what the server asks and kept the faults it tells."""
        assert self.process.stdout
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the language server went away"
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        method, params = message.get("method"), message.get("params", {})
        if method == "workspace/configuration":
            self.send({"id": message["id"], "result": [SETTINGS.get(item["section"], {}) for item in params["items"]]})
        elif method and "id" in message:
            self.send({"id": message["id"], "result": None})
        elif method == "textDocument/publishDiagnostics":
            self.faults[params["uri"]] = [fault["message"] for fault in params["diagnostics"]]
        return message

    def open(self, file: Path, text: str) -> list[str]:
        """Open a text as a file and return the faults that the editor shows."""
        self.faults.pop(file.as_uri(), None)
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        while file.as_uri() not in self.faults:
            self.next()
        self.tell("textDocument/didClose", {"textDocument": {"uri": file.as_uri()}})
        return self.faults.pop(file.as_uri())

    def complete(self, file: Path, text: str) -> set[str]:
        """Return what the editor offers at the mark `|` of a text."""
        before, after = text.split("|")
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": before + after}
        self.tell("textDocument/didOpen", {"textDocument": document})
        line, column = before.count("\n"), len(before.rpartition("\n")[2])
        where = {"textDocument": {"uri": file.as_uri()}, "position": {"line": line, "character": column}}
        found = self.ask("textDocument/completion", where)
        self.tell("textDocument/didClose", {"textDocument": {"uri": file.as_uri()}})
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        pytest.fail("node and npm are needed: this test runs the language server that editors use")
    folder = tmp_path_factory.mktemp("language-server")
    package = f"yaml-language-server@{VERSION}"
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", package], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    program = folder / "node_modules/yaml-language-server/bin/yaml-language-server"
    with Server([node, str(program), "--stdio"]) as running:
        yield running


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the packaged folders, so that a planted fault lies beside the real schemas."""
    shutil.copytree(conf(), tmp_path / "conf")
    shutil.copytree(schemas(), tmp_path / "schemas")
    return tmp_path / "conf"


SHIPPED = sorted(file.relative_to(conf()).as_posix() for file in conf().rglob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_has_no_faults(server: Server, copied: Path, name: str) -> None:
    assert server.open(copied / name, (copied / name).read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("name", "text", "typo", "fault"),
    [
        ("kernels/bundled.yaml", "  rocm: builtin:RMSNorm", "  rcom: builtin:RMSNorm", "rcom"),
        ("kernels/bundled.yaml", "    training: original", "    traning: original", "traning"),
        ("policy/default.yaml", "strict: false", "strict: maybe", "boolean"),
        ("target/h100.yaml", "device: cuda", "device: cdua", "cuda"),
        ("experiment/cpu_llama_strict.yaml", "    on_fail: error", "    on_fial: error", "on_fial"),
        ("trust/default.yaml", "allow_all_kernels", "allow_all_kernel", "allow_all_kernel"),
    ],
)
def test_a_planted_typo_is_shown(server: Server, copied: Path, name: str, text: str, typo: str, fault: str) -> None:
    whole = (copied / name).read_text("utf-8")
    assert text in whole
    found = server.open(copied / name, whole.replace(text, typo, 1))
    assert any(fault in message for message in found), found


@pytest.mark.parametrize(
    ("name", "text", "offered"),
    [
        ("kernels/mine.yaml", "RMSNorm:\n  cuda: a/b:C\n  |\n", {"rocm", "cpu", "match", "fallback", "version"}),
        ("kernels/mine.yaml", "RMSNorm:\n  cuda:\n    |\n", {"kernel", "inference", "training_compile", "dtype"}),
        ("kernels/mine.yaml", "RMSNorm:\n  fallback: |\n", {"original", "error"}),
        ("policy/mine.yaml", "strict: true\n|\n", {"fallback", "require_pin", "verify"}),
        ("target/mine.yaml", "device: |\n", {"cuda", "rocm", "cpu", "auto"}),
        ("experiment/mine.yaml", "policy:\n  |\n", {"strict", "fallback"}),
    ],
)
def test_the_keys_and_words_that_fit_are_offered(
    server: Server, copied: Path, name: str, text: str, offered: set[str]
) -> None:
    group = name.partition("/")[0]
    modeline = f"# yaml-language-server: $schema=../../schemas/{group}.schema.json\n"
    assert offered <= server.complete(copied / name, modeline + text)
