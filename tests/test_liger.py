from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

import kerncfg
from kerncfg.compiler.schema import validate
from kerncfg.dialects.liger import _USUAL, LIGER_DEFAULTS, from_liger
from kerncfg.errors import ConfigError

HUB = "kernels-community/liger-kernels@v3"
NORM = {"cuda": f"{HUB}:LigerRMSNorm", "rocm": f"{HUB}:LigerRMSNorm"}


def rows(flags: dict[str, bool] | None = None, model: str | None = None) -> dict[str, Any]:
    found = from_liger(flags, model_type=model)
    validate(found.document["kernels"], "kernels")
    return {name: row for name, row in found.document["kernels"].items() if name != "inherit_mapping"}


def remarks(flags: dict[str, bool] | None = None, model: str | None = None) -> list[str]:
    return [remark.message.partition(" has no equivalent")[0] for remark in from_liger(flags, model_type=model).remarks]


def kernels(row: Any) -> list[str]:
    return [candidate["kernel"].partition(":")[2] for candidate in row["cuda"]]


def test_nothing_is_inherited_since_liger_swaps_only_what_it_names() -> None:
    assert from_liger().document["kernels"]["inherit_mapping"] is False


def test_norms_and_gated_mlps_have_rows() -> None:
    found = rows(model="llama")
    assert found["RMSNorm"] == NORM
    assert kernels(found["GatedMLP"]) == ["LigerSwiGLUMLP"]
    assert found["GatedMLP"]["match"] == {"class": "*MLP"}


def test_a_flag_said_false_has_no_row() -> None:
    assert rows({"rms_norm": False}, "llama").keys() == {"GatedMLP"}
    assert rows({"swiglu": False}, "llama").keys() == {"RMSNorm"}
    assert rows({"rms_norm": False, "swiglu": False}, "llama") == {}


def test_geglu_takes_both_spellings_of_the_activation() -> None:
    found = rows(model="gemma3_text")
    assert kernels(found["GatedMLP"]) == ["LigerGEGLUMLP", "LigerGEGLUMLP"]
    assert "RMSNorm" not in found


def test_a_model_that_is_not_known_gets_what_its_activation_says() -> None:
    assert kernels(rows()["GatedMLP"]) == ["LigerSwiGLUMLP", "LigerGEGLUMLP", "LigerGEGLUMLP"]


@pytest.mark.parametrize(
    ("flags", "model", "expected"),
    [
        (None, "llama", ["rope", "fused_linear_cross_entropy"]),
        ({"rope": False, "fused_linear_cross_entropy": False}, "llama", []),
        ({"rope": False, "fused_linear_cross_entropy": False, "cross_entropy": True}, "llama", ["cross_entropy"]),
        ({"geglu": True}, "llama", ["rope", "fused_linear_cross_entropy", "geglu"]),
        (None, "gemma", ["rope", "fused_linear_cross_entropy", "rms_norm"]),
        (None, "phi3", ["rope", "fused_linear_cross_entropy", "swiglu"]),
        (None, "glm4v_moe", ["fused_linear_cross_entropy", "swiglu"]),
        (None, "qwen3_moe", ["rope", "fused_linear_cross_entropy", "swiglu of the experts"]),
        (None, "nemotron", ["fused_linear_cross_entropy", "relu_squared"]),
        (None, "mllama", ["rope", "fused_linear_cross_entropy", "layer_norm"]),
    ],
)
def test_what_has_no_equivalent_is_told(flags: Any, model: str, expected: list[str]) -> None:
    assert remarks(flags, model) == expected


@pytest.mark.parametrize("flags", [{"rmsnorm": True}, {"rope": "yes"}])
def test_a_flag_that_is_none_is_refused(flags: Any) -> None:
    with pytest.raises(ConfigError, match="is no flag of Liger's"):
        from_liger(flags)


def test_the_flags_are_those_of_the_installed_liger() -> None:
    """Its functions are read, not run: importing them needs a GPU's driver."""
    found = importlib.util.find_spec("liger_kernel")
    if found is None or not found.submodule_search_locations:
        pytest.skip("liger-kernel is not installed")
    source = Path(found.submodule_search_locations[0]) / "transformers" / "monkey_patch.py"
    start = "apply_liger_kernel_to_"
    functions = [node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    theirs = {
        node.name.removeprefix(start): {
            argument.arg: ast.literal_eval(default)
            for argument, default in zip(node.args.args, node.args.defaults, strict=True)
            if argument.arg != "model"
        }
        for node in functions
        if node.name.startswith(start)
    }
    assert theirs == {model: LIGER_DEFAULTS.get(model, _USUAL) for model in theirs}
    assert LIGER_DEFAULTS.keys() <= theirs.keys()


def test_the_rows_are_planned(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "\n".join(from_liger(model_type="llama").lines())
    (tmp_path / "experiment" / "imported.yaml").write_text(text, encoding="utf-8")
    assert yaml.safe_load(text) == from_liger(model_type="llama").document
    made = kerncfg.plan("experiment=imported", "target=h100", config_dir=tmp_path)
    assert [step.name for step in made.steps] == ["GatedMLP", "RMSNorm"]
