from __future__ import annotations

from kerncfg.documents.config import KernelRef
from kerncfg.documents.lock import Build, Lock, Pin
from tests.builders import A


def test_an_empty_lock_knows_nothing() -> None:
    assert Lock() == Lock(pins={})


def test_a_build_without_metadata_requires_nothing() -> None:
    assert Build(variant=None, digest="d").requires == ()


def test_a_pin_holds_builds_or_the_reason_why_not() -> None:
    ref = KernelRef.parse(A)
    assert Pin(ref=ref, reason="gone").builds == ()
    assert Pin(ref=ref, builds=(Build(variant=None, digest="d"),)).reason is None
