"""What `${…}` stands for, and where the environment may not show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.compiler.compose import compose
from kerncfg.compiler.interpolate import resolved, with_environment
from kerncfg.compiler.reading import Place, parse
from kerncfg.errors import ConfigError

if TYPE_CHECKING:
    from kerncfg.compiler.tree import Fault, Node


def node(name: str, *overrides: str) -> Any:
    return compose(overrides)[0][name]


def refused(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return [f"{issue.path} {issue.message}" for issue in caught.value.issues]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNCFG_TEST_SECRET", "hunter2")


def test_a_value_may_stand_for_another() -> None:
    assert node("kernels", "kernels.X=${kernels.Y.cuda}", "kernels.Y.cuda=a/b:C")["X"] == "a/b:C"


def test_a_value_may_stand_for_a_whole_map() -> None:
    assert node("kernels", "kernels.X=${kernels.Y}", "kernels.Y={cuda: [a/b:C]}")["X"] == {"cuda": ["a/b:C"]}


def test_a_value_keeps_its_type() -> None:
    assert node("model", "model.batch=${model.config.num_hidden_layers}")["batch"] == 4


def test_a_value_inside_a_list_is_found() -> None:
    found = node("kernels", "kernels.X.cuda=[a/b:C,'${kernels.Y}']", "kernels.Y=d/e:F")
    assert found["X"]["cuda"] == ["a/b:C", "d/e:F"]


def test_an_escaped_one_is_its_own_characters() -> None:
    assert node("model", r"model.config.x='\${a}'")["config"]["x"] == "${a}"


def test_the_origin_keeps_the_characters_that_were_written() -> None:
    origin = compose(["kernels.X=${kernels.Y}", "kernels.Y=a/b:C"])[1].at(("kernels", "X"))
    assert origin is not None and origin.text == "${kernels.Y}"


def test_every_one_that_leads_nowhere_is_told() -> None:
    found = refused("kernels.X=${kernels.Z}", "kernels.Y=${nowhere.at.all}")
    assert [fault.partition(":")[0] for fault in found] == [
        "kernels.X ${kernels.Z} leads nowhere",
        "kernels.Y ${nowhere.at.all} leads nowhere",
    ]


def test_one_that_cannot_be_read_is_told() -> None:
    assert refused("kernels.X='${a'") == ["kernels.X ${a is no interpolation that can be read"]


def test_two_that_stand_for_each_other_are_refused() -> None:
    assert len(refused("kernels.X=${kernels.Y}", "kernels.Y=${kernels.X}")) == 2


def test_the_environment_may_say_where_the_models_weights_are_and_stays_in_words_until_then() -> None:
    text = "${oc.env:KERNCFG_TEST_SECRET}/weights"
    document, _ = compose([f"model={{pretrained: '{text}', config: {{a: [1, '${{model.pretrained}}']}}}}"])
    assert document["model"] == {"pretrained": text, "config": {"a": [1, "${model.pretrained}"]}}
    found, words = with_environment(document, "model")
    assert found == {"pretrained": "hunter2/weights", "config": {"a": [1, "hunter2/weights"]}}
    assert words == {"hunter2/weights": "${model.pretrained}"}
    (_, alone) = with_environment({"model": {"pretrained": text}}, "model")
    assert alone == {"hunter2/weights": text, "hunter2": "${oc.env:KERNCFG_TEST_SECRET}"}
    assert document["model"]["pretrained"] == text


def test_without_interpolations_there_is_nothing_to_bring() -> None:
    document, _ = compose()
    assert with_environment(document, "model") == (document["model"], {})


@pytest.mark.parametrize("path", ["kernels.X", "trust.publishers.a", "policy.fallback", "target.torch"])
def test_the_environment_may_not_stand_where_it_would_be_shown(path: str) -> None:
    (fault,) = refused(f"{path}=${{oc.env:KERNCFG_TEST_SECRET}}")
    assert "brings a value of the environment" in fault
    assert "hunter2" not in fault


@pytest.mark.parametrize(
    "reference",
    ["${model.pretrained}", "${model}", "${kernels.${model.dtype}}", "${..model.pretrained}", "x${kernels.Y}"],
)
def test_the_environment_may_not_come_by_way_of_another_value(reference: str) -> None:
    found = refused(
        f"kernels.X='{reference}'", "kernels.Y=${model.pretrained}", "model.pretrained=${oc.env:KERNCFG_TEST_SECRET}"
    )
    assert [fault.split()[0] for fault in found] == ["kernels.X", "kernels.Y"]
    assert "hunter2" not in str(found)


def test_what_does_not_reach_the_environment_is_let_be() -> None:
    overrides = ("model.pretrained=${oc.env:KERNCFG_TEST_SECRET}", "kernels.X=${kernels.Y}", "kernels.Y=a/b:C")
    assert node("kernels", *overrides)["X"] == "a/b:C"


def test_a_variable_that_is_not_set_is_told_by_its_text() -> None:
    assert refused("model.pretrained=${oc.env:KERNCFG_TEST_UNSET}") == [
        "model.pretrained ${oc.env:KERNCFG_TEST_UNSET} cannot be resolved"
    ]


def rows(count: int, each: int, text: str = "${{kernels.R{}}}") -> str:
    """Rows of which each refers to the next one several times."""
    lines = [f"  R{row}: {[text.format(row + 1)] * each}" for row in range(count)]
    return "kernels:\n" + "\n".join([*lines, f"  R{count}: a/b:C", ""])


def chain(count: int, end: str = "a/b:C", text: str = "${{kernels.K{}}}") -> str:
    lines = [f"  K{row}: {text.format(row + 1)}" for row in range(count)]
    return "kernels:\n" + "\n".join([*lines, f"  K{count}: {end}", ""])


def tree(text: str) -> Node:
    return parse(text, Place("file", "f.yaml"))


EXPANDS = "interpolations expand to "
NAMES = "n:\n" + "".join(f"  R{row}: R{row}\n" for row in range(1, 15))
BOMBS = {
    "fan-out": (rows(14, 4), "2:8: kernels.R0.0", EXPANDS),
    "relative": (rows(14, 4, "${{..R{}}}"), "2:8: kernels.R0.0", EXPANDS),
    "in brackets": (rows(14, 4, "${{kernels[R{}]}}"), "2:8: kernels.R0.0", EXPANDS),
    "nested": (rows(14, 4, "${{kernels.${{n.R{}}}}}") + NAMES, "2:8: kernels.R0.0", EXPANDS),
    "resolver": (rows(14, 4, "${{oc.select:kernels.R{}}}"), "2:8: kernels.R0.0", EXPANDS),
    "text": (chain(14, text="'${{kernels.K{0}}}${{kernels.K{0}}}${{kernels.K{0}}}'"), "2:7: kernels.K0", EXPANDS),
    "by way of a map": (rows(14, 4, "${{m.R{}}}") + "m: ${kernels}\n", "17:4: m", EXPANDS),
    "chain": (chain(3000), "2:7: kernels.K0", "${kernels.K1} leads through 3000 others, needed 50 at most"),
    "chain of one more": (chain(51), "2:7: kernels.K0", "${kernels.K1} leads through 51 others, needed 50 at most"),
    "chain to the environment": (chain(3000, "${oc.env:HOME}"), "2:7: kernels.K0", "${kernels.K1} leads through 3000"),
    "parts of one another": (
        chain(3000, "{x: 1}", "${{kernels.K{}.x}}"),
        "2:7: kernels.K0",
        "leads through 3000 others",
    ),
    "circle": (chain(3000, "${kernels.K0}"), "kernels.K", "} refers to itself"),
    "circle by way of lists": (rows(14, 4).replace("a/b:C", "['${kernels.R0}']"), "kernels.R", "} refers to itself"),
    "circle by way of one list": ("a: ${b}\nb: ['${a}']\nc: ${a}\n", "f.yaml:", "} refers to itself"),
    "of its own map": ("a: {b: '${a}'}\n", "1:8: a.b", "${a} refers to itself"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_leads_on_without_end_is_told_once_and_soon(name: str) -> None:
    text, where, message = BOMBS[name]
    root = tree(text)
    start = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        resolved(root)
    assert time.perf_counter() - start < 20  # minutes without bounds
    (issue,) = [issue for issue in caught.value.issues if "environment" not in issue.message]
    assert message in issue.message and where in issue.where and issue.file == "f.yaml" and issue.hint
    assert "Recursion" not in str(caught.value)


def test_the_keys_of_the_map_around_a_text_are_no_circle() -> None:
    assert resolved(tree("a: {b: '${oc.dict.keys:a}'}\n"))["a"]["b"] == ["b"]


def test_a_part_of_a_value_that_holds_the_text_is_no_circle() -> None:
    found = resolved(tree("a: ${b}\nb: {c: '${a.d}', d: 1, e: '${.c}', f: '${..b.d}'}\n"))
    assert found["a"] == {"c": 1, "d": 1, "e": 1, "f": 1}


def test_two_chains_are_told_one_by_one() -> None:
    other = chain(60).replace("K", "L").removeprefix("kernels:\n")
    with pytest.raises(ConfigError) as caught:
        resolved(tree(chain(70) + other))
    assert [issue.path for issue in caught.value.issues] == ["kernels.K0", "kernels.L0"]


def test_a_chain_of_fifty_and_a_fan_out_of_a_thousand_are_resolved() -> None:
    assert resolved(tree(chain(50)))["kernels"]["K0"] == "a/b:C"
    found = resolved(tree(rows(5, 4)))["kernels"]["R0"]
    for _ in range(5):
        assert len(found) == 4
        found = found[3]
    assert found == "a/b:C"


def test_what_is_told_does_not_keep_the_rest_from_being_resolved() -> None:
    faults: list[Fault] = []
    document = resolved(tree(chain(60) + "  X: ${kernels.Y}\n  Y: d/e:F\n"), faults)
    assert document["kernels"]["X"] == "d/e:F" and document["kernels"]["K59"] == "a/b:C"
    assert {path for path, _ in faults} == {("kernels", f"K{row}") for row in range(10)}
    assert len({issue for _, issue in faults}) == 1


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("a: [1, 2]\nb: ${a.1}\n", ("b",), 2),
        ("a: [1, 2]\nb: ${a[0]}\n", ("b",), 1),
        ("a: [1, 2]\nb: ${a.-1}\n", ("b",), None),
        ("a: [1, 2]\nb: ${a.5}\n", ("b",), None),
        ("a: [1, 2]\nb: ${a.x}\n", ("b",), None),
        ("a: 1\nb: ${a.x}\n", ("b",), None),
        ("a: {b: '${.......c}'}\n", ("a", "b"), None),
        ("a: x${b}\nb: 1\nc: ${a.d}\n", ("c",), None),
    ],
)
def test_names_of_places_in_lists_and_texts_are_followed(text: str, place: tuple[str, ...], value: Any) -> None:
    root = tree(text)
    try:
        found: Any = resolved(root)
    except ConfigError as error:
        assert value is None and "leads through" not in str(error)
        return
    for part in place:
        found = found[part]
    assert value is None or found == value
