"""Each fault of the loopback Hub reaches huggingface_hub as what it stands for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

from tests.hub.asking import NAME, download, quick, sample

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository


@pytest.fixture
def api(hub: TestHub) -> Iterator[HfApi]:
    yield HfApi(endpoint=hub.url, token=False)
    huggingface_hub.close_session()


@pytest.fixture
def repository(hub: TestHub) -> Repository:
    made = sample()
    hub.add(made)
    return made


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_fault_answers_with_a_status_so_many_times(
    hub: TestHub, api: HfApi, repository: Repository, status: int
) -> None:
    fault = hub.fault(r"GET .*/refs", status=status, times=2, after=1)
    seen = []
    for _ in range(4):
        try:
            api.list_repo_refs(NAME, repo_type="kernel")
        except HfHubHTTPError as error:
            seen.append(error.response.status_code)
        else:
            seen.append(200)
    assert seen == [200, status, status, 200]
    assert fault.hits == hub.log.count(status=status) == 2


def test_a_limit_says_when_to_come_again(
    hub: TestHub, api: HfApi, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = quick(monkeypatch)
    hub.fault("/tree/", status=429, retry_after=3, times=2)
    assert list(api.list_repo_tree(NAME, repo_type="kernel"))
    assert waits == [4.0, 4.0]


def test_an_error_code_and_message_come_with_a_fault(hub: TestHub, api: HfApi, repository: Repository) -> None:
    hub.fault("", status=403, code="GatedRepo", message="ask first")
    with pytest.raises(GatedRepoError, match="ask first"):
        api.kernel_info(NAME)


def test_a_reset_before_the_answer_is_one(hub: TestHub, api: HfApi, repository: Repository) -> None:
    hub.fault("/refs", reset=True)
    with pytest.raises(httpx2.NetworkError):
        api.list_repo_refs(NAME, repo_type="kernel")
    assert api.list_repo_refs(NAME, repo_type="kernel").branches
    assert [each.status for each in hub.log.find()] == [None, 200]


def test_a_reset_inside_a_body_is_not_retried_by_the_client(
    hub: TestHub, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    hub.fault("GET /cdn", cut=0.5, reset=True)
    with pytest.raises(httpx2.ReadError):
        download(hub, "build/torch-cpu/part/large.so")


def test_a_cut_body_is_asked_for_from_where_it_broke_off(
    hub: TestHub, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = quick(monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what it keeps comes in such pieces
    hub.fault("GET /cdn", cut=0.25)
    assert download(hub, "build/torch-cpu/part/large.so").read_bytes() == bytes(range(256)) * 40
    assert [(each.range, each.status) for each in hub.log.find(kind="cdn")] == [(None, 200), ("bytes=2048-", 206)]
    assert len(waits) == 1


def test_wrong_bytes_of_the_right_length_are_kept_by_the_client(hub: TestHub, repository: Repository) -> None:
    hub.fault("GET .*__init__", wrong=True)
    hub.fault("GET .*metadata", replace=(b'"sha256"', b'"sha-256'))
    found = download(hub, "build/torch-cpu/__init__.py")
    right = repository.find("v1").files["build/torch-cpu/__init__.py"]
    assert found.read_bytes() != right.data and found.stat().st_size == len(right.data)
    assert found.resolve().name == right.blob
    assert b"sha-256" in download(hub, "build/torch-cpu/metadata.json").read_bytes()


def test_a_truncated_file_is_shorter_than_was_said(
    hub: TestHub, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    hub.fault("GET /cdn", short=100)
    with pytest.raises(OSError, match="Consistency check failed"):
        download(hub, "build/torch-cpu/part/large.so")


def test_latency_delays_and_slow_bodies_take_their_time(hub: TestHub, api: HfApi, repository: Repository) -> None:
    def seconds(path: str) -> float:
        start = time.perf_counter()
        download(hub, path)
        return time.perf_counter() - start

    hub.latency = 0.1
    assert seconds("README.md") >= 0.2  # two requests
    hub.latency = 0.0
    hub.fault("GET", delay=0.15)
    assert seconds("build/torch-cpu/__init__.py") >= 0.15
    hub.fault("GET", slow=0.02)
    assert seconds("build/torch-cpu/metadata.json") >= 0.2  # ten pieces


def test_a_time_out_is_the_clients(hub: TestHub, repository: Repository) -> None:
    hub.fault("", delay=5)
    with httpx2.Client(timeout=0.1) as client, pytest.raises(httpx2.ReadTimeout):
        client.get(f"{hub.url}/api/kernels/{NAME}/refs")


def test_a_hub_that_cannot_be_reached_refuses_and_comes_back(
    hub: TestHub, api: HfApi, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    assert api.kernel_info(NAME).id == NAME
    url = hub.url
    with hub.unreachable():
        with pytest.raises(httpx2.ConnectError):
            HfApi(endpoint=url, token=False).list_repo_refs(NAME, repo_type="kernel")
        with pytest.raises(LocalEntryNotFoundError):
            download(hub, "README.md")
    huggingface_hub.close_session()
    assert hub.url == url and api.kernel_info(NAME).id == NAME
    assert hub.log.kinds() == {"info": 2}


def test_a_connection_that_was_open_breaks_when_the_hub_goes(hub: TestHub) -> None:
    with socket.create_connection(("127.0.0.1", hub.port), timeout=5) as client:
        client.sendall(b"GET /api/agent-harnesses HTTP/1.1\r\nHost: hub\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        hub.close()
        while client.recv(4096):
            pass
