"""`HF_ENDPOINT` that is no address, or holds what nobody may see: one error, from every command, without the secret."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerncfg
from kerncfg import errors
from kerncfg.cli import main
from kerncfg.documents.plan import seal
from kerncfg.sources.environment import Settings
from tests.hub import kernels
from tests.hub.kernels import TRUSTED
from tests.hubbing import CPU, planned, refusal, row

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

SECRET = "hunter2"
NORMS = row(f"{TRUSTED}/norms@v1")
WRONG = {
    "": "HF_ENDPOINT is empty",
    " ": "HF_ENDPOINT is empty",
    "/": "HF_ENDPOINT is empty",
    "foo": "HF_ENDPOINT begins with neither http:// nor https://",
    f"ftp://{SECRET}@host": "HF_ENDPOINT begins with neither http:// nor https://",
    "http://[::1": "HF_ENDPOINT is no web address",
    f"http://me:{SECRET}@[::1": "HF_ENDPOINT is no web address",
    f"http://me:{SECRET}/@host": "HF_ENDPOINT is no web address",
    f"http://me/{SECRET}@host": "HF_ENDPOINT is no web address",
    f"http://host:{SECRET}": "HF_ENDPOINT is no web address",
    f"http://host\n{SECRET}": "HF_ENDPOINT is no web address",
    f"http://ho st/{SECRET}": "HF_ENDPOINT is no web address",
    f"http://höst/{SECRET}": "HF_ENDPOINT is no web address",
    "http://": "HF_ENDPOINT names no machine",
    f"http:///{SECRET}": "HF_ENDPOINT names no machine",
    f"http://me:{SECRET}@": "HF_ENDPOINT names no machine",
    f"http://host?token={SECRET}": "HF_ENDPOINT goes on after a '?' or '#'",
    f"http://host/#{SECRET}": "HF_ENDPOINT goes on after a '?' or '#'",
}


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_is_none_is_refused_without_being_told(address: str) -> None:
    settings = Settings.read({"HF_ENDPOINT": address})
    with pytest.raises(errors.SourceError) as caught:
        settings.check()
    assert caught.value.message == f"{WRONG[address]}, needed an address such as https://huggingface.co"
    assert caught.value.hint == "mend HF_ENDPOINT, or unset it for the Hub itself"
    assert settings.shown == "HF_ENDPOINT"


@pytest.mark.parametrize(
    "address", ["https://hub", "http://127.0.0.1:1/", "http://[::1]:8/hf", f"http://me:{SECRET}@host/a/b", "HTTP://H"]
)
def test_any_other_is_taken(address: str) -> None:
    settings = Settings.read({"HF_ENDPOINT": address})
    settings.check()
    assert SECRET not in settings.shown


COMMANDS = (
    ("plan", *CPU, NORMS),
    ("explain", "Scale", *CPU, NORMS),
    ("lock", *CPU, NORMS),
    ("fetch", "plan.json"),
    ("fetch", "plan.json", "--dry-run"),
    ("verify", *CPU, NORMS),
    ("run", *CPU, NORMS, "hydra.run.dir=made"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_ends_with_the_same_error(
    hub: TestHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.add(kernels.norms())
    planned(NORMS).save("plan.json")
    shutil.rmtree(hub.cache)
    capsys.readouterr()
    monkeypatch.setenv("HF_ENDPOINT", f"http://host?token={SECRET}")
    assert main(list(words)) == 3
    out, err = capsys.readouterr()
    assert "error: HF_ENDPOINT goes on after a '?' or '#', needed an address such as https://huggingface.co\n" in err
    assert SECRET not in out + err and "Traceback" not in out + err
    assert not hub.cache.exists() and not Path("kerncfg.lock").exists()


def test_a_password_that_works_is_never_told(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(kernels.norms())
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", f"//me:{SECRET}@"))
    gone = f"kernels.X.cpu={TRUSTED}/gone@v1:X"
    told = [refusal(planned(gone), "X")]
    hub.fault("/refs", status=403, times=None)
    told.append(refusal(planned(NORMS)))
    with hub.unreachable():
        told.append(refusal(planned(gone), "X"))
    assert "gone is private or does not exist, with the user and password of HF_ENDPOINT; needed" in told[0]
    assert "norms is forbidden, with the user and password of HF_ENDPOINT; needed" in told[1]
    assert told[2].startswith(f"the Hub at {hub.url} gave no answer about")
    assert main(["doctor"]) in (0, 1)
    assert SECRET not in "".join([*told, *capsys.readouterr()])


def test_b26_a_plan_says_which_hub_was_to_be_asked_and_is_the_same_from_another(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.add(kernels.norms())
    plan = planned(NORMS)
    assert (plan.endpoint, plan.cache) == (hub.url, str(hub.cache))
    bundled = planned("kernels.RMSNorm.cpu=builtin:RMSNorm")
    assert (bundled.endpoint, bundled.cache) == (None, None)
    plan.save(tmp_path / "plan.json")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "\udcff"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://localhost:{hub.port}/")
    other = planned(NORMS)
    assert (other.endpoint, other.cache) == (f"http://localhost:{hub.port}", f"{tmp_path}/\\udcff")
    assert other.digest == plan.digest and other == plan and not other.diff(plan)
    read = kerncfg.load_plan(tmp_path / "plan.json")
    assert (read.endpoint, read.cache) == (hub.url, str(hub.cache)) and read.digest == plan.digest


def test_b19_what_was_looked_up_is_told_with_its_hub_and_cache(
    hub: TestHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.add(kernels.norms())
    line = f"note: kernels of the Hub were looked up at {hub.url}, with the cache {hub.cache}\n"
    bundled = (*CPU, "kernels.RMSNorm.cpu=builtin:RMSNorm")
    words = (*bundled, NORMS)
    commands = {("plan", *words): True, ("explain", "Scale", *words): True, ("explain", "RMSNorm", *words): False}
    for command, told in {**commands, ("plan", *bundled): False}.items():
        assert main([*command]) == 0
        assert (line in capsys.readouterr().out) is told
    plan = planned(*words)
    assert str(plan).endswith(line.strip()) and f"{hub.cache}</li>" in plan._repr_html_()
    data = plan.to_dict()
    older = {key: value for key, value in data.items() if key not in ("cache", "sealed")}  # as plans were before
    (tmp_path / "older.json").write_text(json.dumps({**older, "sealed": seal(older)}))
    read = kerncfg.load_plan(tmp_path / "older.json")
    assert read.digest == plan.digest and read.cache is None and "looked up" not in str(read)
