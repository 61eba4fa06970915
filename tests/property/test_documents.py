from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.resolve import resolve
from kerncfg.documents.config import Candidate, Config, KernelRef, Trust
from kerncfg.documents.plan import Plan
from kerncfg.documents.reference import parse_range
from kerncfg.documents.target import MODE_PREFERENCE, Mode, Target
from kerncfg.errors import ConfigError
from tests.builders import config, locked, request
from tests.property.strategies import (
    NAMES,
    documents,
    kernel_rows,
    kernels,
    law,
    locks,
    ranges,
    references,
    requests,
    targets,
)

if TYPE_CHECKING:
    from kerncfg.compiler.policy import Request

pytestmark = pytest.mark.property


def normalised(document: Mapping[str, Any]) -> Config:
    """Normalise, or leave out a document with a fault that no schema sees."""
    try:
        return normalise(document)
    except ConfigError:
        assume(False)
        raise


def may_fall_back(found: Config) -> Config:
    return replace(
        found,
        rows={name: replace(row, fallback="original") for name, row in found.rows.items()},
        fusions={name: replace(row, fallback="original") for name, row in found.fusions.items()},
        attention={name: replace(row, fallback="original") for name, row in found.attention.items()},
    )


@law
@given(documents)
def test_normalise_is_idempotent(document: dict[str, Any]) -> None:
    found = normalised(document)
    again = normalise(found.to_dict())
    assert again == found
    assert again.to_dict() == found.to_dict()


@law
@given(documents)
def test_a_config_survives_json(document: dict[str, Any]) -> None:
    found = normalised(document)
    assert normalise(json.loads(json.dumps(found.to_dict()))) == found


@law
@given(references)
def test_a_reference_survives_text(text: str) -> None:
    ref = KernelRef.parse(text)
    assert KernelRef.parse(str(ref)) == ref


@law
@given(ranges())
def test_a_range_survives_text(text: str) -> None:
    assert parse_range(parse_range(text)) == parse_range(text)


@law
@given(targets())
def test_a_target_survives_json(target: Target) -> None:
    assert Target.from_dict(json.loads(json.dumps(target.to_dict()))) == target


@law
@given(st.data(), documents)
def test_a_plan_survives_json(data: st.DataObject, document: dict[str, Any]) -> None:
    found = may_fall_back(normalised(document))
    made = resolve(found, data.draw(locks(found)), data.draw(requests(found.trust)))
    again = Plan.from_dict(json.loads(made.to_json()))
    assert replace(again, trust=made.trust) == made
    assert again.to_json() == made.to_json()


@law
@given(st.data(), documents)
def test_the_order_of_names_never_matters(data: st.DataObject, document: dict[str, Any]) -> None:
    turned = {**document}
    for node in ("kernels", "inherited"):
        order = data.draw(st.permutations(list(document[node])))
        turned[node] = {name: _turned(document[node][name]) for name in order}
    found, other = may_fall_back(normalised(document)), may_fall_back(normalised(turned))
    assert other == found
    lock, asked = data.draw(locks(found)), data.draw(requests(found.trust))
    assert resolve(other, lock, asked).to_json() == resolve(found, lock, asked).to_json()


def _turned(row: Any) -> Any:
    return dict(reversed(row.items())) if isinstance(row, dict) else row


@law
@given(documents, st.sampled_from(NAMES))
def test_names_do_not_depend_on_each_other(document: dict[str, Any], name: str) -> None:
    found = normalised(document)
    alone = {
        node: {key: row for key, row in document[node].items() if key in (name, "inherit_mapping")}
        for node in ("kernels", "inherited")
    }
    assert normalise({**document, **alone}).rows.get(name) == found.rows.get(name)


def swapped(found: Config, request: Request, refused: set[KernelRef]) -> set[Mode]:
    """Give the modes of the row N that run a kernel when some kernels are refused."""

    def check(candidate: Candidate, *_: object) -> str | None:
        return "refused" if candidate.ref in refused else None

    (step,) = resolve(found, locked(found), request, checks=(check,)).steps
    return {mode for mode, made in step.modes.items() if not made.choices[0].original}


@law
@given(st.data(), kernel_rows, kernels, st.sampled_from(["cuda", "cpu", "rocm"]))
def test_one_more_candidate_never_leaves_a_mode_without_a_kernel(
    data: st.DataObject, said: dict[str, Any], more: str, device: str
) -> None:
    found = config({"N": said})
    row = found.rows["N"]
    cell = data.draw(st.sampled_from(list(row.cells)))
    mode = data.draw(st.sampled_from(Mode))
    there = list(row.cells[cell].get(mode, ()))
    there.insert(data.draw(st.integers(0, len(there))), Candidate(ref=KernelRef.parse(more)))
    cells = {**row.cells, cell: {**row.cells[cell], mode: tuple(there)}}
    longer = replace(found, rows={"N": replace(row, cells=cells)})
    refs = sorted({candidate.ref for candidate in longer.rows["N"].candidates()}, key=str)
    refused = data.draw(st.sets(st.sampled_from(refs)))
    asked = request(device, trust=Trust(allow_all_kernels=True))
    assert swapped(longer, asked, refused) >= swapped(found, asked, refused)


@law
@given(kernel_rows, st.sampled_from(Mode), st.sampled_from(["cuda", "cpu", "rocm"]))
def test_candidates_are_tried_by_mode_and_then_by_place(said: dict[str, Any], mode: Mode, device: str) -> None:
    found = config({"N": said}, trust={"allow_all_kernels": True})
    step = resolve(found, locked(found), request(device, trust=found.trust)).steps[0]
    modes = {**said.get("any", {}), **said.get(device, {})}
    expected = [KernelRef.parse(text) for other in MODE_PREFERENCE[mode] for text in modes.get(other, ())]
    chosen = [choice.kernel.reference for choice in step.modes[mode].choices]
    assert chosen == [*dict.fromkeys(expected), KernelRef(scheme="original")]
