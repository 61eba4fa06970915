from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kerncfg
from kerncfg.cli import main
from kerncfg.documents.plan import Rejection
from kerncfg.errors import ConfigError, IntegrityError, KerncfgError, SourceError
from kerncfg.evidence.rows import (
    Alone,
    Check,
    Generation,
    Measurement,
    Row,
    Spoken,
    TimedModel,
    TimedRow,
    Timing,
    Verification,
    Whole,
)
from kerncfg.outcome import read
from kerncfg.page.report import page, report
from tests.page.conftest import outcome, site
from tests.planning import plan, step

if TYPE_CHECKING:
    from kerncfg.outcome import Outcome

CHECK: dict[str, Any] = {"max_abs": 1e-6, "max_rel": 1e-6, "error": 4e-8, "original_error": 2e-8, "gain": 0.0,
         "identical": 0.5, "within": 0.99, "repeatable": True}  # fmt: skip
ROW = Row(
    **CHECK, passed=True, reason=None, name="Norm", path="model.norm", sites=3, kernel="builtin:Norm",
    modes=("inference",), device="cpu", dtype="float32", shape="2x8", reference="float64", hazards=(),
    backward=Check(**CHECK, passed=False, reason="gradient of input 0: off"), backward_reason=None,
)  # fmt: skip
TIMED = TimedRow(
    name="Norm", path="model.norm", sites=3, kernel="builtin:Norm", mode="inference", device="cpu", dtype="float32",
    shape="2x8", original_s=3e-4, kernel_s=1e-4, speedup=3.0, spread=0.1, verdict="faster", runs=9,
)  # fmt: skip
MOVED: dict[str, Any] = {"max_abs": 1e-6, "max_rel": 2e-6, "identical": 0.5, "within": 1.0}
ALONE = (
    Alone(**{**MOVED, "max_rel": 3e-1}, name="turned", kernel="builtin:Turned", passed=False, reason="output: off"),
    Alone(**{**MOVED, "max_rel": 0.0}, name="Norm", kernel="builtin:Norm", passed=True, reason=None),
)
WHOLE = Whole(**MOVED, mode="inference", passed=True, reason=None, reference="float64", alone=ALONE)
READ = Spoken.of(Timing(original_s=2.0, kernel_s=1.0, speedup=2.0, spread=0.1, verdict="faster", runs=9), 4096)
WRITTEN = Spoken.of(Timing(original_s=1.0, kernel_s=1.0, speedup=1.0, spread=0.2, verdict="none", runs=9), 32)
SPOKEN = Generation(batch=2, prompt=2048, tokens=16, prefill=READ, decode=WRITTEN)
MODEL = TimedModel(mode="inference", original_s=2.0, kernel_s=1.0, speedup=2.0, spread=0.01, verdict="faster", runs=9)


def given_way(folder: Path = Path("run")) -> Outcome:
    """A run of a language model with a function, a kernel that gave way, hazards, and tokens in a second."""
    function = replace(ROW, name="turned", kernel="builtin:Turned", path="model.attend", hazards=("draws",))
    gone = replace(ROW, kernel="org/repo@v1:Gone", passed=False, reason="output: off", repeatable=False)
    verification = Verification(
        rows=(gone, ROW, function), model=WHOLE, removed=(("Norm", "org/repo@v1:Gone", "failed verification"),)
    )
    timed = replace(TIMED, name="turned", kernel="builtin:Turned")
    return outcome(
        [site("model.norm"), site("model.attend", "turned", kernel="builtin:Turned", kind="function")],
        folder,
        verification=verification,
        measurement=Measurement(rows=(TIMED, timed), model=MODEL, generation=SPOKEN),
    )


def test_a_kernel_that_gave_way_is_told_with_the_reason_and_the_figures_of_both() -> None:
    text = page(given_way())
    assert "Taken off the model for it" in text
    assert "<code>org/repo@v1:Gone</code>): failed verification" in text
    assert "1 kernel taken off" in text
    assert '<span class="badge bad">failed</span>' in text


def test_why_a_name_runs_what_it_runs_holds_what_gave_way_as_passed_over() -> None:
    found = given_way()
    gone, kept = "org/repo@v1:Gone", "builtin:Norm"
    found.plan = plan(step("Norm", [gone, kept]))
    text = page(found)
    why = text[text.index('id="name-Norm"') :]
    assert why.index(f"<code>{kept}</code>") < why.index("not taken") < why.index(f"<code>{gone}</code>")
    assert "failed verification" in why


def test_each_kernel_alone_is_plotted_by_how_far_it_moves_the_models_output() -> None:
    text = page(given_way())
    plot = text[text.index("and with each alone") :]
    assert plot.index("all kernels, inference") < plot.index("turned()</b>") < plot.index("no bit")
    assert "3.0e-01" in plot
    assert "the model, turned() alone" in text


def test_a_single_kernel_alone_is_the_model_and_a_model_that_was_not_run_has_no_plot() -> None:
    for whole, said in ((WHOLE, True), (replace(WHOLE, alone=(), max_rel=None, reason="not run", passed=False), False)):
        text = page(outcome([site("a")], verification=Verification(rows=(ROW,), model=whole)))
        assert ("with each alone" in text) is said


def test_hazards_stand_apart_from_what_failed_and_so_do_results_that_vary() -> None:
    text = page(given_way())
    hazards = text[text.index('aria-label="Hazards"') :].partition("</ul>")[0]
    assert "hazard: draws" in hazards
    assert "gave different bits, as the original" in hazards
    assert "output: off" not in hazards
    assert hazards.count("<li>") == 2


def test_a_hazard_of_many_sites_is_one_line_and_a_row_that_swaps_nothing_one_note() -> None:
    rows = tuple(replace(ROW, path=path, hazards=("draws",)) for path in ("a.norm", "b.norm", "c.norm", "d.norm"))
    found = outcome([site("a.norm")], verification=Verification(rows=rows, model=None))
    assert found.report is not None
    found.report = replace(found.report, idle={"kernels.X": "no layer X"}, notes=("kernels.X: no layer X",))
    text = page(found)
    assert text.count("hazard: draws") == 1
    assert "a.norm, b.norm and 2 more" in text
    assert (text.count("kernels.X: no layer X"), "nothing swapped: kernels.X" in text) == (1, False)


def test_a_function_has_its_brackets_and_counts_as_verified() -> None:
    text = page(given_way())
    assert "<b>turned()</b>" in text
    assert "Not verified one by one" not in text


def test_tokens_in_a_second_are_in_the_plot_the_table_and_the_summary() -> None:
    text = page(given_way())
    for said in ("the model, prefill", "4,096 tokens/s", "prefill 2,048 → 4,096, decode 32 → 32", "<p>prefill "):
        assert said in text
    assert "tokens/s" not in page(outcome([site("a")], measurement=Measurement(rows=(TIMED,), model=MODEL)))


def test_what_the_policy_of_determinism_set_and_left_out_is_on_the_page() -> None:
    reason = "policy.deterministic takes kernels that declare deterministic = True"
    found = outcome([site("a", kernel=None, reason=reason)])
    assert found.report
    found.report = replace(found.report, notes=("policy.deterministic: algorithms are on",))
    text = page(found)
    assert reason in text
    assert "policy.deterministic: algorithms are on" in text


def test_a_kernel_is_failed_under_the_name_it_failed_under() -> None:
    rows = (replace(ROW, passed=False), replace(ROW, name="Other"))
    measurement = Measurement(rows=(replace(TIMED, name="Other"),), model=None)
    text = page(outcome([site("a")], verification=Verification(rows=rows, model=None), measurement=measurement))
    assert "its speed means nothing" not in text


def test_a_run_writes_its_page_and_says_so(passed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (passed / "report.html").read_text("utf-8")
    assert text == page(read(passed)).replace("\r\n", "\n")
    assert "Qwen3ForCausalLM on cpu" in text
    assert "kerncfg run kernels=bundled" in text
    assert (passed / "measurement.svg").is_file()


def test_the_command_makes_the_page_of_a_folder(
    passed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(passed, tmp_path / "run")
    (copy / "report.html").unlink()
    assert main(["report", str(copy)]) == 0
    assert capsys.readouterr().out == f"page: {copy / 'report.html'}\n"
    assert (copy / "report.html").is_file()
    assert main(["report", str(copy), "-o", str(tmp_path / "mine.html")]) == 0
    assert (tmp_path / "mine.html").is_file()


def test_python_says_where_the_page_is(passed: Path, tmp_path: Path) -> None:
    assert kerncfg.report(passed, tmp_path / "page.html") == tmp_path / "page.html"


def test_the_page_holds_every_candidate_with_its_reason_and_origin() -> None:
    refused = Rejection(reference="org/repo@v1:Norm", reason="publisher org is not trusted", origin="mine.yaml:7")
    text = page(outcome([site("a", kernel=None)], rejected=[refused]))
    for word in ("org/repo@v1:Norm", "publisher org is not trusted", "mine.yaml:7", "not taken", "all modes"):
        assert word in text


def test_the_page_says_what_failed_and_how_far_each_error_is_from_the_originals_own() -> None:
    verification = Verification(
        rows=(replace(ROW, passed=False, reason="output: off", hazards=("writes",)),), model=None
    )
    text = page(outcome([site("model.norm")], verification=verification))
    assert "output: off" in text
    assert "hazard: writes" in text
    assert "2\N{MULTIPLICATION SIGN} the original's" in text
    assert '99.00 % within,</span> <span class="part">50.00 % identical' in text
    assert '<span class="badge bad">failed</span>' in text


@pytest.mark.parametrize(("error", "own", "said"), [(0.0, 0.0, "both exact"), (1e-7, 0.0, "1.0e-07, the original"),
    (float("nan"), 1e-8, "nan"), (5e-3, 1e-8, "500,000")])  # fmt: skip
def test_errors_without_a_ratio_are_said_all_the_same(error: float, own: float, said: str) -> None:
    row = replace(ROW, error=error, original_error=own, backward=None)
    assert said in page(outcome([site("a")], verification=Verification(rows=(row,), model=None)))


def test_a_kernel_that_no_row_is_about_is_said_not_to_be_verified() -> None:
    rows = [site("a", kernel="builtin:Norm"), site("b", "Other", kernel="builtin:Other")]
    text = page(outcome(rows, verification=Verification(rows=(ROW,), model=None)))
    assert "Not verified one by one: Other (builtin:Other) at 1 site." in text


def test_the_speed_of_a_kernel_that_failed_means_nothing() -> None:
    measurement = Measurement(rows=(TIMED,), model=MODEL)
    for passed, said in ((True, False), (False, True)):
        verification = Verification(rows=(replace(ROW, passed=passed),), model=None)
        text = page(outcome([site("model.norm")], verification=verification, measurement=measurement))
        assert ("its speed means nothing" in text) is said
    assert "3.00\N{MULTIPLICATION SIGN}" in text
    assert '<span class="faster">faster</span>' in text
    assert "300 µs" in text and "2 s" in text


def test_memory_has_columns_where_it_was_measured() -> None:
    with_memory = replace(TIMED, original_bytes=3 * 2**20, kernel_bytes=2**20)
    for row, said in ((TIMED, False), (with_memory, True)):
        text = page(outcome([site("a")], measurement=Measurement(rows=(row,), model=None)))
        assert ("3.0 MiB" in text) is said


def test_a_run_that_ended_in_an_error_has_a_page_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "model.architecture=Qwen3ForCausalLMM", "hydra.run.dir=run"]) == 1
    text = (tmp_path / "run/report.html").read_text("utf-8")
    assert "<h2>ConfigError</h2>" in text
    assert "Qwen3ForCausalLMM" in text
    assert "plan" in read(tmp_path / "run").seconds


def test_a_run_that_swapped_nothing_has_a_page_that_says_so() -> None:
    empty: dict[str, Any] = {"rows": (), "model": None}
    text = page(outcome([site("a", kernel=None)], verification=Verification(**empty), measurement=Measurement(**empty)))
    assert "there was nothing to verify" in text
    assert "there was nothing to measure" in text


def test_a_folder_of_an_older_run_is_read_from_what_hydra_wrote(passed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(passed, tmp_path / "run")
    (copy / "outcome.json").unlink()
    found = read(copy)
    assert found.overrides[0] == "kernels=bundled"
    assert found.passed and found.environment is None
    assert "kerncfg run kernels=bundled" in page(found)


def test_a_place_that_is_no_run_is_said_to_be_none(tmp_path: Path, passed: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no run: neither outcome\.json nor plan\.json is in it"):
        report(tmp_path)
    with pytest.raises(ConfigError) as caught:
        report(passed.parent)
    assert caught.value.issues[0].hint == "name one of the runs below it"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("report.json", "{", "cannot be read: not JSON"),
        ("report.json", '{"rows": []}', "`notes` is missing"),
        ("outcome.json", '{"schema": 1}', "`command` is missing"),
        ("measurement.json", '{"rows": 3, "model": null}', "`passed` is missing"),
        ("plan.json", "{}", "is no plan, it has no schema"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(file: str, text: str, said: str, passed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(passed, tmp_path / "run")
    (copy / file).write_text(text)
    with pytest.raises(ConfigError) as caught:
        report(copy)
    assert file in str(caught.value)
    assert said in str(caught.value)


def test_a_plan_that_was_edited_is_refused(passed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(passed, tmp_path / "run")
    text = (copy / "plan.json").read_text("utf-8")
    (copy / "plan.json").write_text(text.replace('"device": "cpu"', '"device": "cuda"'), encoding="utf-8")
    with pytest.raises(IntegrityError, match="the plan's content has digest"):
        report(copy)


def test_a_page_that_cannot_be_written_is_a_sentence(passed: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written: No such file or directory"):
        report(passed, tmp_path / "nowhere/page.html")


def test_a_run_that_was_stopped_is_said_to_have_been(passed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(passed, tmp_path / "run")
    text = (copy / "outcome.json").read_text("utf-8")
    (copy / "outcome.json").write_text(text.replace('"finished": true', '"finished": false'), encoding="utf-8")
    found = read(copy)
    assert not found.passed
    assert isinstance(found.error, KerncfgError)
    assert "the run did not come to its end" in page(found)
