from __future__ import annotations

from typing import Any

import pytest

import kerncfg
from kerncfg.compiler.resolve import resolve
from kerncfg.dialects.kernel_mapping import to_kernel_config
from kerncfg.documents.lock import Lock, Pin
from kerncfg.errors import ConfigError
from tests import builders

COMMIT = "0123456789" * 4


def mapping(kernels: dict[str, Any]) -> Any:
    return to_kernel_config({"kernels": kernels})["kernel_mapping"]


def refused(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        to_kernel_config(document)
    ending = ": a KernelConfig cannot say it"
    assert all(issue.message.endswith(ending) and issue.hint for issue in caught.value.issues)
    return {issue.path: issue.message.removesuffix(ending) for issue in caught.value.issues}


@pytest.mark.parametrize(
    ("said", "there"),
    [
        ("a/b:C", "a/b:C"),
        ("a/b@v3:C", ("a/b:C", {"version": 3})),
        ({"kernel": "a/b:C", "version": 3}, ("a/b:C", {"version": 3})),
        ("a/b@v3.1:C", ("a/b:C", {"revision": "v3.1"})),
        ({"cuda": "a/b@main:C"}, {"cuda": ("a/b:C", {"revision": "main"})}),
        (
            {"kernel": "a/b@v1:C", "trust_remote_code": True},
            ("a/b:C", {"version": 1, "trust_remote_code": True}),
        ),
        ({"metal": "a/b:C"}, {"mps": "a/b:C"}),
    ],
)
def test_a_row_is_said_as_there(said: Any, there: Any) -> None:
    assert mapping({"X": said}) == {"X": there}


def test_folders_are_said_by_the_flag() -> None:
    assert to_kernel_config({"kernels": {"X": "/k:C", "inherit_mapping": False}}) == {
        "kernel_mapping": {"X": "/k:C"},
        "use_local_kernel": True,
        "inherit_mapping": False,
    }


def test_off_is_left_out_where_nothing_is_inherited() -> None:
    assert mapping({"X": None, "Y": "a/b:C", "inherit_mapping": False}) == {"Y": "a/b:C"}


def test_fusions_stand_under_their_pairs() -> None:
    fusion = {"members": [["A", "m.*.a"], ["B", "m.*.b"]], "kernel": "o/f@v2:F"}
    found = to_kernel_config({"kernels": {}, "fusions": {"ab": fusion}})
    assert found["kernel_mapping"] == {(("A", "m.*.a"), ("B", "m.*.b")): ("o/f:F", {"version": 2})}


def test_everything_that_cannot_be_said_is_told_at_once() -> None:
    document = {
        "enabled": False,
        "attention": {"default": "sdpa", "vision": {"path": "v.**", "kernel": "eager"}},
        "kernels": {
            "A": {"cpu": "a/b:C"},
            "B": {"cuda": "builtin:RMSNorm", "rocm": "python:m:C"},
            "C": {"cuda": ["a/b:C", "inherited"]},
            "D": {"cuda": ["a/b:C", "d/e:F"]},
            "E": {"cuda": {"inference": "a/b:C"}},
            "F": {"kernel": "a/b@>=1.0:C", "dtype": "float16"},
            "G": None,
            "H": {"kernel": "a/b:C", "match": {"class": "*H"}, "exclude": ["x"], "fallback": "error"},
            "I": {"kernel": "a/b:C", "cuda": "d/e:F"},
            "J": {"kernel": "a/b:C", "trust_remote_code": True},
        },
    }
    assert refused(document) == {
        "enabled": "everything off",
        "attention.default": "an attention row",
        "attention.vision": "an attention row",
        "kernels.A.cpu": "the device cpu",
        "kernels.B.cuda": "'builtin:RMSNorm'",
        "kernels.B.rocm": "'python:m:C'",
        "kernels.C.cuda.1": "what would be inherited",
        "kernels.D.cuda": "several candidates",
        "kernels.E.cuda": "kernels for single modes",
        "kernels.F.any.dtype": "the condition dtype",
        "kernels.F.any": "the range '>=1.0'",
        "kernels.G": "off, which leaves what is inherited",
        "kernels.H.match": "match",
        "kernels.H.exclude": "exclude",
        "kernels.H.fallback": "fallback",
        "kernels.I": "a kernel for every device beside one of a single device",
        "kernels.J.any": "trust_remote_code without a version",
    }


def test_folders_beside_repositories_cannot_be_said() -> None:
    assert refused({"kernels": {"A": "a/b:C", "B": "/k:C"}}) == {"kernels": "folders and repositories in one mapping"}


def test_a_plan_says_every_name_at_its_commit() -> None:
    found = builders.config({"N": "kernels-community/a@v1:A", "O": None})
    pins = {ref: Pin.of(ref, *pin.builds, commit=COMMIT) for ref, pin in builders.locked(found).pins.items()}
    made = resolve(found, Lock(pins=pins), builders.request(trust=found.trust))
    assert to_kernel_config(made) == {
        "kernel_mapping": {"N": {"cuda": ("kernels-community/a:A", {"revision": COMMIT})}},
        "use_local_kernel": False,
        "inherit_mapping": False,
    }


def test_a_plan_of_single_modes_cannot_be_said() -> None:
    made = builders.plan({"N": {"cuda": {"inference": "kernels-community/a@v1:A", "training": "original"}}})
    with pytest.raises(ConfigError, match="N: kernels for single modes: a KernelConfig cannot say it"):
        to_kernel_config(made)


def test_a_plan_with_conditions_of_modules_cannot_be_said() -> None:
    made = builders.plan({"N": {"kernel": "kernels-community/a@v1:A", "dtype": "float16"}})
    with pytest.raises(ConfigError, match="N: conditions that a module answers"):
        to_kernel_config(made)


def test_a_plan_of_matches_cannot_be_said() -> None:
    made = builders.plan({"N": {"kernel": "kernels-community/a@v1:A", "match": {"class": "*N"}}})
    with pytest.raises(ConfigError, match="N: match and exclude"):
        to_kernel_config(made)


def test_a_plan_for_the_cpu_cannot_be_said() -> None:
    made = kerncfg.plan("target=cpu", "inherited=none", "kernels.N=builtin:RMSNorm")
    with pytest.raises(ConfigError, match="N: the device cpu: a KernelConfig cannot say it"):
        to_kernel_config(made)


def test_rows_that_are_not_valid_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.N\.cudaa: unknown key"):
        to_kernel_config({"kernels": {"N": {"cudaa": "a/b:C"}}})
