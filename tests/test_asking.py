"""One conversation with the Hub: each no and each silence is a reason with both sides, after bounded patience."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest

from kerncfg.sources.environment import Settings
from kerncfg.sources.hub import asking
from kerncfg.sources.hub.asking import Hub, HubFault, Moved
from tests.hub.kernels import TRUSTED

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

NORMS = f"{TRUSTED}/norms"
REFS = f"/api/kernels/{NORMS}/refs"


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    yield
    huggingface_hub.close_session()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits that last no time, and how long each would have been."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def refs(client: Hub | None = None) -> Any:
    return (client or Hub(Settings.read())).json(REFS, NORMS, "its branches and tags")


def fault(client: Hub | None = None) -> HubFault:
    with pytest.raises(HubFault) as caught:
        refs(client)
    return caught.value


def layers(norms: Repository, client: Hub | None = None) -> bytes:
    right = norms.find("v1").files["build/torch-cpu/layers.py"].data
    into = io.BytesIO()
    path = "build/torch-cpu/layers.py"
    (client or Hub(Settings.read())).file(NORMS, norms.find("v1").id, path, into, len(right))
    return into.getvalue()


SAID: list[tuple[dict[str, Any], str]] = [
    ({"status": 401}, "is private or does not exist, and no token was sent: set HF_TOKEN; needed its branches"),
    (
        {"status": 403},
        "access to kernels-community/norms is forbidden, and no token was sent: set HF_TOKEN; needed its",
    ),
    (
        {"status": 403, "code": "GatedRepo"},
        "is gated, and no token was sent: set HF_TOKEN; needed its branches and tags",
    ),
    ({"status": 404, "code": "RepoNotFound"}, "there is no kernel repository kernels-community/norms at http://127"),
    ({"status": 404}, "there is no kernel repository kernels-community/norms at http://127"),
    ({"status": 404, "code": "RevisionNotFound"}, "has no such revision, needed its branches and tags"),
    ({"status": 404, "code": "EntryNotFound"}, "has no such file, needed its branches and tags"),
    ({"status": 418}, "the Hub at http://127.0.0.1"),
    ({"status": 503}, "failed, needed its branches and tags of kernels-community/norms"),
    ({"status": 429}, "too many requests, needed its branches and tags of kernels-community/norms"),
]


@pytest.mark.parametrize(("said", "reason"), SAID)
def test_every_no_is_told_apart(
    norms: Repository, hub: TestHub, waits: list[float], said: dict[str, Any], reason: str
) -> None:
    hub.fault("/refs", times=None, **said)
    found = fault()
    assert found.message.startswith(f"HTTP {said['status']}: ") and reason in found.message
    assert "needed" in found.message
    assert (found.status, found.code) == (said["status"], said.get("code"))
    assert found.away is (said["status"] in (429, 503))


def test_a_token_that_is_rejected_is_told(norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_yesterday")
    assert fault().message == (
        f"HTTP 401: the token that was sent was rejected, needed its branches and tags of {NORMS}: renew HF_TOKEN"
    )


def test_a_token_opens_what_is_private(norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    norms.private = True
    hub.tokens = {"hf_good": frozenset({NORMS})}
    assert fault().status == 401
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert refs()["branches"]
    assert hub.log.find()[-1].authorized


@pytest.mark.parametrize("token", ["hf_\nsecret", "hf_sécret", "hf secret"])
def test_a_token_that_cannot_be_sent_is_not_sent_and_not_told(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with hub.log.expect(0):
        assert fault().message == (
            "HF_TOKEN holds a blank or a character beyond ASCII, needed one word as the Hub gave it"
        )


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(norms: Repository, hub: TestHub, waits: list[float], status: int) -> None:
    hub.fault("/refs", status=status, times=2)
    assert refs()["branches"]
    assert waits == [0.5, 1.0]


def test_trying_has_an_end(norms: Repository, hub: TestHub, waits: list[float]) -> None:
    hub.fault("/refs", status=503, times=None)
    found = fault()
    assert found.status == 503 and found.message.endswith(f" of {NORMS}, asked 5 times")
    assert waits == list(asking.WAITS) and hub.log.count() == len(waits) + 1


def test_the_hub_says_how_long_to_wait(norms: Repository, hub: TestHub, waits: list[float]) -> None:
    hub.fault("/refs", status=429, retry_after=7, times=2)
    assert refs()["branches"]
    assert waits == [7.0, 7.0]


def test_the_hub_may_ask_to_wait_too_long(norms: Repository, hub: TestHub, waits: list[float]) -> None:
    hub.fault("", status=429, retry_after=3600, times=None)
    assert fault().message.endswith(", it asks to wait 3600 s and kerncfg waits 60 s at most")
    with pytest.raises(HubFault, match=r"HTTP 429: .*its file build/torch-cpu/layers.py"):
        layers(norms)
    assert waits == [] and hub.log.count() == 2


def test_a_wait_may_be_said_as_a_date() -> None:
    class Response:
        headers = {"Retry-After": formatdate(time.time() + 30, usegmt=True)}  # noqa: RUF012

    assert 28 < (asking._asked_wait(Response()) or 0) <= 30
    Response.headers = {"Retry-After": "soon"}
    assert asking._asked_wait(Response()) is None


@pytest.mark.parametrize(
    "said", [{"reset": True}, {"cut": 0.5}, {"cut": 0.5, "reset": True}], ids=["reset", "cut", "cut and reset"]
)
def test_a_broken_answer_is_asked_for_again(
    norms: Repository, hub: TestHub, waits: list[float], said: dict[str, Any]
) -> None:
    hub.fault("/refs", times=2, **said)
    assert refs()["branches"]
    hub.fault("/resolve/", times=2, **said)
    assert layers(norms) == norms.find("v1").files["build/torch-cpu/layers.py"].data
    assert waits == [0.5, 1.0, 0.5, 1.0]


def test_an_answer_that_is_always_broken_is_a_reason(norms: Repository, hub: TestHub, waits: list[float]) -> None:
    refs(client := Hub(Settings.read()))
    hub.fault("/resolve/", times=None, reset=True)
    with pytest.raises(HubFault) as caught:
        layers(norms, client)
    assert caught.value.away
    assert f"gave no answer about {NORMS}, needed its file build/torch-cpu/layers.py" in caught.value.message
    assert refs(client)  # the others may still be asked


def test_what_was_cut_off_goes_on_where_it_ended(norms: Repository, hub: TestHub, waits: list[float]) -> None:
    hub.fault("/resolve/", cut=0.5)
    assert layers(norms) == norms.find("v1").files["build/torch-cpu/layers.py"].data
    ranges = [each.range for each in hub.log.find(kind="resolve")]
    assert ranges[0] is None
    assert ranges[1] is None or ranges[1].startswith("bytes=")


def test_a_slow_answer_is_waited_for_until_it_trickles(
    norms: Repository, hub: TestHub, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fault("/refs", slow=0.02)
    assert refs()["branches"] and waits == []
    monkeypatch.setattr(asking, "PATIENCE", 0.05)
    hub.fault("/refs", slow=0.02, times=None)
    assert "ReadTimeout: the answer was not complete after 0.05 s" in fault().message


def test_a_hub_that_says_nothing_is_left(
    norms: Repository, hub: TestHub, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT", 0.05)
    hub.fault("/refs", delay=1, times=None)
    client = Hub(Settings.read())
    assert "ReadTimeout" in fault(client).message
    with (
        hub.log.expect(0),
        pytest.raises(HubFault, match="gave no answer about other/one, needed its branches and tags: Read"),
    ):
        client.json("/api/kernels/other/one/refs", "other/one", "its branches and tags")


def test_that_nobody_is_there_is_found_out_once(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        connects = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connects.append(1)
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        monkeypatch.setattr(asking, "WAITS", (0.01,))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        client = Hub(Settings.read())
        messages: list[str] = []

        def ask(number: int) -> None:
            with pytest.raises(HubFault) as caught:
                client.json(f"/api/kernels/a/r{number}/refs", f"a/r{number}", "its branches and tags")
            messages.append(caught.value.message)

        asks = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for each in asks:
            each.start()
        for each in asks:
            each.join()
        assert len(connects) == 2  # the first, and once again after a wait
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(messages) == 16 and all("gave no answer about a/r" in message for message in messages)


def test_an_address_where_nobody_listens_is_not_tried_twice(hub: TestHub, waits: list[float]) -> None:
    found = fault(Hub(replace(Settings.read(), endpoint="http://127.0.0.1:9")))
    assert found.away and waits == []
    assert "gave no answer about" in found.message


@pytest.mark.parametrize("endpoint", ["hub.acme.com", "ftp://127.0.0.1"])
def test_an_address_that_is_none_is_not_asked(hub: TestHub, waits: list[float], endpoint: str) -> None:
    found = fault(Hub(replace(Settings.read(), endpoint=endpoint)))
    assert not found.away and waits == []
    assert found.message.startswith("HF_ENDPOINT begins with neither http:// nor https://, needed an address")


def test_one_question_is_asked_once(norms: Repository, hub: TestHub) -> None:
    client = Hub(Settings.read())
    threads = [threading.Thread(target=refs, args=(client,)) for _ in range(8)]
    with hub.log.expect(1):
        for each in threads:
            each.start()
        for each in threads:
            each.join()


def test_one_refusal_is_asked_for_once(hub: TestHub) -> None:
    client = Hub(Settings.read())
    with hub.log.expect(1):
        assert fault(client).message == fault(client).message


@pytest.mark.parametrize("body", [b"<html>please log in</html>", b"[1, 2]", b'"text"', b"\xff", b"[]"])
def test_what_is_no_answer_of_a_hub_is_told(hub: TestHub, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(body) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        found = fault()
    assert found.away  # who stands between may be gone another time
    assert found.message.startswith(f"HTTP 200: {address}{REFS} answered ")
    assert found.message.endswith(", needed the JSON of a Hub")


class proxy:  # noqa: N801 - it reads as a function
    """Something that answers everything with one body."""

    def __init__(self, body: bytes, headers: str = "") -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{headers}Connection: close\r\n\r\n"
        self._answer = head.encode() + body

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(self._answer)


@pytest.mark.parametrize("link", ["http://elsewhere.example/next", "/api/kernels/a/b/tree/x"])
def test_pages_go_on_at_the_same_hub_and_have_an_end(hub: TestHub, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(b"[{}]", f'Link: <{link}>; rel="next"\r\n') as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        client = Hub(Settings.read())
        with pytest.raises(HubFault, match=r"the next page of the files is said to be at .*, needed another one"):
            list(client.pages("/api/kernels/a/b/tree/x", "a/b", "the files"))


def test_a_renamed_repository_is_told_with_its_new_name(norms: Repository, hub: TestHub) -> None:
    hub.rename(norms, f"{TRUSTED}/renamed")
    with pytest.raises(Moved) as caught:
        refs()
    assert caught.value.repository == f"{TRUSTED}/renamed"
    assert layers(norms) == norms.find("v1").files["build/torch-cpu/layers.py"].data  # its digest is known


@pytest.mark.parametrize(
    "place",
    [
        "http://elsewhere.example/api/kernels/a/b/refs",
        "/login",
        f"/api/kernels/{NORMS}/refs",
        "/api/kernels/..%2f/x/refs",
    ],
)
def test_a_redirect_to_no_kernel_is_told(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from tests.hub import answers

    monkeypatch.setattr(
        answers, "_elsewhere", lambda asked, path: answers.Answer(status=307, headers={"Location": place})
    )
    hub.rename(norms, f"{TRUSTED}/renamed")
    found = fault()
    assert found.message.startswith(f"HTTP 307: {NORMS} is said to be at ")
    assert found.message.endswith(", needed a kernel repository of this Hub") and not found.away


def test_a_password_in_the_address_is_not_told(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:hunter2@127.0.0.1:{hub.port}")
    for said in ({"status": 404}, {"status": 500}, {"reset": True}):
        monkeypatch.setattr(asking, "WAITS", (0.0,))
        hub.fault("/refs", times=2, **said)
        assert "hunter2" not in fault().message


def test_offline_nothing_is_asked(norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with hub.log.expect(0):
        assert (
            fault().message
            == f"HF_HUB_OFFLINE is set, and {NORMS} is not in the cache, {hub.cache}; needed its branches and tags"
        )


def test_a_library_that_was_offline_when_it_was_imported_is_told(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fault().message.startswith("huggingface_hub was offline when it was imported and asks nothing, needed its")


def test_no_telemetry_comes_along(norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY")
    refs()
    layers(norms)
    assert [each.agent for each in hub.log.everything] == ["kerncfg", "kerncfg"]
