from __future__ import annotations

import pytest

from kerncfg.documents.lock import Build, Lock, Pin
from kerncfg.documents.reference import KernelRef


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("org/r@v3:A", KernelRef.parse("org/r:A").at(version=3)),
        ("org/r@>=2.0,<3.0:A", KernelRef.parse("org/r@<3.0,>=2.0:A")),
        ("/dir/:A", KernelRef.parse("/dir:A")),
    ],
    ids=["version", "range", "folder"],
)
def test_an_answer_is_found_however_the_reference_was_written(written: str, asked: KernelRef) -> None:
    ref = KernelRef.parse(written)
    pin = Pin.of(ref, Build(variant=None, digest="d"))
    assert Lock(pins={ref: pin}).pins[asked] is pin


def test_another_version_is_another_question() -> None:
    ref = KernelRef.parse("org/r@v3:A")
    assert KernelRef.parse("org/r@v4:A") not in Lock(pins={ref: Pin(ref=ref, reason="gone")}).pins
