from __future__ import annotations

import copy
import functools
import importlib
import io
import pickle
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

import kerncfg
from kerncfg.applier.adapters.torch import kernel_layer
from kerncfg.applier.apply import Bindings, apply, revert
from kerncfg.applier.bind import bind as real_bind
from kerncfg.documents.target import Mode
from kerncfg.errors import ApplyError, ConflictError, ContractError, KerncfgWarning
from tests import fakes_functions
from tests.planning import choice, plan, step
from tests.snapshot import snapshot
from tests.test_adapters_transformers import CONSENT, TINY, build, ref

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan

ROTARY = "rotary_pos_emb"
BOTH = {Mode.INFERENCE: "python:tests.fakes_functions:HalfQ", Mode.TRAINING: "python:tests.fakes_functions:triple_q"}
TOKENS = torch.arange(8).reshape(1, 8)


def said(*steps: Any, **others: Any) -> Plan:
    return plan(*steps, trust=CONSENT, **others)


def rotary(name: str, **others: Any) -> Plan:
    return said(step(ROTARY, ref(name), **others))


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def passing(function: Any) -> Any:
    """A decorator with the forward in its closure, as transformers has."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return square(double(x)) * self.weight


class Wrapped(Caller):
    @passing
    @passing
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return double(x) * self.weight


class Inner(Caller):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum([double(part) for part in (x, x)], torch.zeros(())) + super().forward(x)


class Passes(Caller):
    """Names the function, and leaves the call to another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(map(double, [x]))


class OwnForward(Caller):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return double(x)


@kernel_layer("Whole")
class Whole(Caller):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return double(x)


class Untouched(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


X = torch.tensor([3.0])


def matched(name: str = "Ten", row: str = "f", function: str = "double", **match: Any) -> Any:
    exclude = match.pop("exclude", ())
    others = match.pop("others", {})
    return step(row, ref(name), match={"function": function, **match}, exclude=exclude, **others)


def value(model: nn.Module) -> float:
    return float(model(X))


# On small models of one's own


@pytest.mark.parametrize(
    ("cls", "own", "ten"),
    [(Caller, 36, 900), (Wrapped, 6, 30), (Inner, 48, 96)],
    ids=["plain", "decorated", "in a comprehension, beside super()"],
)
def test_a_function_that_a_forward_calls_is_replaced_and_comes_back(cls: Any, own: float, ten: float) -> None:
    model = cls()
    apply(said(matched()), cls()).revert()
    before = snapshot(model)
    assert value(model) == own
    with apply(said(matched()), model) as bindings:
        (row,) = bindings.report.rows
        assert (row.path, row.name, row.kind, row.status) == ("", "f", "function", "swapped")
        assert row.kernel == ref("Ten")
        assert value(model) == ten
        assert value(cls()) == own
    assert value(model) == own
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("name", "expected"), [("Ten", 30), ("twenty", 60), ("thousand", 3000)], ids=["class", "function", "closure"]
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_kernel_may_be_a_class_or_a_function(name: str, expected: float, compiled: bool) -> None:
    model = Wrapped()
    apply(said(matched(name)), model)
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    assert value(call) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "match",
    [
        {"function": f"{__name__}.double"},
        {"function": "double", "class": "Cal*"},
        {"function": "double", "type": f"{__name__}.Caller"},
        {"function": "double", "path": "a"},
    ],
    ids=["dotted", "class", "type", "path"],
)
def test_what_a_match_says_must_all_hold(match: dict[str, str]) -> None:
    model = nn.ModuleDict({"a": Caller(), "b": Untouched(), "c": Wrapped()})
    bindings = apply(said(step("f", ref("Ten"), match=match)), model)
    rows = [row.path for row in bindings.report.rows if row.status == "swapped"]
    assert rows == (["a", "c"] if match["function"] != "double" else ["a"])


def test_a_name_that_is_only_passed_on_is_no_call() -> None:
    with pytest.warns(KerncfgWarning, match="no forward calls double"):
        assert apply(said(matched()), Passes()).report.rows == ()


def test_a_function_is_told_by_the_name_the_forward_has_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(KerncfgWarning, match=r"no forward calls doubel, .*; the model has double \(1\)"):
        apply(said(matched(function="doubel")), nn.Sequential(Wrapped()))
    with pytest.warns(KerncfgWarning, match=r"no forward of path b calls double, .* has double \(1\)"):
        apply(said(matched(path="b")), nn.ModuleDict({"a": Wrapped()}))
    with pytest.raises(ApplyError, match=r"policy.strict: .* no forward calls other"):
        apply(said(matched(function="other"), strict=True), Caller())


def test_two_functions_of_one_forward_are_two_sites() -> None:
    model = Caller()
    bindings = apply(said(matched("Ten"), matched("twenty", "g", "square")), model)
    assert [(row.name, row.kernel) for row in bindings.report.rows] == [("g", ref("twenty")), ("f", ref("Ten"))]
    assert value(model) == 600
    bindings.revert()
    assert value(model) == 36


def test_two_rows_that_match_one_function_are_a_conflict() -> None:
    with pytest.raises(ConflictError, match=r"double in the model itself \(Caller\) is taken by kernels.f .* and kern"):
        apply(said(matched("Ten"), matched("twenty", "g")), Caller())
    model = nn.ModuleDict({"a": Caller(), "b": Wrapped()})
    bindings = apply(said(matched("Ten", path="a"), matched("twenty", "g", path="b")), model)
    assert [row.name for row in bindings.report.rows] == ["f", "g"]
    bindings = apply(said(matched("Ten", exclude=("a",)), matched("twenty", "g", exclude=("b",))), model)
    assert {row.path: row.name for row in bindings.report.rows} == {"a": "g", "b": "f"}


def test_an_excluded_module_keeps_its_function_and_says_so() -> None:
    model = nn.ModuleDict({"a": Caller(), "b": Caller()})
    bindings = apply(said(matched(exclude=("a",))), model)
    found = {row.path: (row.status, row.reason.partition(" (")[0]) for row in bindings.report.rows}
    assert found == {"a": ("kept", "excluded by a"), "b": ("swapped", "chosen for cpu")}


def test_a_class_whose_forward_a_layer_kernel_took_keeps_no_function() -> None:
    model = nn.ModuleDict({"whole": Whole(), "other": Caller()})
    bindings = apply(said(step("Whole", ref("WholeTen")), matched()), model)
    rows = {(row.path, row.kind): (row.status, row.reason) for row in bindings.report.rows}
    assert rows["whole", "layer"][0] == rows["other", "function"][0] == "swapped"
    assert rows["whole", "function"] == ("kept", "kernels.Whole took the whole forward, which calls it")
    assert [row.path for row in bindings.report.rows] == ["whole", "whole", "other"]
    assert value(model["whole"]) == -3


def test_a_layer_row_that_swaps_nothing_leaves_the_function_to_its_row() -> None:
    model = Whole()
    bindings = apply(said(step("Whole", "original"), matched()), model)
    assert [(row.kind, row.status) for row in bindings.report.rows] == [("layer", "off"), ("function", "swapped")]
    assert value(model) == 30


def test_a_row_that_is_off_is_reported_so() -> None:
    bindings = apply(said(step("f", "original", match={"function": "double"})), Caller())
    assert [(row.kind, row.status) for row in bindings.report.rows] == [("function", "off")]
    assert "forward" not in vars(bindings.model)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OtherDefault", r"it takes \(q, k, cos, sin, unsqueeze_dim=2\), apply_rotary_pos_emb takes .*unsqueeze_dim=1"),
        ("Keyword", r"it takes \(q, k, cos, sin, \*, unsqueeze_dim=1\)"),
        ("swapped_names", r"it takes \(k, q, cos, sin"),
        ("ReadsSelf", "its forward uses self.weight, and a function has no self"),
        ("SetsSelf", "its forward uses self.seen, and a function has no self"),
        ("generator", "its forward is a generator"),
        ("table", "a function's kernel is a subclass of torch.nn.Module or a function, this is a dict"),
        ("instance", "a module with a state of its own"),
        ("Pair", "the signature of tuple cannot be read"),
    ],
)
def test_a_kernel_that_does_not_fit_is_kept_out_with_the_reason(name: str, reason: str) -> None:
    model = build("Llama")
    with pytest.warns(KerncfgWarning, match=reason):
        report = apply(rotary(name), model).report
    assert report.counts == {"swapped": 0, "kept": 2, "off": 0}
    with pytest.raises(ContractError, match=reason):
        apply(rotary(name, fallback="error"), model)


def test_the_flags_of_a_kernel_keep_it_out_of_modes() -> None:
    model = build("Llama").train()
    with pytest.warns(KerncfgWarning, match="has_backward is false"):
        apply(rotary("OnlyInference"), model, mode="training")
    with pytest.warns(KerncfgWarning, match="can_torch_compile is not true"):
        apply(said(matched("twenty")), Caller(), compile=True)


def test_a_choice_that_does_not_fit_leaves_room_for_the_next() -> None:
    model = build("Llama")
    bindings = apply(said(step(ROTARY, [choice(ref("OtherDefault")), choice(ref("HalfQ"))])), model)
    (reason, _) = (row.reason for row in bindings.report.rows)
    assert "passed over: python:tests.fakes_functions:OtherDefault" in reason


def test_conditions_are_asked_of_the_module_that_calls() -> None:
    model = nn.ModuleDict({"a": Caller(), "b": Caller().half()})
    vars(model["a"])["kind"], vars(model["b"])["kind"] = "one", "two"
    only_half = step("f", choice(ref("Ten"), dtype=["float16"]), match={"function": "double"})
    assert [row.status for row in apply(said(only_half), model).report.rows] == ["kept", "swapped"]
    revert(model)
    only_one = step("f", choice(ref("Ten"), when={"kind": ["one"]}), match={"function": "double"})
    assert [row.status for row in apply(said(only_one), model).report.rows] == ["swapped", "kept"]
    with pytest.raises(ApplyError, match=r"when.nothing asks for what the module has not"):
        apply(said(step("f", choice(ref("Ten"), when={"nothing": [1]}), match={"function": "double"})), model)


def _module_with_state() -> Any:
    """A module whose functions share a global that one of them sets."""
    module = types.ModuleType("stateful")
    text = """
import torch
from torch import nn
count = 0
def double(x): return x * 2
def tick():
    global count
    count += 1
class Reads(nn.Module):
    def forward(self, x):
        tick()
        return double(x) + count
class Sets(nn.Module):
    def forward(self, x):
        global count
        count += 1
        return double(x)
class Named(nn.Module):
    def forward(self, x):
        return double(x) + len(__name__)
class Free(nn.Module):
    def forward(self, x):
        return double(x)
"""
    exec(compile(text, "stateful.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        ("Reads", "share the global count, which one of them sets"),
        ("Sets", "share the global count, which one of them sets"),
        ("Named", "it reads __name__"),
    ],
)
def test_a_forward_whose_globals_change_is_left_alone(cls: str, reason: str) -> None:
    model = getattr(_module_with_state(), cls)()
    with pytest.warns(KerncfgWarning, match=reason):
        apply(said(matched()), model)
    assert "forward" not in vars(model)
    free = _module_with_state().Free()
    apply(said(matched()), free)
    assert value(free) == 30


def test_what_is_wrapped_around_a_forward_stays_around_the_copy() -> None:
    model = Caller()
    inner = model.forward
    model.forward = lambda x: inner(x) + 1  # type: ignore[method-assign]
    bindings = apply(said(matched()), model)
    assert bindings.report.counts["swapped"] == 1
    assert value(model) == 901
    bindings.revert()
    assert value(model) == 37
    opaque = Caller()
    opaque.forward = lambda x: Caller.forward(opaque, x)  # type: ignore[method-assign]
    with pytest.warns(KerncfgWarning, match="wrapped"):
        apply(said(matched()), opaque)


def test_a_later_apply_leaves_the_earlier_ones_other_functions() -> None:
    model = Caller()
    first = apply(said(matched("Ten")), model)
    second = apply(said(matched("twenty", "g", "square")), model)
    assert value(model) == 600
    with pytest.raises(ConflictError, match="cannot be reverted while"):
        first.revert()
    second.revert()
    assert value(model) == 900
    third = apply(said(step("f", "original", match={"function": "double"})), model)
    assert value(model) == 36
    third.revert()
    assert value(model) == 900
    first.revert()
    assert value(model) == 36
    assert not {"forward", "train", "_kerncfg"} & set(vars(model))


def test_a_function_under_an_earlier_layers_kernel_is_kept() -> None:
    model = Whole()
    first = apply(said(step("Whole", ref("WholeTen"))), model)
    with pytest.warns(KerncfgWarning, match="a kernel took the whole forward, by apply"):
        apply(said(matched()), model)
    assert value(model) == -3
    first.revert()
    on_top = apply(said(matched()), model)
    apply(said(step("Whole", ref("WholeTen"))), model).revert()
    assert value(model) == 30
    on_top.revert()


def test_a_module_added_later_is_reported_as_not_covered() -> None:
    model = nn.ModuleDict({"a": Caller()})
    bindings = apply(said(matched()), model)
    model["b"] = Caller()
    added = bindings.report.rows[-1]
    assert (added.path, added.kind, added.status) == ("b", "function", "kept")
    assert added.reason == "added after apply; apply again to cover it"


def test_a_subclass_with_a_forward_of_its_own_is_told_by_what_that_calls() -> None:
    model = nn.ModuleDict({"own": OwnForward(), "not": Untouched()})
    assert [row.path for row in apply(said(matched()), model).report.rows] == ["own"]


@pytest.mark.parametrize("at", range(4))
def test_a_failure_at_any_edit_leaves_everything_as_before(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ModuleList([Caller(), Whole(), Caller(), Wrapped()])
    for part in model:
        apply(said(matched("Ten")), part).revert()
    before = snapshot(model)
    count = 0

    def failing(module: nn.Module, edit: Any, *others: Any) -> None:
        nonlocal count
        if count == at:
            raise KeyboardInterrupt
        count += 1
        real_bind(module, edit, *others)

    monkeypatch.setattr("kerncfg.applier.settle.bind", failing)
    with pytest.raises(KeyboardInterrupt):
        apply(said(step("Whole", ref("WholeTen")), matched()), model)
    assert count == at
    assert snapshot(model) == before


# On real models


@pytest.mark.parametrize(("name", "layers"), [("Qwen3", 2), ("Llama", 2), ("Gemma", 2)])
def test_a_real_models_rotary_is_replaced_in_it_alone(name: str, layers: int) -> None:
    model, other, third = build(name), build(name), build(name)
    own = model(TOKENS).logits
    apply(rotary("HalfQ"), third).revert()
    before = snapshot(model)
    with apply(rotary("HalfQ"), model) as first, apply(rotary("triple_q"), other):
        assert first.report.counts["swapped"] == layers
        assert {row.kind for row in first.report.rows} == {"function"}
        found = [one(TOKENS).logits for one in (model, other, third)]
        assert not torch.equal(found[0], own)
        assert not torch.equal(found[0], found[1])
        assert torch.equal(found[2], own)
        assert torch.equal(found[0], patched(name, fakes_functions.HalfQ().forward))
        assert torch.equal(found[1], patched(name, fakes_functions.triple_q))
    assert torch.equal(model(TOKENS).logits, own)
    assert snapshot(model) == before


def patched(name: str, function: Any) -> torch.Tensor:
    """What the model says with the function replaced for the whole process."""
    module: Any = importlib.import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    own = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = function
    try:
        logits: torch.Tensor = build(name)(TOKENS).logits
        return logits
    finally:
        module.apply_rotary_pos_emb = own


def test_a_model_without_such_a_function_says_what_it_has() -> None:
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    with pytest.warns(KerncfgWarning, match="no layer rotary_pos_emb"):
        apply(rotary("HalfQ"), transformers.GPT2LMHeadModel(config))


def mamba2() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "state_size": 8, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 32}
    config = transformers.Mamba2Config.from_dict(sizes)
    model: Any = transformers.Mamba2ForCausalLM(config)
    return model.eval()


def test_the_functions_that_packages_may_provide_are_found_in_mamba2() -> None:
    from kerncfg.applier.adapters.transformers import TransformersAdapter

    layers = [layer for layer in set(TransformersAdapter().sites(mamba2()).layers) if layer is not None]
    found = {function.called: function.name for layer in layers for function in layer.functions if function.name}
    assert found == {
        "causal_conv1d_fn": "causal_conv1d_fn",
        "causal_conv1d_update": "causal_conv1d_update",
        "mamba2_chunk_scan": "mamba_chunk_scan_combined",
        "mamba2_selective_state_update": "selective_state_update",
        "mamba2_split_conv1d_scan_combined": "mamba_split_conv1d_scan_combined",
    }


def train(model: Any, mode: bool) -> torch.Tensor:
    logits: torch.Tensor = model.train(mode)(TOKENS).logits
    return logits


def test_kernels_of_functions_follow_the_mode() -> None:
    model = build("Qwen3")
    own = {mode: train(build("Qwen3"), mode) for mode in (False, True)}
    bindings = apply(said(step(ROTARY, BOTH)), model)
    alone = {mode: train(applied(name), mode) for mode, name in ((False, "HalfQ"), (True, "triple_q"))}
    for mode in (False, True, True, False):
        assert torch.equal(train(model, mode), alone[mode])
        row = bindings.report.rows[0]
        assert row.kernel == BOTH[Mode.TRAINING if mode else Mode.INFERENCE]
        assert row.modes == {mode.value: kernel for mode, kernel in BOTH.items()}
    bindings.revert()
    for mode in (False, True):
        assert torch.equal(train(model, mode), own[mode])
    assert not {"train", "forward"} & set(vars(model.model.layers[0].self_attn))


def applied(name: str) -> Any:
    model = build("Qwen3")
    apply(rotary(name), model)
    return model


def round_trip(model: nn.Module, how: str) -> Any:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_runs_the_kernels_on_its_own_weights_and_reverts_alone(how: str) -> None:
    model = build("Llama")
    own = model(TOKENS).logits
    bindings = apply(said(step(ROTARY, BOTH)), model)
    swapped, training = model(TOKENS).logits, train(model, True)
    model.eval()
    copied = round_trip(model, how)
    assert torch.equal(copied(TOKENS).logits, swapped)
    assert torch.equal(train(copied, True), training)
    copied.eval()
    with torch.no_grad():
        copied.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert not torch.equal(copied(TOKENS).logits, swapped)
    assert torch.equal(model(TOKENS).logits, swapped)
    revert(copied)
    with torch.no_grad():
        copied.model.layers[0].self_attn.q_proj.weight.div_(2)
    assert torch.equal(copied(TOKENS).logits, own)
    assert torch.equal(model(TOKENS).logits, swapped)
    bindings.revert()
    assert torch.equal(model(TOKENS).logits, own)


def test_a_saved_module_whose_class_calls_the_function_no_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Caller()
    apply(said(matched()), model)
    saved = pickle.dumps(model)
    monkeypatch.setattr(Caller, "forward", Untouched.forward)
    with pytest.raises(ApplyError, match=r"a Caller was saved with kernels that it cannot run here: .*calls no double"):
        pickle.loads(saved)


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return lookup_backend("aot_eager")(graph, inputs)


COMPILED = {
    Mode.INFERENCE_COMPILE: BOTH[Mode.INFERENCE],
    Mode.TRAINING_COMPILE: BOTH[Mode.TRAINING],
}


@pytest.mark.parametrize("before", [False, True], ids=["compiled after", "compiled before"])
def test_a_compiled_model_compiles_once_a_mode(before: bool) -> None:
    torch._dynamo.reset()
    backend = Counting()
    model = build("Qwen3").requires_grad_(False)
    own = model(TOKENS, use_cache=False).logits
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True) if before else None
    bindings = apply(said(step(ROTARY, COMPILED)), compiled if before else model, compile=True)
    compiled = compiled if compiled is not None else torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        for mode in (False, True):
            compiled.train(mode)
            expected = model(TOKENS, use_cache=False).logits
            assert torch.allclose(compiled(TOKENS, use_cache=False).logits, expected, atol=1e-5)
            assert not torch.allclose(expected, own, atol=1e-5)
    assert backend.count == 2
    bindings.revert()
    model.eval()
    assert torch.allclose(compiled(TOKENS, use_cache=False).logits, own, atol=1e-5)


@pytest.mark.parametrize("regional", [False, True])
def test_models_with_two_kernels_share_no_compiled_code(regional: bool) -> None:
    """They run the same code under the same names: what torch.compile tells apart must differ."""
    torch._dynamo.reset()
    backend = Counting()
    models = [build("Qwen3").requires_grad_(False) for _ in range(3)]
    apply(rotary("HalfQ"), models[0], compile=True)
    apply(rotary("triple_q"), models[1], compile=True)
    expected = [model(TOKENS, use_cache=False).logits for model in models]
    compiled = models if regional else [torch.compile(model, backend=backend) for model in models]
    for layer in [layer for model in models for layer in model.model.layers] if regional else ():
        layer.compile(backend=backend)
    for _ in range(2):
        for model, logits in zip(compiled, expected, strict=True):
            assert torch.allclose(model(TOKENS, use_cache=False).logits, logits, atol=1e-5)
    assert backend.count == 3
    assert not torch.allclose(expected[0], expected[1], atol=1e-5)


def test_a_model_with_kernels_is_exported_with_them() -> None:
    model = applied("HalfQ")
    exported = torch.export.export(model, (TOKENS,), {"use_cache": False}, strict=False)
    with torch.no_grad():
        expected = model(TOKENS, use_cache=False).logits
        assert torch.allclose(exported.module()(TOKENS, use_cache=False).logits, expected, atol=1e-5)


def test_gradients_go_through_a_functions_kernel() -> None:
    model = applied("HalfQ").train()
    model.activation_checkpointing_enable()
    model(TOKENS, labels=TOKENS).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_generation_goes_on_with_kernels() -> None:
    model = applied("triple_q")
    tokens = model.generate(TOKENS[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert tokens.shape == (1, 7)


def test_the_state_dict_and_its_parameters_stay() -> None:
    model = build("Llama")
    names = {name: id(value) for name, value in model.named_parameters()}
    apply(rotary("HalfQ"), model)
    assert {name: id(value) for name, value in model.named_parameters()} == names
    assert list(model.state_dict()) == list(build("Llama").state_dict())


def test_a_model_within_another_and_a_row_for_layers_beside() -> None:
    model = nn.ModuleDict({"text": build("Qwen3"), "other": build("Llama")})
    bindings = apply(said(step("RMSNorm", "HiddenTen"), step(ROTARY, ref("HalfQ"))), model)
    kinds = [(row.kind, row.status) for row in bindings.report.rows]
    assert kinds.count(("function", "swapped")) == 4
    assert kinds.count(("layer", "swapped")) == 14
    bindings.revert()
    assert not any("_kerncfg" in vars(module) for module in model.modules())


def test_two_threads_apply_to_two_models_at_once() -> None:
    models = [build("Llama") for _ in range(4)]
    names = ["HalfQ", "triple_q"] * 2
    made: list[Bindings] = []
    threads = [
        threading.Thread(target=lambda model=model, name=name: made.append(apply(rotary(name), model)))
        for model, name in zip(models, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logits = [model(TOKENS).logits for model in models]
    assert len(made) == 4
    assert torch.equal(logits[0], logits[2])
    assert torch.equal(logits[1], logits[3])
    assert not torch.equal(logits[0], logits[1])


def test_the_bundled_kernel_takes_the_models_that_its_row_names() -> None:
    import transformers

    model = build("Llama")
    own = model(TOKENS).logits
    bindings = kerncfg.kernelize(model, "kernels=bundled", "inherited=none", "~kernels.RMSNorm")
    swapped = [row for row in bindings.report.rows if row.kind == "function"]
    assert [(row.status, row.kernel) for row in swapped] == [("swapped", "builtin:RotaryPosEmb")] * 2
    assert torch.allclose(model(TOKENS).logits, own, atol=1e-5)
    model(TOKENS, labels=TOKENS).loss.backward()
    config = transformers.OlmoConfig.from_dict({**TINY, "pad_token_id": 0})
    other: Any = transformers.OlmoForCausalLM(config)
    other.eval()
    with pytest.warns(KerncfgWarning, match=r"needs config.model_type arcee or .*, found olmo"):
        kerncfg.kernelize(other, "kernels=bundled", "inherited=none")
