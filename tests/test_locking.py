"""Lock files: found, read, made and renewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.api import lock as made
from kerncfg.documents.lock import Lock
from kerncfg.documents.reference import KernelRef
from kerncfg.errors import ConfigError, LockError, SourceError
from kerncfg.locking import FILE, read, usual
from tests.hub import kernels
from tests.hub.kernels import ACME, TRUSTED
from tests.hubbing import row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Repository

NORMS = f"{TRUSTED}/norms"
NONE = "inherited=none"


def commits(lock: Lock) -> dict[str, str | None]:
    return {str(pin.ref): pin.releases[0].commit if pin.releases else None for pin in lock.hub()}


def test_a_lock_holds_the_rows_of_every_device_and_asks_once_for_each(norms: Repository, hub: TestHub) -> None:
    words = [
        f"kernels.A={{cuda: '{NORMS}@v1:Scale', xpu: '{NORMS}@v2:Scale', cpu: [{NORMS}@v1:SiLU, builtin:RMSNorm]}}"
    ]
    found = made(NONE, *words)
    assert commits(found) == {f"{NORMS}@v1": norms.branches["v1"], f"{NORMS}@v2": norms.branches["v2"]}
    assert hub.log.count(kind="refs") == 1
    again = made(NONE, *words, previous=found)
    assert again.to_json() == found.to_json() and hub.log.count(kind="refs") == 1


def test_an_unpinned_row_is_locked_at_every_version(norms: Repository) -> None:
    (pin,) = made(NONE, row(NORMS)).hub()
    assert [release.revision for release in pin.releases] == ["v3", "v2", "v1", "main"]


def test_what_the_config_does_not_name_any_more_is_not_kept(norms: Repository) -> None:
    both = made(NONE, row(f"{NORMS}@v1"), row(f"{NORMS}@v2", "SiLU"))
    assert list(commits(made(NONE, row(f"{NORMS}@v1"), previous=both))) == [f"{NORMS}@v1"]


def test_what_nobody_trusts_is_recorded_and_not_asked_about(hub: TestHub) -> None:
    hub.add(kernels.norms(f"{ACME}/norms"))
    with hub.log.expect(0):
        (pin,) = made(NONE, row(f"{ACME}/norms@v1")).hub()
    assert "trust.publishers.acme=true" in str(pin.reason)
    assert made(NONE, row(f"{ACME}/norms@v1"), trust=[ACME]).pins
    flagged = f"kernels.X={{cpu: {{kernel: '{ACME}/norms@v1:Scale', trust_remote_code: true}}}}"
    assert next(made(NONE, flagged).hub()).releases


@pytest.mark.parametrize("name", ["Scale", NORMS])
def test_an_upgrade_moves_what_it_names(norms: Repository, name: str) -> None:
    words = (NONE, row(f"{NORMS}@v1"))
    before = made(*words)
    after = kernels.move(norms, "v1", 5)
    assert commits(made(*words, previous=before)) == commits(before)
    assert commits(made(*words, previous=before, upgrade=[name])) == {f"{NORMS}@v1": after}


def test_an_upgrade_of_what_is_not_there_is_told(norms: Repository) -> None:
    with pytest.raises(ConfigError, match="'Skale' is neither a row with Hub kernels nor a repository") as caught:
        made(NONE, row(f"{NORMS}@v1"), upgrade=["Skale"])
    assert caught.value.issues[0].hint == "name one of Scale, or org/repo"
    with pytest.raises(ConfigError) as caught:
        made(NONE, upgrade=["Skale"])
    assert caught.value.issues[0].hint == "name one of none, or org/repo"


def test_an_upgrade_without_a_hub_changes_nothing(norms: Repository, hub: TestHub) -> None:
    words = (NONE, row(f"{NORMS}@v1"))
    before = made(*words)
    with (
        hub.unreachable(),
        pytest.raises(SourceError, match=f"{NORMS}@v1 stays as it is: as last resolved, for the Hub"),
    ):
        made(*words, previous=before, upgrade=["Scale"])


def test_nothing_is_asked_while_kernels_are_off(
    norms: Repository, hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (NONE, row(f"{NORMS}@v1"))
    before = made(*words)
    with hub.log.expect(0):
        assert made(*words, "enabled=false", previous=before) == before
        (pin,) = made(*words, "enabled=false").hub()
        assert pin.reason == "kernels are switched off: enabled is false, needed true"
        monkeypatch.setenv("USE_HUB_KERNELS", "0")
        (pin,) = made(*words).hub()
        assert pin.reason == "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"


def test_the_usual_lock_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert usual(None) is None
    Lock().save(FILE)
    assert usual(None) == Lock() == usual(tmp_path / FILE)
    with pytest.raises(LockError, match="gone: No such file or directory"):
        usual("gone")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("3", "found 3, needed a map with `schema` and `pins`"),
        ("[]", "found an empty list, needed a map with `schema` and `pins`"),
        ('"x"', 'found "x", needed a map with `schema` and `pins`'),
        ("null", "found null, needed a map with `schema` and `pins`"),
        ("{}", "the lock has format None, this kerncfg reads 1"),
        ('{"schema": 2}', "the lock has format 2, this kerncfg reads 1"),
        ('{"schema": 1}', "pins"),
        (
            '{"schema": 1, "pins": {"not a ref": {"reason": null, "note": null, "releases": [], "versions": {}}}}',
            "not a ref",
        ),
        ("[3]", "no entry of a kernels.lock: 3"),
        ('[{"dependency": {"repo-id": "a/b", "version": "x"}, "lock": {"commit": "c"}}]', "no entry of a kernels.lock"),
        ('[{"dependency": {"repo-id": "../b", "version": 1}, "lock": {"commit": "c"}}]', "no entry of a kernels.lock"),
        (
            '[{"dependency": {"repo-id": "a/b", "version": 1}, "lock": {"commit": "../c"}}]',
            "no entry of a kernels.lock",
        ),
    ],
)
def test_what_is_no_lock_is_told_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.lock").write_text(text)
    with pytest.raises(LockError) as caught:
        read(tmp_path / "x.lock")
    assert caught.value.message.startswith(f"{tmp_path / 'x.lock'}: ") and message in caught.value.message


def test_a_lock_of_the_kernels_library_names_commits(tmp_path: Path) -> None:
    entries: list[Any] = [
        {"dependency": {"repo-id": "a/b", "version": 1}, "lock": {"commit": "c" * 40}},
        {"dependency": {"repo-id": "a/b", "revision": "v1.0"}, "lock": {"commit": "d" * 40}},
    ]
    (tmp_path / "kernels.lock").write_text(json.dumps(entries))
    assert read(tmp_path / "kernels.lock").commits == {
        KernelRef.parse("a/b@v1"): "c" * 40, KernelRef.parse("a/b@v1.0"): "d" * 40,
    }  # fmt: skip
