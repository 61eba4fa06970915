from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

from kerncfg.evidence.rows import Measurement, TimedModel
from kerncfg.page.drawing import draw, svg
from tests.page.test_report import SPOKEN, TIMED

if TYPE_CHECKING:
    import pytest

MODEL = TimedModel(mode="inference", original_s=2.0, kernel_s=2.5, speedup=0.8, spread=0.1, verdict="slower", runs=9)
MEASURED = Measurement(rows=(TIMED,), model=MODEL)
_SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_a_dot_where_each_speedup_is() -> None:
    root = ElementTree.fromstring(svg(MEASURED))
    slower, faster = (float(dot.get("cx", "")) for dot in root.iter(f"{_SVG}circle"))
    one = next(float(line.get("x1", "")) for line in root.iter(f"{_SVG}line") if line.get("stroke-dasharray"))
    assert slower < one < faster
    words = ["".join(text.itertext()) for text in root.iter(f"{_SVG}text")]
    assert "0.80\N{MULTIPLICATION SIGN} slower" in words
    assert "Norm inference, 2x8 float32" in words


def test_a_picture_has_what_a_language_model_reads_and_writes() -> None:
    text = svg(Measurement(rows=(), model=MODEL, generation=SPOKEN))
    assert "prefill, 4,096 tokens/s" in text
    assert "decode, 32 tokens/s" in text


def test_both_pictures_are_written_where_matplotlib_is_installed(tmp_path: Path) -> None:
    svg_file, png_file = draw(MEASURED, tmp_path)
    assert ElementTree.parse(svg_file).getroot().tag == f"{_SVG}svg"
    assert png_file.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_the_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("kerncfg.page.drawing.find_spec", lambda name: None if name == "matplotlib" else found(name))
    assert draw(MEASURED, tmp_path) == [tmp_path / "measurement.svg"]


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    assert draw(Measurement(rows=(), model=None), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
