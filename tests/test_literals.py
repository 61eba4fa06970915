from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from kerncfg.dialects.literals import NotLiteral, Source


def value(text: str) -> Any:
    """What is assigned to `x`, or passed to `f`."""
    source = Source(ast.parse(text))
    calls = [call for call in source.calls() if ast.unparse(call.func) == "f"]
    return source.value(calls[-1].args[0] if calls else source.assigned(ast.Name("x", ast.Load())))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 'a'", "a"),
        ("x = 'a/b:' + 'C'", "a/b:C"),
        ("x = [1, (True, None)]", [1, (True, None)]),
        ("x = {'a': 1, ('b', 'c'): 2}", {"a": 1, ("b", "c"): 2}),
        ("x = {(['A', 'p'], ['B', 'q']): 1}", {(("A", "p"), ("B", "q")): 1}),
        ("y = {'a': 1}\nx = {**y, 'b': 2}", {"a": 1, "b": 2}),
        ("x = {**{'a': 1}, 'a': 2}", {"a": 2}),
        ("x: dict = dict(a=1)", {"a": 1}),
        ("x = Path('/a')", "/a"),
        ("x = str('/a')", "/a"),
        ("x = Mode.TRAINING | Mode.TORCH_COMPILE", "TRAINING|TORCH_COMPILE"),
        ("x = kernels.Mode.INFERENCE", "INFERENCE"),
        ("x = LayerRepository('a/b', layer_name='C', version=1)", ("a/b:C", {"version": 1})),
        ("x = kernels.FuncRepository(repo_id='a/b', func_name='f', revision='v')", ("a/b:f", {"revision": "v"})),
        ("x = LocalLayerRepository(repo_path=Path('/a'), layer_name='C')", "/a:C"),
        ("x = Device('cuda')", "cuda"),
        ("x = Device(type='cuda')", "cuda"),
        ("x = CUDAProperties(75, 89)", SimpleNamespace(min_capability=75, max_capability=89)),
        (
            "x = ROCMProperties(min_capability=75, max_capability=89)",
            SimpleNamespace(min_capability=75, max_capability=89),
        ),
        ("a = 1\ndef g():\n    a = 2\n    f(a)", 2),
        ("a = 1\ndef g():\n    f(a)", 1),
        ("a = 1\ndef g(b):\n    def h():\n        f(a)", 1),
        ("if (a := 'b'):\n    f(a)", "b"),
        ("def g(a):\n    return a\na = 1\nf(a)", 1),
    ],
)
def test_what_is_written_out_is_read(text: str, expected: Any) -> None:
    assert value(text) == expected


def test_two_devices_of_one_kind_are_two_keys() -> None:
    text = (
        "x = {Device('cuda', CUDAProperties(75, 89)): 1, Device('cuda', properties=CUDAProperties(90, sys.maxsize)): 2}"
    )
    low, high = value(text)
    assert (low.properties.max_capability, high.properties.min_capability) == (89, 90)
    assert high.properties.max_capability > 1000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = os.environ['A']", r"it is computed by .os\.environ\['A'\]"),
        ("x = f'{a}:B'", "it is computed by"),
        ("x = g()", r"it is computed by g\(…\)"),
        ("x = 2 * 3", r"it is computed by '2 \* 3'"),
        ("x = dict([1])", "it is computed by dict"),
        ("x = sys.argv", "it is computed by 'sys.argv'"),
        ("x = y", "y is assigned nowhere in this file"),
        ("x = 1\nx = 2", r"x is assigned 2 times \(lines 1, 2\)"),
        ("for y in z:\n    x = y", "y is given from elsewhere at line 1"),
        ("from a import y\nx = y", "y is given from elsewhere at line 1"),
        ("import a.b as y\nx = y", "y is given from elsewhere at line 1"),
        ("def g(a=1):\n    f(a)", "a is given from elsewhere at line 1"),
        ("x = {}\nx['a'] = 1", "x is changed at line 2"),
        ("x = {}\ndel x['a']", "x is changed at line 2"),
        ("x = {}\nx.update(a=1)", "x is changed at line 2"),
        ("x = y\ny = x", "x is assigned to itself|y is assigned to itself"),
        ("x = x", "x is assigned to itself"),
        ("x = {**g()}", r"it unpacks 'g\(\)'"),
        ("x = 1\nx += 1", "x is assigned 2 times"),
    ],
)
def test_what_is_computed_is_not(text: str, why: str) -> None:
    with pytest.raises(NotLiteral, match=why):
        value(text)
