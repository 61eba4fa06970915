"""What every part behind one of the doors must keep: inherit the class, and say how to make the part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.documents.config import KernelRef, Trust
from kerncfg.documents.plan import Kernel
from kerncfg.errors import IntegrityError, SourceError, TrustError
from kerncfg.sources import SOURCES, load, pin

if TYPE_CHECKING:
    from kerncfg.documents.lock import Pin

# Leaves a line in a file each time it runs, and offers a kernel called Norm.
SOURCE = """
import pathlib
with pathlib.Path({marker!r}).open("a") as marker:
    marker.write("ran\\n")

class Norm:
    "A kernel."
"""


@dataclass(frozen=True)
class Place:
    """Where a source finds kernels: write(code) puts a kernel there, under the reference."""

    ref: KernelRef
    missing: KernelRef  # nothing is there, and never was
    write: Callable[[str], None]


class SourceContract:
    """What `kerncfg.sources` may rely on; a subclass gives `place`, and `sources` if they are not the usual."""

    sources: Mapping[str, str] = SOURCES

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def marker(self, tmp_path: Path) -> Path:
        return tmp_path / "marker"

    @pytest.fixture
    def written(self, place: Place, marker: Path) -> Place:
        place.write(SOURCE.format(marker=str(marker)))
        return place

    def pin(self, ref: KernelRef) -> Pin:
        return pin([ref], sources=self.sources).pins[ref]

    def planned(self, ref: KernelRef) -> Kernel:
        """Give the kernel that a plan made now would hold."""
        found = self.pin(ref)
        (build,) = found.builds
        variant = build.variant.name if build.variant else None
        return Kernel(reference=ref, commit=found.releases[0].commit, variant=variant, digest=build.digest)

    def load(self, kernel: Kernel) -> Any:
        return load(kernel, Trust(local=frozenset({kernel.reference.place})), sources=self.sources)

    def test_a_pin_holds_a_build_with_its_digest(self, written: Place) -> None:
        found = self.pin(written.ref)
        assert (found.ref, found.reason, len(found.builds)) == (written.ref, None, 1)
        assert found.builds[0].digest

    def test_a_pin_is_the_same_until_the_code_changes(self, written: Place, marker: Path) -> None:
        first = self.pin(written.ref)
        assert self.pin(written.ref) == first
        written.write(SOURCE.format(marker=str(marker)) + "# changed\n")
        assert self.pin(written.ref) != first

    def test_pinning_runs_no_code(self, written: Place, marker: Path) -> None:
        self.pin(written.ref)
        assert not marker.exists()

    def test_what_cannot_be_pinned_is_a_reason_and_no_exception(self, place: Place) -> None:
        found = self.pin(place.missing)
        assert found.builds == ()
        assert found.reason

    def test_the_code_is_the_class_that_the_reference_names(self, written: Place) -> None:
        kernel = self.planned(written.ref)
        loaded = self.load(kernel)
        assert (loaded.kernel, loaded.code.__name__) == (kernel, "Norm")

    def test_a_kernel_is_imported_once_whoever_asks(self, written: Place, marker: Path) -> None:
        kernel = self.planned(written.ref)
        with ThreadPoolExecutor(8) as pool:
            loaded = list(pool.map(self.load, [kernel] * 32))
        assert len({id(each.code) for each in loaded}) == 1
        assert marker.read_text("utf-8").splitlines() == ["ran"]

    def test_code_that_nobody_consented_to_does_not_run(self, written: Place, marker: Path) -> None:
        kernel = self.planned(written.ref)
        with pytest.raises(TrustError) as caught:
            load(kernel, Trust(), sources=self.sources)
        assert caught.value.message.startswith(f"{written.ref}: {written.ref.place} was not named by you")
        assert not marker.exists()

    def test_code_that_changed_after_it_was_planned_does_not_run(self, written: Place, marker: Path) -> None:
        kernel = self.planned(written.ref)
        written.write(SOURCE.format(marker=str(marker)) + "# changed\n")
        now = self.planned(written.ref)
        with pytest.raises(IntegrityError) as caught:
            self.load(kernel)
        found, planned = str(now.digest)[:12], str(kernel.digest)[:12]
        assert caught.value.message == f"{written.ref}: the code has digest {found}, the plan says {planned}"
        assert caught.value.hint == "the code changed after it was planned; plan again"
        assert not marker.exists()

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("raise ValueError('no')", "ValueError: no"),
            ("import no_module_of_this_name", "ModuleNotFoundError: No module named 'no_module_of_this_name'"),
            ("def", "SyntaxError: "),
        ],
    )
    def test_a_failed_import_leaves_nothing_behind(self, place: Place, code: str, why: str) -> None:
        place.write(code)
        before = set(sys.modules)
        kernel = self.planned(place.ref)
        with pytest.raises(SourceError) as caught:
            self.load(kernel)
        assert caught.value.message.startswith(f"{place.ref} cannot be imported: {why}")
        assert set(sys.modules) - before <= {"no_module_of_this_name"}

    def test_an_import_that_is_broken_off_leaves_nothing_behind(self, place: Place) -> None:
        place.write("raise KeyboardInterrupt")
        before = set(sys.modules)
        kernel = self.planned(place.ref)
        with pytest.raises(KeyboardInterrupt):
            self.load(kernel)
        assert set(sys.modules) == before

    def test_a_kernel_that_failed_is_imported_when_it_is_mended(self, place: Place, marker: Path) -> None:
        place.write("raise ValueError('no')")
        with pytest.raises(SourceError):
            self.load(self.planned(place.ref))
        place.write(SOURCE.format(marker=str(marker)))
        assert self.load(self.planned(place.ref)).code.__name__ == "Norm"

    def test_a_name_that_is_not_there_is_told_with_those_that_are_before_anything_runs(self, place: Place) -> None:
        place.write("class Norn: ...\nclass Other: ...\nclass _Hidden: ...\nraise ValueError('ran')")
        assert self.pin(place.ref).reason == "no 'Norm' there; did you mean Norn? it has Norn, Other"

    def test_a_name_that_only_running_can_tell_is_looked_for_then(self, place: Place) -> None:
        place.write("class Other: ...\nglobals()['Nor' + 'n'] = 1")
        with pytest.raises(SourceError) as caught:
            self.load(self.planned(place.ref))
        assert caught.value.message == f"{place.ref}: no 'Norm' there; found Other"

    def test_layers_are_looked_at_first_as_on_the_hub(self, place: Place) -> None:
        place.write("class Norm: ...\nclass layers:\n    class Norm:\n        inner = True")
        assert self.load(self.planned(place.ref)).code.inner

    def test_an_empty_module_has_no_kernel(self, place: Place) -> None:
        place.write("")
        with pytest.raises(SourceError) as caught:
            self.load(self.planned(place.ref))
        assert caught.value.message == f"{place.ref}: no 'Norm' there; found no classes"
