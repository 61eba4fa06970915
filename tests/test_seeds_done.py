"""Every example of the two pages that kerncfg grew from, done: kernels from a loopback Hub run on a small model.

Both forms run: the page's Python through `from_kernel_config`, and the YAML as a file of one's own. Where a page names
devices that are not here, the same kernel stands in a row for the CPU beside them, and the plan for that device is
looked at. What fails upstream has no exception made for it.
"""

from __future__ import annotations

import gc
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

import kerncfg
from kerncfg.errors import KerncfgWarning
from tests.fusing import transformer
from tests.hub import kernels
from tests.hub.repos import Build, Content, Repository
from tests.lifecycle import ROOM, TOKENS
from tests.ran import during
from tests.snapshot import snapshot
from tests.test_seeds import EXAMPLES, Example, called

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hub.fixtures import TestHub

VARIANTS = ("torch-cpu", "torch-cuda", "torch-rocm", "torch-xpu")
LIGER, FLASH = "kernels-community/liger-kernels", "kernels-community/flash-attn2"


# The kernels of the pages: each is right, and says when it runs


def norm(name: str, said: str, weight: str = "weight") -> str:
    """A norm that says what ran."""
    return textwrap.dedent(f"""
        import torch
        from torch import nn
        from tests.ran import ran

        class {name}(nn.Module):
            can_torch_compile = True
            {weight}: torch.Tensor
            variance_epsilon: float

            def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
                ran.append({said!r})
                wide = hidden_states.float()
                scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
                return self.{weight} * (wide * scale).to(hidden_states.dtype)
    """)


SCALED = textwrap.dedent("""

    class ScaledRMSNormLayout(nn.Module):
        conversion = {"scale": "weight"}

        def __init__(self, norm):
            super().__init__()
            self.scale = nn.Parameter(torch.empty_like(norm.weight))
            self.variance_epsilon = norm.variance_epsilon
""")

FUSED = textwrap.dedent("""
    import torch
    from torch import nn
    from tests.ran import ran

    class RMSNormMLP(nn.Module):
        weight: torch.Tensor
        variance_epsilon: float

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            ran.append("owner/fused-rmsnorm-mlp")
            wide = hidden_states.float()
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            normed = self.weight * (wide * scale).to(hidden_states.dtype)
            gate, up = self.gate_up_proj(normed).chunk(2, -1)
            return self.down_proj(nn.functional.silu(gate) * up)

    class RMSNormMLPLayout(nn.Module):
        conversion = {"gate_up_proj.weight": ["gate_proj.weight", "up_proj.weight"]}

        def __init__(self, norm, mlp):
            super().__init__()
            self.variance_epsilon = norm.variance_epsilon
            self.weight = norm.weight
            rows = mlp.gate_proj.out_features + mlp.up_proj.out_features
            self.gate_up_proj = nn.Linear(mlp.gate_proj.in_features, rows, bias=False)
            self.down_proj = mlp.down_proj
""")

EXPERTS = textwrap.dedent("""
    import torch
    from torch import nn
    from tests.ran import ran

    class CPUMegaBlocksMoeMLP(nn.Module):
        def forward(self, hidden_states):
            ran.append("kernels-community/megablocks")
            flat = hidden_states.reshape(-1, hidden_states.shape[-1])
            _, scores, indices = self.router(flat)
            return self.experts(flat, indices, scores).reshape(hidden_states.shape), scores
""")


def functions(said: str, name: str) -> dict[str, Content]:
    """A kernel of functions, each of which says what ran."""
    text = kernels.source(f"{name}.py").replace("import torch\n", "import torch\nfrom tests.ran import ran\n", 1)
    tensor = "torch.Tensor" if name == "attention" else r"tuple\[torch.Tensor, torch.Tensor\]"

    def saying(found: re.Match[str]) -> str:
        return f"{found[0]}{found[1]}    ran.append({said!r})\n"

    return {"__init__.py": re.sub(rf"^( *)\) -> {tensor}:\n", saying, text, flags=re.M)}


def released(name: str, **revisions: Mapping[str, Content]) -> Repository:
    """A repository with a build for every device at each branch (`v3`) or tag (`v2_1_0`)."""
    made = Repository(name)
    for revision, modules in revisions.items():
        tag = revision.replace("_", ".") if "_" in revision else None
        branch = revision.partition("_")[0]
        kernel = name.partition("/")[2]
        builds = [Build(name=kernel, modules=modules, variant=each, version=int(branch[1:])) for each in VARIANTS]
        made.release(builds, branch, tag=tag)
    return made


def norms(name: str, entry: str, *revisions: str) -> Repository:
    said = {one: kernels.package(norm(entry, f"{name}@{one.replace('_', '.')}")) for one in revisions}
    return released(name, **said)


@pytest.fixture
def seeds(hub: TestHub) -> TestHub:
    """A Hub with every repository that the pages name, and the one of the default mapping for the CPU."""
    hub.add(norms(LIGER, "LigerRMSNorm", "v1", "v2_1_0", "v3_1_0", "v3"))
    hub.add(norms("kernels-community/rmsnorm", "RMSNorm", "v1"))
    hub.add(norms("acme/norms", "RMSNorm", "v1"))
    flash = {one: functions(f"{FLASH}@{one.replace('_', '.')}", "attention") for one in ("v2_1_0", "v3", "v4")}
    hub.add(released(FLASH, **flash))
    hub.add(released("random-repo/random-attention", v1=functions("random-repo/random-attention", "attention")))
    hub.add(released("kernels-community/rotary", v2=functions("kernels-community/rotary", "rotary")))
    hub.add(released("owner/fused-rmsnorm-mlp", v1=kernels.package(FUSED)))
    scaled = norm("ScaledRMSNorm", "owner/scaled-rmsnorm", "scale") + SCALED
    hub.add(released("owner/scaled-rmsnorm", v1=kernels.package(scaled)))
    hub.add(released("kernels-community/megablocks", v1=kernels.package(EXPERTS)))
    return hub


@dataclass(frozen=True, kw_only=True)
class Done:
    """What an example does here: which kernels run, on how many sites; `cpu` replaces rows for devices elsewhere.

    `consent` is what the person who runs the page has to add, since the page's Python is data to kerncfg. `elsewhere`
    is what the plan of the example as it stands takes on other machines, by row.
    """

    ran: tuple[str, ...] = ()
    swapped: int = 0
    consent: tuple[str, ...] = ()
    consented: bool = False  # by the YAML itself
    reason: str | None = None
    cpu: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


NEWEST = f"{LIGER}:LigerRMSNorm"
DONE: dict[str, Done] = {
    "use_kernels": Done(elsewhere={"h100": {"RMSNorm": f"{LIGER}@v3:LigerRMSNorm"}}),
    "a kernel switched off for determinism": Done(reason="off, as the row says"),
    "attention from the Hub": Done(ran=(f"{FLASH}@v4",), swapped=1),
    "attention of another publisher": Done(
        ran=("random-repo/random-attention",), swapped=1, consent=("random-repo",), consented=True
    ),
    "attention at a tag": Done(ran=(f"{FLASH}@v2.1.0",), swapped=1),
    "attention in a range": Done(ran=(f"{FLASH}@v2.1.0",), swapped=1),
    "an attention function by its name": Done(ran=(f"{FLASH}@v4",), swapped=1),
    "flash_attention_2": Done(
        reason="the part uses sdpa already",
        cpu={"attention": {"default": f"{FLASH}@v4"}},
        elsewhere={"h100": {"default": f"{FLASH}@v4"}},
    ),
    "flash_attention_3": Done(reason="the part uses sdpa already"),
    "flash_attention_4": Done(reason="the part uses sdpa already"),
    "sdpa": Done(reason="the part uses sdpa already"),
    "eager": Done(swapped=1),
    "a layer beside attention": Done(ran=(f"{FLASH}@v4", f"{LIGER}@v3"), swapped=10),
    "a kernel for each device": Done(
        reason="no row for cpu",
        cpu={"kernels": {"RMSNorm": {"cuda": NEWEST, "cpu": NEWEST}}},
        elsewhere={
            "h100": {"RMSNorm": NEWEST},
            "mi300x": {"RMSNorm": NEWEST},
            "max1550": {"RMSNorm": "kernels-community/rmsnorm:RMSNorm"},
        },
    ),
    "a kernel for one device": Done(
        reason="no row for cpu",
        cpu={"kernels": {"RMSNorm": {"cpu": "kernels-community/rmsnorm:RMSNorm"}}},
        elsewhere={
            "max1550": {"RMSNorm": "kernels-community/rmsnorm:RMSNorm"},
            "h100": {"RMSNorm": f"{LIGER}@v3:LigerRMSNorm"},  # what it inherits
        },
    ),
    "metadata": Done(ran=(f"{LIGER}@v3",), swapped=9),
    "metadata with a tag": Done(ran=(f"{LIGER}@v3.1.0",), swapped=9),
    "a tag in the text": Done(ran=(f"{LIGER}@v2.1.0",), swapped=9),
    "code of a publisher that is not trusted": Done(
        ran=("acme/norms@v1",), swapped=9, consent=("acme/norms",), consented=True
    ),
    "trust as a list": Done(ran=("acme/norms@v1",), swapped=9, consent=("acme/norms",), consented=True),
    "a function and nothing else": Done(ran=("kernels-community/rotary",), swapped=2),
    "a fusion": Done(ran=("owner/fused-rmsnorm-mlp",), swapped=2, consent=("owner",)),
    "transformed parameters": Done(ran=("owner/scaled-rmsnorm",), swapped=9, consent=("owner",)),
    "a local kernel": Done(ran=("local",), swapped=9),
}
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)
each_form = pytest.mark.parametrize("form", ["python", "yaml"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the page's local kernels."""
    made: Path = tmp_path / "liger-kernels"
    (made / "build" / "torch-cpu").mkdir(parents=True)
    for name, text in kernels.package(norm("LigerRMSNorm", "local")).items():
        (made / "build" / "torch-cpu" / name).write_text(str(text), encoding="utf-8")
    return made


def planned(example: Example, form: str, folder: Path, trust: tuple[str, ...], target: str = "cpu") -> kerncfg.Plan:
    """The plan of an example: of the document that its Python means, or of its YAML as a file of one's own."""
    place = str(folder)
    if form == "python":
        document = yaml.safe_load(yaml.safe_dump(called(example)).replace("/path/to/liger-kernels", place))
        document.pop("trust", None)  # data grants none
        return kerncfg.plan(f"target={target}", config=document, trust=trust)
    conf = folder.parent / "conf" / "experiment"
    conf.mkdir(parents=True, exist_ok=True)
    said = yaml.safe_load(example.yaml.replace("/path/to/liger-kernels", place))
    (conf / "seed.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(said)}", encoding="utf-8")
    return kerncfg.plan("experiment=seed", f"target={target}", config_dir=conf.parent, trust=trust)


def model() -> Any:
    return transformer()


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(TOKENS).logits
    return found.detach()


def seen(model: Any) -> tuple[Any, list[str]]:
    """What a model says, and which kernels ran meanwhile."""
    return during(lambda: logits(model))


def test_no_example_is_left_out() -> None:
    assert list(DONE) == [example.name for example in EXAMPLES]


@each_form
@each_example
def test_an_example_does_what_the_page_says(example: Example, form: str, seeds: TestHub, folder: Path) -> None:
    done = DONE[example.name]
    consent = () if form == "yaml" and done.consented else done.consent
    plan = planned(example, form, folder, consent)
    qwen, own = model(), logits(model())
    gc.collect()  # models of earlier tests that nobody reverted let their registrations go
    before = snapshot(qwen)
    names = bool(done.reason) and "sdpa" not in str(done.reason) and "off" not in str(done.reason)
    if names:
        with pytest.warns(KerncfgWarning, match=done.reason):
            bindings = kerncfg.apply(plan, qwen)
    else:
        bindings = kerncfg.apply(plan, qwen)
    assert bindings.report.counts["swapped"] == done.swapped
    for mode in (False, True):  # a page says: kernels adapt to train and eval
        found, kinds = seen(qwen.train(mode))
        assert tuple(kinds) == done.ran
        torch.testing.assert_close(found, own, **ROOM)
    if done.reason:
        assert any(done.reason in row.reason for row in bindings.report.rows) or names
    qwen.eval()
    bindings.revert()
    after = snapshot(qwen)
    assert {key: after[key] for key in ("modules", "tensors", "classes", "configs", "registries")} == {
        key: before[key] for key in ("modules", "tensors", "classes", "configs", "registries")
    }
    assert torch.equal(logits(qwen), own)


@pytest.mark.parametrize("name", [name for name, done in DONE.items() if done.cpu])
def test_what_a_page_says_for_another_device_runs_here_in_a_row_for_the_cpu(
    name: str, seeds: TestHub, folder: Path
) -> None:
    document = {"kernels": {}, **DONE[name].cpu}
    bindings = kerncfg.apply(kerncfg.plan("target=cpu", config=document), qwen := model())
    found, kinds = seen(qwen)
    (reference,) = {row.kernel for row in bindings.report.rows if row.status == "swapped"}
    assert len(kinds) == 1 and str(reference).startswith(kinds[0].partition("@")[0])
    torch.testing.assert_close(found, logits(model()), **ROOM)


@each_form
@pytest.mark.parametrize("name", [name for name, done in DONE.items() if done.elsewhere])
def test_another_machine_gets_what_the_page_names_for_it(name: str, form: str, seeds: TestHub, folder: Path) -> None:
    (example,) = (one for one in EXAMPLES if one.name == name)
    for target, wanted in DONE[name].elsewhere.items():
        plan = planned(example, form, folder, (), target)
        for step, reference in wanted.items():
            choice = plan.step(step).modes[kerncfg.Mode.INFERENCE].choices[0]
            assert str(choice.kernel.reference) == reference
            assert choice.kernel.commit and choice.kernel.variant


WITHOUT = [
    (name, form)
    for name, done in DONE.items()
    for form in ("python", "yaml")
    if done.consent and not (form == "yaml" and done.consented)  # there the file is the consent
]


@pytest.mark.parametrize(("name", "form"), WITHOUT)
def test_code_that_nobody_consented_to_is_never_asked_for(name: str, form: str, seeds: TestHub, folder: Path) -> None:
    (example,) = (one for one in EXAMPLES if one.name == name)
    repository = DONE[name].ran[0].partition("@")[0]
    plan = planned(example, form, folder, ())
    rejected = [found for step in plan.steps for found in step.modes[kerncfg.Mode.INFERENCE].rejected]
    told = [found.reason for found in rejected if repository in str(found.reference)]
    assert told and all("trust" in reason for reason in told)
    assert not [each for each in seeds.log.everything if repository in each.path]


def test_the_default_mapping_runs_what_it_has_for_this_device(seeds: TestHub) -> None:
    """`use_kernels=True` alone: of the names that transformers registers for the CPU, one; for inference only."""
    import transformers

    sizes: Any = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 97, "num_local_experts": 2}
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**sizes, num_experts_per_tok=1, pad_token_id=0)
    gpt: Any = transformers.GptOssForCausalLM(config)
    gpt.eval()
    own = logits(gpt)
    bindings = kerncfg.apply(kerncfg.plan("target=cpu", config=kerncfg.from_kernel_config()), gpt)
    found, kinds = seen(gpt)
    assert kinds == ["kernels-community/megablocks"] and bindings.report.counts["swapped"] == 1
    torch.testing.assert_close(found, own, **ROOM)
    assert seen(gpt.train())[1] == []


@pytest.mark.parametrize("said", ["0", "OFF", "NO"])
def test_the_switch_of_the_environment_turns_every_hub_kernel_off_and_asks_nothing(
    said: str, seeds: TestHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream an error with a KernelConfig, and without effect on attention."""
    monkeypatch.setenv("USE_HUB_KERNELS", said)
    for name in ("a layer beside attention", "a kernel for each device", "a function and nothing else"):
        (example,) = (one for one in EXAMPLES if one.name == name)
        plan = planned(example, "python", folder, ())
        qwen = model()
        with pytest.warns(KerncfgWarning, match="USE_HUB_KERNELS" if "device" not in name else "no row for cpu"):
            kerncfg.apply(plan, qwen)
        found, kinds = seen(qwen)
        assert kinds == [] and torch.equal(found, logits(model()))
    assert not seeds.log.everything
    (local,) = (one for one in EXAMPLES if one.name == "a local kernel")
    kerncfg.apply(planned(local, "python", folder, ()), qwen := model())
    assert seen(qwen)[1] == ["local"]


def test_the_mode_of_kernelize_is_fixed(seeds: TestHub, folder: Path) -> None:
    (example,) = (one for one in EXAMPLES if one.name == "metadata")
    plan = planned(example, "python", folder, ())
    for mode in ("inference", "training", "training_compile"):
        qwen = model()
        bindings = kerncfg.apply(plan, qwen, mode=mode)
        assert {row.mode for row in bindings.report.rows} == {mode}
        assert seen(qwen.eval())[1] == [f"{LIGER}@v3"]
        assert seen(qwen.train())[1] == [f"{LIGER}@v3"]


def test_generation_and_training_go_on_with_an_examples_kernels(seeds: TestHub, folder: Path) -> None:
    (example,) = (one for one in EXAMPLES if one.name == "a layer beside attention")
    qwen = model()
    own = qwen.generate(TOKENS[:1], max_new_tokens=5, do_sample=False)
    kerncfg.apply(planned(example, "yaml", folder, ()), qwen)
    found, kinds = during(lambda: qwen.generate(TOKENS[:1], max_new_tokens=5, do_sample=False))
    assert torch.equal(found, own) and set(kinds) == {f"{FLASH}@v4", f"{LIGER}@v3"}
    qwen.train()
    qwen(TOKENS, labels=TOKENS).loss.backward()
    assert all(parameter.grad is not None for parameter in qwen.parameters())
