from __future__ import annotations

import enum
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kerncfg
from kerncfg.dialects.kernel_config import from_kernel_config
from kerncfg.errors import ConfigError


class Mode(enum.Flag):
    """The modes of the `kernels` library, by their names."""

    FALLBACK = enum.auto()
    TRAINING = enum.auto()
    INFERENCE = enum.auto()
    TORCH_COMPILE = enum.auto()


def repository(repo: str, name: str, **said: Any) -> SimpleNamespace:
    """What `kernels.LayerRepository` keeps of its arguments."""
    known = {"_version": None, "_revision": None, "_trust_remote_code": False}
    return SimpleNamespace(_repo_id=repo, layer_name=name, **{**known, **{f"_{key}": said[key] for key in said}})


def device(kind: str, low: int, high: int) -> Any:
    class Device(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    return Device(type=kind, properties=SimpleNamespace(min_capability=low, max_capability=high))


def row(said: Any, **more: Any) -> Any:
    return from_kernel_config({"X": said}, **more)["kernels"]["X"]


def test_what_is_not_there_is_no_metadata() -> None:
    assert row(("a/b:C", {"version": 3, "revision": None, "trust_remote_code": False})) == {
        "kernel": "a/b:C",
        "version": 3,
    }


def test_a_pair_that_went_through_json_is_a_pair() -> None:
    assert row(["a/b:C", {"version": 3}]) == {"kernel": "a/b:C", "version": 3}


def test_a_list_is_candidates_in_order() -> None:
    assert row({"cuda": ["a/b:C", ("d/e:F", {"version": 1}), None]}) == {
        "cuda": ["a/b:C", {"kernel": "d/e:F", "version": 1}, None]
    }


@pytest.mark.parametrize("off", [None, ""])
def test_nothing_is_off(off: str | None) -> None:
    assert row(off) is None
    assert row({"cuda": off}) == {"cuda": None}


def test_a_row_of_ours_passes() -> None:
    assert row({"kernel": "a/b:C", "version": 1, "capability": ">=9.0"}) == {
        "kernel": "a/b:C",
        "version": 1,
        "capability": ">=9.0",
    }


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (Mode.INFERENCE, "inference"),
        (Mode.TRAINING, "training"),
        (Mode.INFERENCE | Mode.TORCH_COMPILE, "inference_compile"),
        (Mode.TRAINING | Mode.TORCH_COMPILE, "training_compile"),
        ("training_compile", "training_compile"),
        ("Mode.TRAINING | Mode.TORCH_COMPILE", "training_compile"),
    ],
)
def test_modes_have_their_names(mode: Any, name: str) -> None:
    assert row({"cuda": {mode: "a/b:C"}}) == {"cuda": {name: "a/b:C"}}


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.X\.cuda: 'eval' is no mode"):
        row({"cuda": {"eval": "a/b:C"}})


def test_the_fallback_mode_alone_is_every_mode() -> None:
    assert row({"cuda": {Mode.FALLBACK: "a/b:C"}}) == {"cuda": "a/b:C"}


def test_the_fallback_mode_runs_where_no_other_may_serve() -> None:
    assert row({"cuda": {Mode.TRAINING: "a/b:C", Mode.FALLBACK: "d/e:F"}}) == {
        "cuda": {
            "inference": "a/b:C",
            "training": "a/b:C",
            "inference_compile": "d/e:F",
            "training_compile": "d/e:F",
        }
    }


def test_objects_of_the_kernels_library_are_read() -> None:
    found = row(
        {
            "cuda": {
                Mode.INFERENCE: repository("a/b", "C", version=3),
                Mode.TRAINING: repository("a/b", "D", revision="main"),
            }
        }
    )
    assert found == {
        "cuda": {
            "inference": {"kernel": "a/b:C", "version": 3},
            "training": {"kernel": "a/b:D", "revision": "main"},
        }
    }


def test_a_revision_of_an_object_goes_before_its_version() -> None:
    assert row({"cuda": repository("a/b", "C", version=1, revision="main")}) == {
        "cuda": {"kernel": "a/b:C", "revision": "main"}
    }


def test_functions_and_folders_of_the_library_are_read() -> None:
    function = SimpleNamespace(_repo_id="a/b", func_name="f", _version=1, _revision=None, _trust_remote_code=True)
    folder = SimpleNamespace(_repo_path=Path("/x/y"), layer_name="C")
    relative = SimpleNamespace(_repo_path=Path("x/y"), layer_name="C")
    assert row({"cuda": function, "rocm": folder, "xpu": relative}) == {
        "cuda": {"kernel": "a/b:f", "version": 1, "trust_remote_code": True},
        "rocm": "/x/y:C",
        "xpu": "./x/y:C",
    }


def test_an_object_with_a_lock_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds its commit in a lock file"):
        row({"cuda": SimpleNamespace(_repo_id="a/b", layer_name="C", _lockfile=None)})


def test_ranges_of_capabilities_are_conditions() -> None:
    said = {
        device("cuda", 75, 89): "a/b:C",
        device("cuda", 90, sys.maxsize): ("d/e:F", {"version": 1}),
        "rocm": "g/h:I",
    }
    assert row(said) == {
        "cuda": [
            {"kernel": "a/b:C", "capability": ">=7.5,<=8.9"},
            {"kernel": "d/e:F", "version": 1, "capability": ">=9.0"},
        ],
        "rocm": "g/h:I",
    }


def test_ranges_of_capabilities_hold_in_each_mode() -> None:
    said = {device("cuda", 75, 89): {Mode.INFERENCE: "a/b:C"}, device("cuda", 90, sys.maxsize): "d/e:F"}
    later = {"kernel": "d/e:F", "capability": ">=9.0"}
    assert row(said)["cuda"] == {
        "inference": [{"kernel": "a/b:C", "capability": ">=7.5,<=8.9"}, later],
        "training": later,
        "inference_compile": later,
        "training_compile": later,
    }


def test_a_folder_without_a_sign_of_one_gets_it() -> None:
    assert row("kernels/mine:X", use_local_kernel=True) == "./kernels/mine:X"
    assert row("/kernels/mine:X", use_local_kernel=True) == "/kernels/mine:X"


def test_fusions_get_names_of_their_classes() -> None:
    pair, other = ("RMSNorm", "a.*.norm"), ("MLP", "a.*.mlp")
    document = from_kernel_config(
        {
            (pair, other): {"cuda": ("o/f:X", {"version": 2}), "rocm": "o/g:X"},
            (("RMSNorm", "b.norm"), ("MLP", "b.mlp")): "",
            "RMSNorm": "a/b:C",
        }
    )
    assert document == {
        "kernels": {"RMSNorm": "a/b:C"},
        "fusions": {
            "RMSNorm_MLP": {
                "members": [list(pair), list(other)],
                "cuda": {"kernel": "o/f:X", "version": 2},
                "rocm": "o/g:X",
            },
            "RMSNorm_MLP_2": {"members": [["RMSNorm", "b.norm"], ["MLP", "b.mlp"]], "kernel": None},
        },
    }


@pytest.mark.parametrize("key", [("RMSNorm", "a.norm"), (), 3, (("RMSNorm",),)])
def test_a_key_that_is_neither_name_nor_pairs_is_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match="is neither a name nor pairs of class name and path"):
        from_kernel_config({key: "a/b:C"})


def test_every_fault_is_told_at_once_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        from_kernel_config({"A": 3, "B": {"cuda": ("a:b", {"version": 1})}, "C": (None, {"version": 1})})
    assert [issue.path for issue in caught.value.issues] == ["kernels.A", "kernels.B.cuda", "kernels.C"]


def test_a_device_that_is_none_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.X\.cdua: unknown key `cdua`\n  hint: did you mean cuda"):
        row({"cdua": "a/b:C"})


def test_version_beside_revision_is_refused() -> None:
    with pytest.raises(ConfigError, match="found both version and revision"):
        row(("a/b:C", {"version": 1, "revision": "main"}))


def test_a_mapping_is_a_map() -> None:
    with pytest.raises(ConfigError, match="a kernel mapping is a map from names to kernels, found a list"):
        from_kernel_config(["a/b:C"])


@pytest.mark.parametrize("said", ["flex_attention", "paged|sdpa", {"text_config": "sdpa"}])
def test_attention_without_an_equivalent_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match=r"attention: attn_implementation .* has no equivalent"):
        from_kernel_config(attn_implementation=said)


def test_attention_for_the_whole_model_may_be_a_map() -> None:
    assert from_kernel_config(attn_implementation={"": "sdpa"}) == {"kernels": {}, "attention": {"default": "sdpa"}}


def test_a_document_is_planned_as_it_is() -> None:
    document = from_kernel_config({"RMSNorm": "/nowhere:X"}, inherit_mapping=False)
    (step,) = kerncfg.plan("target=h100", config=document).steps
    assert step.name == "RMSNorm"


@pytest.mark.peers
def test_the_library_s_own_objects_are_read_alike() -> None:
    kernels = pytest.importorskip("kernels")
    mode = kernels.Mode
    said = {
        kernels.Device("cuda", kernels.CUDAProperties(75, 89)): kernels.LayerRepository(
            "a/b", layer_name="C", version=1
        ),
        "rocm": {mode.TRAINING | mode.TORCH_COMPILE: kernels.LocalLayerRepository(Path("/x"), layer_name="D")},
    }
    assert row(said) == {
        "cuda": {"kernel": "a/b:C", "version": 1, "capability": ">=7.5,<=8.9"},
        "rocm": {"training_compile": "/x:D"},
    }
