"""What leaves the machine with an experiment, what stays, and that nothing goes unless somebody said so."""

from __future__ import annotations

import json
import os
import pty
import select
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.compose import compose
from kerncfg.compiler.schema import validate
from kerncfg.compiler.writing import document_lines
from kerncfg.errors import ConfigError, IntegrityError, SourceError
from kerncfg.evidence.rows import Measurement, Row, TimedModel, TimedRow, Verification
from kerncfg.outcome import Outcome, write_json
from kerncfg.sharing import secrets
from kerncfg.sharing.push import Parcel, push
from tests.hub import kernels
from tests.hub.kernels import ACME
from tests.test_outcome import NAMES, WRONG, leave, spoil

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub
    from tests.hub.repos import Commit

NORMS = f"{ACME}/norms"
EXPERIMENT = (
    "# @package _global_\ndefaults:\n  - override /kernels: mine\n  - override /kernels@inherited: none\n"
    "  - override /target: cpu\n  - override /model: llama\n"
    "trust: {repositories: {acme/norms: true}}\nmodel: {sequence: 16, config: {num_hidden_layers: 1}}\n"
)
ROWS = (
    "defaults: [bundled, _self_]\nRMSNorm: {cpu: 'acme/norms@v1:RMSNorm'}\n"
    "SiLU: {cpu: {kernel: 'acme/norms@v1:SiLU', trust_remote_code: true}}\n"
)


@pytest.fixture
def writer(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestHub]:
    """A Hub with a kernel of acme's, on which whoever runs the test may write to acme."""
    hub.add(kernels.norms(NORMS))
    hub.tokens["writer-token"], hub.writers["writer-token"] = frozenset({"*"}), frozenset({ACME})
    monkeypatch.setenv("HF_TOKEN", "writer-token")
    yield hub
    huggingface_hub.close_session()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of one's own groups."""
    home = tmp_path / "home"
    (home / "my/experiment").mkdir(parents=True)
    (home / "my/kernels").mkdir()
    (home / "my/experiment/fast.yaml").write_text(EXPERIMENT)
    (home / "my/kernels/mine.yaml").write_text(ROWS)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    return home / "my"


def pushed(hub: TestHub, name: str = f"{ACME}/fast") -> Commit:
    found = hub.repository("model", name)
    assert found is not None
    return found.find("main")


def text(hub: TestHub, path: str) -> str:
    return pushed(hub).files[path].data.decode()


def share(*words: str, **said: Any) -> Parcel:
    return push("fast", f"{ACME}/fast", *words, config_dir="my", **said)


@pytest.mark.usefixtures("mine")
def test_an_experiment_leaves_as_configuration_lock_plan_and_card(writer: TestHub) -> None:
    parcel = share()
    commit = pushed(writer)
    assert commit.id == parcel.commit
    assert {*parcel.files} == {"README.md", "experiment/fast.yaml", "kerncfg.lock", "plan.json"}
    assert {path: commit.files[path].data for path in parcel.files} == parcel.files
    assert writer.log.count(kind="create") == writer.log.count(kind="commit") == 1


@pytest.mark.usefixtures("mine")
def test_what_was_pushed_plans_the_same(writer: TestHub, tmp_path: Path) -> None:
    parcel = share()
    place = tmp_path / "elsewhere/experiment/fast.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(text(writer, "experiment/fast.yaml"))
    again = kerncfg.plan("experiment=fast", config_dir=place.parent.parent, trust=[NORMS])
    own = kerncfg.plan("experiment=fast", config_dir="my")
    assert again.digest == own.digest == parcel.digest == json.loads(text(writer, "plan.json"))["digest"]


@pytest.mark.usefixtures("mine")
def test_consent_stays_here(writer: TestHub) -> None:
    parcel = share()
    said = text(writer, "experiment/fast.yaml")
    assert "trust" not in said
    assert parcel.consents == (NORMS,)
    assert "--trust acme/norms" in parcel.command and parcel.command in text(writer, "README.md")


@pytest.mark.usefixtures("mine")
def test_no_file_says_where_anything_lies_on_this_machine(writer: TestHub, mine: Path) -> None:
    parcel = share("kernels.Scale.cpu=acme/norms@v1:Scale")
    everything = b"".join(parcel.files.values()).decode()
    assert str(mine.parent) not in everything and "my/kernels" not in everything and "writer-token" not in everything
    origins = {
        choice["origin"]
        for step in json.loads(parcel.files["plan.json"])["steps"]
        for found in step["modes"].values()
        for choice in found["choices"]
        if choice["origin"]
    }
    assert {origin for origin in origins if not origin.startswith("preset: ")} == {"experiment/fast.yaml"}


@pytest.mark.usefixtures("mine")
def test_the_plan_that_was_pushed_is_a_plan(writer: TestHub, tmp_path: Path) -> None:
    share()
    (tmp_path / "plan.json").write_text(text(writer, "plan.json"))
    (tmp_path / "kerncfg.lock").write_text(text(writer, "kerncfg.lock"))
    plan = kerncfg.load_plan(tmp_path / "plan.json", trust=[NORMS])
    assert plan.step("RMSNorm").kind == "bind"
    assert kerncfg.plan("experiment=fast", config_dir="my", lock=tmp_path / "kerncfg.lock").digest == plan.digest


@pytest.mark.usefixtures("mine")
def test_a_dry_run_sends_nothing(writer: TestHub) -> None:
    parcel = share(dry_run=True)
    assert parcel.commit is None and parcel.files
    assert not writer.log.count(method="POST")


@pytest.mark.usefixtures("mine")
def test_the_command_lists_what_leaves_and_sends_nothing_that_nobody_consented_to(
    writer: TestHub, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["push", "fast", f"{ACME}/fast", "--config-dir", "my"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: nothing was sent: nobody said yes\n  hint: read the list, and type it again")
    assert captured.out.splitlines()[0] == "to hf://acme/fast@main:"
    assert [line.split()[0] for line in captured.out.splitlines()[1:5]] == [
        "README.md", "experiment/fast.yaml", "kerncfg.lock", "plan.json",
    ]  # fmt: skip
    assert "stays here: values of the environment, tokens, consents" in captured.out
    assert not writer.log.count(method="POST")
    assert main([*words, "--dry-run"]) == 0
    assert not writer.log.count(method="POST")
    capsys.readouterr()
    assert main([*words, "--yes", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    validate(data, "push")
    assert data["commit"] == pushed(writer).id and set(data["files"]) == {*pushed(writer).files} - {".gitattributes"}


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(("typed", "code", "sent"), [("y\n", 0, 1), ("\n", 1, 0), ("\x04", 130, 0)])
def test_on_a_terminal_the_command_asks_and_only_yes_sends(
    writer: TestHub, typed: str, code: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard, line = pty.openpty()
    with os.fdopen(os.dup(line), encoding="utf-8") as ear, os.fdopen(line, "w", encoding="utf-8") as mouth:
        monkeypatch.setattr("sys.stdin", ear)
        monkeypatch.setattr("sys.stderr", mouth)
        os.write(keyboard, typed.encode())
        assert main(["push", "fast", f"{ACME}/fast", "--config-dir", "my"]) == code
        mouth.flush()
        shown = ""
        while select.select([keyboard], [], [], 0.1)[0]:  # a terminal gives what it has piece by piece
            shown += os.read(keyboard, 10_000).decode()
    os.close(keyboard)
    assert "Send these files? [y/N]: " in shown
    assert writer.log.count(kind="commit") == sent and ("run it: kerncfg run" in shown) == bool(sent)
    assert ("error: nothing was sent: you said no" in shown) == (code == 1)


@pytest.mark.usefixtures("mine")
def test_a_repository_is_made_private_where_that_is_asked_and_another_type_too(writer: TestHub) -> None:
    share(private=True)
    made = writer.repository("model", f"{ACME}/fast")
    assert made is not None and made.private
    parcel = push("fast", f"datasets/{ACME}/fast", config_dir="my")
    assert writer.repository("dataset", f"{ACME}/fast") is not None
    assert parcel.address == "hf://datasets/acme/fast@main"


@pytest.mark.usefixtures("mine")
def test_a_second_push_is_a_second_commit(writer: TestHub) -> None:
    first = share()
    second = share("model.sequence=8")
    assert second.commit == pushed(writer).id != first.commit
    assert "sequence: 8" in text(writer, "experiment/fast.yaml")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("kernels.X=./k:K", "kernels.X: a fetched file cannot name './k:K'"),
        ("kernels.X=python:mine:K", "cannot name 'python:mine:K'"),
        ("model={pretrained: '${oc.env:SECRET_PLACE}'}", "cannot look up '${oc.env:SECRET_PLACE}'"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_what_only_this_machine_has_is_refused_where_it_was_said(
    writer: TestHub, row: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_PLACE", "hidden-value")
    with pytest.raises(ConfigError) as caught:
        share(row)
    assert message in str(caught.value) and f"override: {row}" in str(caught.value)
    assert "hidden-value" not in str(caught.value)
    assert not writer.log.count(method="POST")


@pytest.mark.usefixtures("mine")
def test_a_folder_that_local_kernels_puts_there_is_refused(
    writer: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = tmp_path / "local/build/torch-cpu"
    build.mkdir(parents=True)
    for path, content in kernels.norm_layers(1).items():
        (build / path).write_text(str(content))
    metadata = {"name": "norms", "id": "norms", "version": 1, "license": "MIT", "python-depends": []}
    (build / "metadata.json").write_text(json.dumps({**metadata, "backend": {"type": "cpu"}}))
    monkeypatch.setenv("LOCAL_KERNELS", f"{NORMS}={tmp_path / 'local'}")
    with pytest.raises(ConfigError, match="which others do not have"):
        share()
    assert not writer.log.count(method="POST")


@pytest.mark.usefixtures("mine")
def test_a_secret_that_came_in_as_a_value_is_found_and_not_shown(
    writer: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_API_KEY", "s3cr3t-name")
    with pytest.raises(IntegrityError, match="would hold the value of ACME_API_KEY") as caught:
        share("kernels.X=s3cr3t-name/k@v1:K")
    assert "s3cr3t-name" not in str(caught.value)
    assert not writer.log.count(method="POST")


LETTERS = "aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
# Put together here, so that no file of this repository looks like one that holds a secret.
SHAPES = [
    ("hf_" + "aBcDeFgHiJ" * 3, "a token of the Hub"),
    ("ghp_" + LETTERS, "a token of GitHub"),
    ("gho_" + LETTERS, "a token of GitHub"),
    ("ghs_" + LETTERS, "a token of GitHub"),
    ("github_pat_" + LETTERS[:22] + "_" + LETTERS, "a token of GitHub"),
    ("glpat-" + LETTERS[:20], "a token of GitLab"),
    ("sk-" + LETTERS[:20], "a secret key (sk-)"),
    ("sk-proj-" + LETTERS, "a secret key (sk-)"),
    ("xoxb-" + "1234567890-" + LETTERS[:12], "a token of Slack"),
    ("AKIA" + "ABCDEFGH01234567", "an access key of AWS"),
    (".".join(("eyJ" + LETTERS, "eyJ" + LETTERS, LETTERS)), "a JSON web token"),
    ("-----BEGIN " + "RSA PRIVATE KEY-----", "a private key"),
    ("-----BEGIN " + "PRIVATE KEY-----", "a private key"),
    ("https://me:" + "pass-word@example.org/x", "an address with a password"),
]


@pytest.mark.parametrize(("secret", "kind"), SHAPES, ids=[secret[:12] for secret, _ in SHAPES])
def test_what_looks_like_a_secret_is_refused_with_file_line_and_kind_wherever_it_stands(secret: str, kind: str) -> None:
    for text, where in (
        (f"a: 1\nb: {secret}\n", "x.yaml:2 (b)"),
        (f'{{\n  "a": 1,\n  "b c": "{secret}"\n}}\n', "x.yaml:3 (b c)"),
        (f"a:\n  ? {secret}\n", "x.yaml:2"),
        (f"{secret}: 1\n", "x.yaml:1"),
        (f'{{"a": {{"{secret}": 1}}}}', "x.yaml:1"),
    ):
        with pytest.raises(IntegrityError) as caught:
            secrets.check({"y.yaml": "a: 1\n", "x.yaml": text})
        said = str(caught.value)
        assert said.startswith(f"{where} would hold ") and kind in said
        assert secret not in said and secret[4:] not in said
    with pytest.raises(IntegrityError, match=r"^the name of a file would hold") as caught:
        secrets.check({f"experiment/{secret}.yaml": "a: 1\n"})
    assert secret not in str(caught.value)


def test_a_key_that_is_a_secret_itself_is_not_told() -> None:
    with pytest.raises(IntegrityError, match=r"^x\.yaml:2 would hold what looks like a token of the Hub") as caught:
        secrets.check({"x.yaml": f"a: 1\nghp_{LETTERS}: hf_{LETTERS}\n"})
    assert LETTERS not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: acme/task-specific-kernels-of-the-year@v1:Norm",
        "hydra.searchpath=[hf://acme/fast@main,hf://datasets/acme/a@v1]",
        "a: hf_" + "x" * 29,
        "a: 'https://huggingface.co/acme/fast@main:80'",
        "a: [https://example.org, 'b:c@d', hf://acme/a, b:c@d]",
        "sha256:" + "0123456789abcdef" * 4,
        "a: -----BEGIN " + "PUBLIC KEY-----",
    ],
)
def test_what_only_resembles_a_secret_goes(text: str) -> None:
    secrets.check({"x.yaml": text})


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("row", ["model.config.{}=1", "model.config.note={}", "kernels.X={}/k@v1:K"])
def test_a_secret_that_no_variable_holds_is_refused_by_its_shape(writer: TestHub, row: str) -> None:
    secret = "hf_" + "aBcDeFgHiJ" * 3
    with pytest.raises(
        IntegrityError, match=r"\.(yaml|json):\d+.* would hold what looks like a token of the Hub"
    ) as caught:
        share(row.format(secret))
    assert secret not in str(caught.value)
    assert not writer.log.count(method="POST")


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("token", "old-fashioned-token\n", "the token file of the Hub"),
        ("stored_tokens", "[mine]\nhf_token = other\n[work]\nhf_token = old-fashioned-token\n", "stored_tokens"),
        ("stored_tokens", "[work]\nrefresh_token=old-fashioned-token\n", "stored_tokens (refresh_token)"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_tokens_that_are_kept_in_files_are_looked_for_though_another_one_is_in_use(
    writer: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, place: str
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / file).write_text(text)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(IntegrityError) as caught:
        share("model.config.note=old-fashioned-token")
    assert f"would hold the token in {place}" in str(caught.value)
    assert "old-fashioned" not in str(caught.value)
    assert not writer.log.count(method="POST")


@pytest.mark.parametrize(
    ("name", "message"),
    [("cpu_bundled", "is a packaged experiment"), ("a b", "cannot name an experiment"), ("../x", "cannot name an")],
)
@pytest.mark.usefixtures("mine", "writer")
def test_a_name_that_others_could_not_use_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        share(name=name)


@pytest.mark.usefixtures("mine", "writer")
def test_a_repository_is_named_without_revision_and_folder() -> None:
    with pytest.raises(ConfigError, match="names more than a repository"):
        push("fast", f"{ACME}/fast@v1", config_dir="my")
    with pytest.raises(ConfigError, match="is no address on the Hub"):
        push("fast", "fast", config_dir="my")


@pytest.mark.parametrize(
    ("token", "hint"),
    [
        (None, "set HF_TOKEN to a token that may write"),
        ("unknown", "the Hub does not know the token"),
        ("reader", "the token may not write to acme"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_who_may_not_write_is_told_what_to_do(
    writer: TestHub, token: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(*by_commit(writer), dry_run=True)  # what it needs to know is in the cache from now on
    writer.tokens["reader"] = frozenset({"*"})
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    words = by_commit(writer)
    with pytest.raises(SourceError, match="nothing was sent to models/acme/fast") as caught:
        share(*words)
    assert str(caught.value.hint).startswith(hint)
    assert writer.repository("model", f"{ACME}/fast") is None


def by_commit(hub: TestHub) -> list[str]:
    """The rows by commit, so that nobody is asked what a branch means."""
    found = hub.repository("kernel", NORMS)
    assert found is not None
    return [f"kernels.{name}.cpu=acme/norms@{found.branches['v1']}:{name}" for name in ("RMSNorm", "SiLU")]


@pytest.mark.usefixtures("mine")
def test_a_hub_that_is_away_is_an_error_of_the_place(writer: TestHub) -> None:
    words = by_commit(writer)
    share(*words, dry_run=True)
    with writer.unreachable(), pytest.raises(SourceError, match="nothing was sent to models/acme/fast: ConnectError"):
        share(*words)


FIGURES: dict[str, Any] = {"original_s": 2e-5, "kernel_s": 1e-5, "speedup": 2.0, "spread": 0.1, "verdict": "faster"}
ROW: dict[str, Any] = {"name": "RMSNorm", "path": "model.norm", "sites": 3, "kernel": "acme/norms@v1:RMSNorm"}
WHERE: dict[str, Any] = {"device": "cpu", "dtype": "float32", "shape": "2x16x64"}
CHECK: dict[str, Any] = {
    "passed": True, "reason": None, "max_abs": 0.0, "max_rel": 0.0, "error": 0.0, "original_error": 0.0, "gain": 1.0,
    "identical": 1.0, "within": 1.0, "repeatable": True,
}  # fmt: skip


@pytest.fixture
def run(mine: Path) -> Path:
    """The folder of a run as `kerncfg run` leaves it, with evidence that took no time."""
    folder = mine.parent / "out"
    folder.mkdir()
    data, origins = compose(["experiment=fast"], config_dir=mine)
    (folder / "config.yaml").write_text("\n".join(document_lines(data, origins)) + "\n")
    outcome = Outcome(folder=folder, overrides=["experiment=fast"], command=["kerncfg", "run", "--config-dir", "my"])
    outcome.finished = True
    outcome.save()
    return folder


def test_the_folder_of_a_run_leaves_with_its_evidence(writer: TestHub, run: Path, mine: Path) -> None:
    plan = kerncfg.plan("experiment=fast", config_dir=mine)
    plan.save(run / "plan.json")
    row = Row(**CHECK, **ROW, **WHERE, modes=("inference",), reference="float64", hazards=(), backward=None,
              backward_reason="not asked")  # fmt: skip
    failed = replace(row, name="SiLU", passed=False)
    model = TimedModel(**FIGURES, mode="inference")
    timed = TimedRow(**FIGURES, **ROW, **WHERE, mode="inference")
    untimed = TimedRow(**ROW, **WHERE, mode="training", reason="it has no backward")
    write_json(run / "verification.json", Verification(rows=(row, failed), model=None).to_dict())
    write_json(run / "measurement.json", Measurement(rows=(timed, untimed), model=model).to_dict())
    parcel = push(run, f"{ACME}/fast")
    assert {*parcel.files} == {
        "README.md", "experiment/fast.yaml", "kerncfg.lock", "plan.json", "verification.json", "measurement.json",
    }  # fmt: skip
    assert parcel.digest == plan.digest
    card = text(writer, "README.md")
    assert "| RMSNorm | acme/norms@v1:RMSNorm | inference | 20 µs | 10 µs | 2.00 | 0.10 | faster |" in card
    assert "| RMSNorm | acme/norms@v1:RMSNorm | training | - | - | - | - | it has no backward |" in card
    assert "| the whole model |  | inference | 20 µs | 10 µs | 2.00 | 0.10 | faster |" in card
    assert "1 of 2 kernels passed against the original and float64." in card
    assert str(mine.parent) not in b"".join(parcel.files.values()).decode()
    with pytest.raises(ConfigError, match="is the folder of a run, which has its overrides"):
        push(run, f"{ACME}/fast", "kernels=none")


@pytest.mark.parametrize(("name", "keys", "value", "place"), WRONG, ids=NAMES)
def test_a_run_whose_files_hold_a_wrong_value_stays_here(
    name: str, keys: tuple[str | int, ...], value: Any, place: str, writer: TestHub, run: Path, mine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kerncfg.plan("experiment=fast", config_dir=mine).save(run / "plan.json")
    leave(run)
    words = ["push", str(run), f"{ACME}/fast", "--dry-run"]
    assert main(words) == 0
    spoil(run, name, keys, value)
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"{name}.json" in said and place in said and "Traceback" not in said
    assert not writer.log.count(method="POST")


def test_a_run_whose_figures_no_schema_knows_to_be_wrong_stays_here(writer: TestHub, run: Path, mine: Path) -> None:
    kerncfg.plan("experiment=fast", config_dir=mine).save(run / "plan.json")
    leave(run)
    spoil(run, "measurement", ("model", "original_s"), 10**400)
    with pytest.raises(ConfigError, match=r"measurement\.json holds a value that no run writes: OverflowError"):
        push(run, f"{ACME}/fast", dry_run=True)
    (run / "config.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"config\.yaml:1:1: the byte 0xff is not UTF-8"):
        push(run, f"{ACME}/fast", dry_run=True)
    assert not writer.log.count(method="POST")


@pytest.mark.usefixtures("writer")
def test_a_run_without_a_plan_has_nothing_to_share(run: Path) -> None:
    with pytest.raises(ConfigError, match="made no plan, so there is nothing to share"):
        push(run, f"{ACME}/fast")


def test_push_needs_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", "fast"]) == 1
    assert "push needs a run's folder or an experiment, and a repository; found fast" in capsys.readouterr().err
