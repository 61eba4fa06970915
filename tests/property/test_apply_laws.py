"""What holds for every model, plan and order of things done."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kerncfg.applier.apply import apply, revert
from kerncfg.documents.target import Mode
from kerncfg.errors import KerncfgWarning
from tests.planning import plan, step
from tests.snapshot import snapshot
from tests.test_apply import Act, Block, Norm, Refusing, accelerated, in_a_cell, in_a_partial

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan, Step

pytestmark = pytest.mark.property

X = torch.ones(1, 4)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A plan drawn at random may well swap nothing, which is no news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KerncfgWarning)
        yield


class Chain(nn.Module):
    """Calls its children in turn, however it is built."""

    def __init__(self, children: list[nn.Module]) -> None:
        super().__init__()
        for index, child in enumerate(children):
            self.add_module(f"part_{index}", child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


leaves = st.sampled_from([Norm, Act, Block]).map(lambda cls: cls())
trees = st.recursive(leaves, lambda inner: st.lists(inner, min_size=1, max_size=3).map(Chain), max_leaves=6)
wrappers = st.lists(st.sampled_from([None, None, accelerated, in_a_cell, in_a_partial]), min_size=1, max_size=4)


@st.composite
def models(draw: st.DrawFn, *, wrapped: bool = True) -> nn.Module:
    parts = draw(st.lists(trees, min_size=1, max_size=3))
    if draw(st.booleans()):
        parts.append(parts[0])  # tied
    model = Chain(parts)
    if wrapped:
        wraps = draw(wrappers)
        sites = [module for module in model.modules() if isinstance(module, Norm | Act)]
        for index, module in enumerate(sites):
            if (wrap := wraps[index % len(wraps)]) is not None:
                wrap(module)
    return model.train(draw(st.booleans()))


kernels = st.sampled_from(["Ten", "Twenty", "Free", "OnlyForward", "WithInit", "OtherName", "original"])
said = st.dictionaries(st.sampled_from(list(Mode)), st.lists(kernels, min_size=1, max_size=3), max_size=4)
globs = st.lists(st.sampled_from(["**", "part_0.**", "**.norm", "*", "*.act", "part_1", "part_*.part_0"]), max_size=2)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    rows = [step(name, draw(said), exclude=draw(globs)) for name in draw(st.sets(st.sampled_from(["Norm", "Act"])))]
    if draw(st.booleans()):
        keys = draw(st.sampled_from([{"class": "Norm"}, {"path": "**.norm"}, {"name": "Act"}, {"path": "part_0"}]))
        rows.append(step("matched", draw(said), match=keys, exclude=draw(globs)))
    return rows


plans = steps().map(lambda rows: plan(*rows))


def same(model: nn.Module) -> dict[str, Any]:
    """The snapshot without the process's modules: importing a kernel is meant to last."""
    return {key: value for key, value in snapshot(model).items() if key != "imports"}


def output(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(X)
    return found


@settings(max_examples=60, deadline=None)
@given(model=models(), said=plans, switches=st.lists(st.booleans(), max_size=3), mode=st.sampled_from([None, *Mode]))
def test_apply_then_revert_restores_everything(
    model: nn.Module, said: Plan, switches: list[bool], mode: Mode | None
) -> None:
    training, before, own = model.training, same(model), output(model)
    bindings = apply(said, model, mode=mode)
    for switch in switches:
        model.train(switch)
        output(model)
    model.train(training)
    bindings.revert()
    assert same(model) == before
    assert torch.equal(output(model), own)


@settings(max_examples=40, deadline=None)
@given(model=models(), layers=st.lists(plans, min_size=1, max_size=3))
def test_nested_applies_leave_each_level_as_it_was(model: nn.Module, layers: list[Plan]) -> None:
    levels = []
    for said in layers:
        before = same(model)
        levels.append((before, output(model), apply(said, model)))
    for before, out, bindings in reversed(levels):
        bindings.revert()
        assert torch.equal(output(model), out)
        assert same(model) == before


@settings(max_examples=30, deadline=None)
@given(model=models(), said=plans, outer=st.none() | plans)
def test_a_failure_at_every_edit_in_turn_leaves_the_model_equal(
    model: nn.Module, said: Plan, outer: Plan | None
) -> None:
    for module in model.modules():
        module.__dict__ = Refusing(module.__dict__)
    if outer is not None:
        apply(outer, model)
    with apply(said, model):
        """What is loaded once stays loaded."""
    before, edit = same(model), 0
    while True:
        Refusing.left = edit
        try:
            bindings = apply(said, model)
        except MemoryError:
            edit += 1
            assert same(model) == before
        else:
            break
    Refusing.left = -1
    bindings.revert()
    assert same(model) == before


@settings(max_examples=40, deadline=None)
@given(model=models(), rows=steps(), seed=st.randoms(use_true_random=False))
def test_the_order_of_rows_never_matters(model: nn.Module, rows: list[Step], seed: Any) -> None:
    other = rows.copy()
    seed.shuffle(other)
    with apply(plan(*rows), model) as bindings:
        first, out = bindings.report.rows, output(model)
    with apply(plan(*other), model) as bindings:
        assert bindings.report.rows == first
        assert torch.equal(output(model), out)


@settings(max_examples=40, deadline=None)
@given(model=models(wrapped=False), said=plans)
def test_copies_and_pickles_compute_the_same_in_both_modes_and_revert_alone(model: nn.Module, said: Plan) -> None:
    own = [output(model.train(training)) for training in (False, True)]
    bindings = apply(said, model)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for training in (False, True):
            assert torch.equal(output(made.train(training)), output(model.train(training)))
        kept = output(model)
        revert(made)
        assert torch.equal(output(model), kept)
        assert [torch.equal(output(made.train(training)), own[training]) for training in (False, True)] == [True] * 2
        assert all("_kerncfg" not in vars(module) for module in made.modules())
    bindings.revert()


@settings(max_examples=40, deadline=None)
@given(model=models(), said=plans)
def test_every_site_has_one_row_and_says_what_runs(model: nn.Module, said: Plan) -> None:
    paths = [name for name, _ in model.named_modules()]
    with apply(said, model) as bindings:
        rows = bindings.report.rows
        assert [row.path for row in rows] == [path for path in paths if path in {row.path for row in rows}]
        assert len({row.path for row in rows}) == len(rows)
        assert sum(bindings.report.counts.values()) == len(rows)
        for row in rows:
            assert row.modes[row.mode] == (row.kernel or "original")
            assert (row.kernel is not None) == (row.status == "swapped")
            assert row.reason
