"""A Hub on the loopback interface: real HTTP, for the real clients, with a log and faults."""

from __future__ import annotations

import socket
import struct
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Self

from tests.hub.answers import Answer, Asked, answer, refusal
from tests.hub.faults import Fault, Faults
from tests.hub.log import Log, Request

if TYPE_CHECKING:
    from tests.hub.git import File
    from tests.hub.repos import Kind, Repository

_POLL = 0.01  # seconds until a Hub that is told to stop looks up
_PIECES = 10


class Hub:
    """Repositories and publishers behind an address; settings are read at each request.

    `publishers`: whether the Hub trusts their kernels. `tokens`: the repositories each may read if private or gated
    (`*`: all). `writers`: the organisations each of them may write to. `latency`: seconds before each answer.
    `page_size`: entries of one listing. `shuffle`: a seed for the order of listings. `cdn`: LFS files are a redirect
    to another origin. `hides_missing`: who has no token is told 401 for what is not there, too. `crashes`: what went
    wrong inside the Hub itself; tests want it empty.
    """

    def __init__(self) -> None:
        self.publishers: dict[str, bool] = {}
        self.tokens: dict[str, frozenset[str]] = {}
        self.writers: dict[str, frozenset[str]] = {}
        self.latency = 0.0
        self.page_size = 1000
        self.shuffle: int | None = None
        self.cdn = True
        self.hides_missing = False
        self.log = Log()
        self.faults = Faults()
        self.crashes: list[str] = []
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._moved: dict[tuple[str, str], str] = {}
        self.closing = Event()
        self._server: _Server | None = None
        self._thread: Thread | None = None
        # Bound as long as the Hub lives: nobody else gets its port while it cannot be reached.
        self._socket = _bound(0)
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        """The endpoint: what HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def cdn_url(self) -> str:
        """Where large files are: the same socket, to a client another origin."""
        return f"http://localhost:{self.port}"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._socket.close()

    def open(self) -> None:
        """Listen; a Hub that listens stays as it is."""
        if self._server is not None:
            return
        self.closing.clear()
        self._server = _Server(self, self._socket)
        self._thread = Thread(target=self._server.serve_forever, args=(_POLL,), name=f"hub-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections and break those that are open; what it holds stays."""
        if self._server is None or self._thread is None:
            return
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.break_connections()
        self._socket.close()
        self._server = self._thread = None
        self._socket = _bound(self.port)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Refuse every connection inside the block."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def add(self, *repositories: Repository) -> None:
        """Show repositories; their publishers exist from now on, untrusted unless said otherwise."""
        for each in repositories:
            self._repositories[each.kind, each.name] = each
            self.publishers.setdefault(each.name.partition("/")[0], False)

    def remove(self, repository: Repository) -> None:
        del self._repositories[repository.kind, repository.name]

    def rename(self, repository: Repository, name: str) -> None:
        """Give a repository another name; the old one is a redirect, as on the Hub."""
        self.remove(repository)
        self._moved[repository.kind, repository.name] = name
        repository.name = name
        self.add(repository)

    def fault(self, pattern: str = "", **said: Any) -> Fault:
        """Switch a fault on and give it; the words are those of `Fault`."""
        return self.faults.add(Fault(pattern=pattern, **said))

    def repository(self, kind: Kind, name: str) -> Repository | None:
        return self._repositories.get((kind, name))

    def lacks(self, kind: Kind, name: str) -> bool:
        """Whether there is no such repository, and never was."""
        return (kind, name) not in self._repositories and (kind, name) not in self._moved

    def moved(self, kind: Kind, name: str) -> str | None:
        """Give the new name of a repository that was renamed and whose old name nobody took."""
        return None if (kind, name) in self._repositories else self._moved.get((kind, name))

    def large_file(self, digest: str) -> File | None:
        """Give the LFS file of a SHA-256."""
        commits = (commit for each in list(self._repositories.values()) for commit in list(each.commits.values()))
        files = (file for commit in commits for file in commit.files.values())
        return next((file for file in files if file.lfs and file.sha256 == digest), None)


def _bound(port: int) -> socket.socket:
    """A socket that has its port and does not listen: whoever connects is refused."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: Hub, bound: socket.socket) -> None:
        self.hub = hub
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        super().__init__(("127.0.0.1", hub.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_name, self.server_port = "127.0.0.1", hub.port
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        with self._lock:
            left = list(self._open)
        for each in left:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client was faster
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.hub.crashes.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # a client that goes away, or that a fault sent away, is no error of the Hub
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: there is a log."""

    def answer_it(self) -> None:
        hub = self.server.hub
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        asked = Asked(method=self.command, target=self.path, headers=headers, body=body)
        with hub.log.open():
            fault = hub.faults.meeting(f"{asked.method} {asked.target}")
            given = answer(hub, asked)
            if fault is not None and fault.status is not None:
                given = _faulty(given, fault)
            before = fault is not None and fault.breaks == "before"
            hub.log.add(_noted(asked, given, None if before else given.status))
            if pause := hub.latency + (fault.delay if fault else 0.0):
                hub.closing.wait(pause)
        if before:
            self._reset()
        else:
            self._send(given, fault or Fault(pattern=""))

    do_GET = do_HEAD = do_POST = answer_it  # noqa: N815 - the names that http.server calls

    def _send(self, given: Answer, fault: Fault) -> None:
        whole = given.body
        body = fault.spoil(whole) if given.kind in ("resolve", "cdn") and given.status in (200, 206) else whole
        lines = [f"HTTP/1.1 {given.status} {responses.get(given.status, '')}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in given.headers.items()]
        head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")
        if self.command == "HEAD":
            self.wfile.write(head)
            return
        kept = body if fault.cut is None else body[: int(len(body) * fault.cut)]
        if fault.slow:
            self._send_slowly(head, kept, fault.slow)
        else:
            self.wfile.write(head + kept)
        if fault.cut is not None:
            self.close_connection = True
            if fault.reset:
                self._reset()

    def _send_slowly(self, head: bytes, body: bytes, pause: float) -> None:
        self.wfile.write(head)
        size = max(1, -(-len(body) // _PIECES))
        for start in range(0, len(body), size):
            self.server.hub.closing.wait(pause)
            self.wfile.write(body[start : start + size])

    def _reset(self) -> None:
        """End the connection with a TCP reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _faulty(given: Answer, fault: Fault) -> Answer:
    assert fault.status is not None
    made = refusal(fault.status, fault.code, fault.message)
    later = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    return Answer(
        status=fault.status,
        headers={**made.headers, **later},
        body=made.body,
        kind=given.kind,
        repository=given.repository,
    )


def _noted(asked: Asked, given: Answer, status: int | None) -> Request:
    return Request(
        method=asked.method,
        path=asked.target,
        kind=given.kind,
        repository=given.repository,
        status=status,
        range=asked.headers.get("range"),
        authorized="authorization" in asked.headers,
        agent=asked.headers.get("user-agent", ""),
    )
