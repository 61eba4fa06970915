"""All that transformers registers, against a count of its sources that knows nothing of kerncfg."""

from __future__ import annotations

import ast
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

from kerncfg.applier.adapters.transformers import TransformersAdapter

REGISTERS = ("use_kernel_forward_from_hub", "use_kernel_func_from_hub", "use_kernel_func_from_hub_with_fallback")
Written = dict[tuple[str, str, str], tuple[str, bool]]


def sources() -> list[Path]:
    import transformers

    return sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"))


def decorations(node: Any, names: tuple[str, ...]) -> list[ast.expr]:
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    return [one.args[0] for one in calls if ast.unparse(one.func) in names]


def count(tree: ast.Module, where: str) -> tuple[dict[tuple[str, str], str], Written, list[str]]:
    """Names of classes; of each declared pair the name and whether forward calls it; who calls without declaring."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    names: dict[str, Any] = {
        name: found[0].value  # type: ignore[attr-defined]
        for name, node in functions.items()
        if (found := decorations(node, REGISTERS))
    }
    layers: dict[tuple[str, str], str] = {}
    pairs: Written = {}
    undeclared: list[str] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for argument in decorations(node, REGISTERS):
            layers[where, node.name] = argument.value  # type: ignore[attr-defined]
        said: list[Any] = [
            element
            for argument in decorations(node, ("use_kernelized_func",))
            for element in (argument.elts if isinstance(argument, ast.List) else [argument])
        ]
        declared = {element.id for element in said}
        forward = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
        calls = {one.func.id for one in called_in(forward)} if forward else set()
        pairs.update({(where, node.name, name): (names[name], name in calls) for name in declared})
        undeclared += [node.name for _ in [0] if forward and any(name in calls - declared for name in names)]
    return layers, pairs, undeclared


def called_in(forward: ast.FunctionDef) -> Iterator[Any]:
    for node in ast.walk(forward):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node


@pytest.mark.slow
def test_every_registration_of_transformers_is_found_and_no_more() -> None:
    layers: dict[tuple[str, str], str] = {}
    pairs: Written = {}
    undeclared: list[str] = []
    found_layers: dict[tuple[str, str], str] = {}
    found_pairs: dict[tuple[str, str, str], str] = {}
    skipped: list[str] = []
    adapter = TransformersAdapter()
    for path in sources():
        text = path.read_text("utf-8")
        where = f"transformers.models.{path.parent.name}.{path.stem}"
        one = count(ast.parse(text), where)
        if not (one[0] or one[1] or one[2]):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(where)
        except Exception as error:  # wants a package that is not here
            skipped.append(f"{where}: {error}")
            continue
        layers |= one[0]
        pairs |= one[1]
        undeclared += one[2]
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == where:
                layer = adapter.layer(cls)
                if name := adapter.registered(cls):
                    found_layers[where, cls.__name__] = name
                for function in layer.functions if layer else ():
                    if function.name:
                        found_pairs[where, cls.__name__, function.called] = function.name
    assert skipped == []
    assert found_layers == layers
    assert found_pairs == {key: name for key, (name, calls) in pairs.items() if calls}
    calling = [calls for _, calls in pairs.values()]
    assert (len(pairs), calling.count(True), calling.count(False), len(undeclared)) == (204, 198, 6, 24)


def body(node: ast.FunctionDef) -> list[str]:
    return [
        ast.unparse(one) for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]


def test_the_bundled_rotary_row_names_only_models_that_turn_as_the_kernel_does() -> None:
    import transformers

    root = Path(transformers.__file__).parent / "models"
    row = yaml.safe_load((Path(__file__).parent.parent / "conf/kernels/bundled.yaml").read_text("utf-8"))
    names = row["rotary_pos_emb"]["cpu"]["when"]["config.model_type"]
    for name in names:
        folder = name.removesuffix("_text")
        tree = ast.parse((root / folder / f"modeling_{folder}.py").read_text("utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        turn, half = functions["apply_rotary_pos_emb"], functions["rotate_half"]
        assert ast.unparse(turn.args) == "q, k, cos, sin, unsqueeze_dim=1", name
        assert body(turn) == [
            "cos = cos.unsqueeze(unsqueeze_dim)",
            "sin = sin.unsqueeze(unsqueeze_dim)",
            "q_embed = q * cos + rotate_half(q) * sin",
            "k_embed = k * cos + rotate_half(k) * sin",
            "return (q_embed, k_embed)",
        ], name
        assert body(half)[-1] == "return torch.cat((-x2, x1), dim=-1)", name
        assert len(decorations(turn, REGISTERS)) == 1, name
