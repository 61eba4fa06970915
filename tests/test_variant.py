from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.documents.variant import Variant
from tests.builders import target

if TYPE_CHECKING:
    from kerncfg.documents.target import Target


def variant(name: str) -> Variant:
    found = Variant.parse(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "abi", "abi_version", "cxx11", "device", "backend_version", "cpu", "os"),
    [
        ("torch-universal", "universal", None, None, None, None, None, None),
        ("torch-cpu", "noarch", None, None, "cpu", None, None, None),
        ("torch-cuda", "noarch", None, None, "cuda", None, None, None),
        ("torch-rocm", "noarch", None, None, "rocm", None, None, None),
        ("torch-xpu", "noarch", None, None, "xpu", None, None, None),
        ("torch-metal", "noarch", None, None, "mps", None, None, None),
        ("torch-npu", "noarch", None, None, "npu", None, None, None),
        ("torch-neuron", "noarch", None, None, "neuron", None, None, None),
        ("torch-tpu", "noarch", None, None, "tpu", None, None, None),
        ("torch29-cxx11-cu126-x86_64-linux", "torch", (2, 9), True, "cuda", "12.6", "x86_64", "linux"),
        ("torch213-cxx98-cu130-aarch64-linux", "torch", (2, 13), False, "cuda", "13.0", "aarch64", "linux"),
        ("torch210-cu128-x86_64-windows", "torch", (2, 10), None, "cuda", "12.8", "x86_64", "windows"),
        ("torch213-cxx11-rocm64-x86_64-linux", "torch", (2, 13), True, "rocm", "6.4", "x86_64", "linux"),
        ("torch213-cxx11-xpu20252-x86_64-linux", "torch", (2, 13), True, "xpu", "2025.2", "x86_64", "linux"),
        ("torch213-cxx11-cann81-aarch64-linux", "torch", (2, 13), True, "npu", "8.1", "aarch64", "linux"),
        ("torch213-cxx11-cpu-x86_64-linux", "torch", (2, 13), True, "cpu", None, "x86_64", "linux"),
        ("torch213-metal-aarch64-darwin", "torch", (2, 13), None, "mps", None, "aarch64", "darwin"),
        (
            "torch-stable-abi29-cu126-x86_64-linux",
            "torch-stable-abi",
            (2, 9),
            None,
            "cuda",
            "12.6",
            "x86_64",
            "linux",
        ),
        ("tvm-ffi01-cu126-x86_64-linux", "tvm-ffi", (0, 1), None, "cuda", "12.6", "x86_64", "linux"),
    ],
)
def test_a_builds_name_says_what_it_is_for(
    name: str,
    abi: str,
    abi_version: tuple[int, int] | None,
    cxx11: bool | None,
    device: str | None,
    backend_version: str | None,
    cpu: str | None,
    os: str | None,
) -> None:
    assert Variant.parse(name) == Variant(
        name=name,
        abi=abi,
        abi_version=abi_version,
        cxx11=cxx11,
        device=device,
        backend_version=backend_version,
        cpu=cpu,
        os=os,
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "docs",
        "torch",
        "torch-gpu",
        "torch-npu2",
        "torch2-cu126-x86_64-linux",  # no minor version
        "torch213-x86_64-linux",  # no backend
        "torch213-cu-x86_64-linux",  # no version of CUDA
        "torch213-cu1-x86_64-linux",  # no minor version of CUDA
        "torch213-cpu12-x86_64-linux",  # a CPU has none
        "torch213-vulkan12-x86_64-linux",
        "torch213-cu126-x86_64",
        "torch213-cu126-x86_64-linux-gnu",
        "torch-cann",
        "torch213-cxx20-cu126-x86_64-linux",
        "torch-stable-abi29-cxx11-cu126-x86_64-linux",  # the stable ABI has no other
        "tvm-ffi01-cxx98-cu126-x86_64-linux",
        "torch21\u0663-cu126-x86_64-linux",  # a digit, but none of ASCII
        "torch213-cu126-x86_64-linux ",
    ],
)
def test_another_name_is_no_build(name: str) -> None:
    assert Variant.parse(name) is None


CUDA = "torch213-cxx11-cu126-x86_64-linux"
METAL = "torch213-metal-aarch64-darwin"
MAC = {"os": "darwin", "cpu": "aarch64"}


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("torch-universal", "cuda", {}),
        ("torch-universal", "mps", {}),  # universal code has no part that only some macOS can run
        ("torch-universal", "cpu", {"free_threaded": True}),
        ("torch-cuda", "cuda", {"torch": None}),
        ("torch-cpu", "cpu", {}),
        ("torch-metal", "mps", {"macos": "26.1", "os": "darwin", "cpu": "aarch64"}),
        (CUDA, "cuda", {}),
        (CUDA, "cuda", {"torch": "2.13.1+cu128"}),
        (CUDA, "cuda", {"backend_version": "12.6"}),
        (CUDA, "cuda", {"cxx11_abi": None}),
        (CUDA, "cuda", {"free_threaded": True, "python": "3.15.0"}),
        (CUDA, "cuda", {"free_threaded": True, "python": "3.15.0b2"}),
        ("torch213-cu126-x86_64-linux", "cuda", {"cxx11_abi": False}),
        ("torch-stable-abi29-cu126-x86_64-linux", "cuda", {"torch": "2.9.0"}),
        ("torch-stable-abi29-cu126-x86_64-linux", "cuda", {"torch": "3.0.0"}),
        ("tvm-ffi01-cu126-x86_64-linux", "cuda", {"torch": None, "packages": {"apache-tvm-ffi": "0.1.9"}}),
        ("torch213-cxx11-rocm64-x86_64-linux", "rocm", {"backend_version": "6.4"}),
        ("torch213-cxx11-xpu20252-x86_64-linux", "xpu", {"backend_version": "2025.2"}),
        ("torch213-metal-aarch64-darwin", "mps", {"macos": "26.0", "os": "darwin", "cpu": "aarch64"}),
        ("torch213-cxx11-cpu-x86_64-linux", "cpu", {}),
        ("torch213-cxx11-cpu-riscv64-linux", "cpu", {"cpu": "riscv64"}),
        ("torch213-cpu-x86_64-windows", "cpu", {"os": "windows"}),
        ("torch213-cxx98-cpu-x86_64-linux", "cpu", {"cxx11_abi": None}),
        ("torch213-cxx11-cann85-aarch64-linux", "npu", {"cpu": "aarch64", "backend_version": "8.5.0"}),
        ("torch213-neuron-x86_64-linux", "neuron", {}),
        ("torch213-tpu-x86_64-linux", "tpu", {}),
        ("torch213-rocm70-x86_64-linux", "rocm", {"backend_version": "7"}),
        ("torch213-rocm610-x86_64-linux", "rocm", {"backend_version": "6.10"}),
        ("torch-metal", "mps", {"macos": "15.6"}),
        ("torch-metal", "mps", {"free_threaded": True}),
        ("torch-npu", "npu", {}),
    ],
)
def test_a_build_that_fits(name: str, device: str, said: dict[str, Any]) -> None:
    assert variant(name).refusal(target(device, **said)) is None


@pytest.mark.parametrize(
    ("name", "device", "said", "reason"),
    [
        ("torch-cuda", "cpu", {}, "built for cuda, the target is cpu"),
        ("torch-cuda", "rocm", {}, "built for cuda, the target is rocm"),
        (METAL, "mps", {**MAC, "macos": "15.6"}, "needs macOS 26 or newer, the target has 15.6"),
        (METAL, "mps", MAC, "needs macOS 26 or newer, the target has none"),
        ("torch213-cpu-riscv64-linux", "cpu", {}, "built for riscv64 linux, the target is x86_64 linux"),
        (
            "torch213-cxx11-cpu-x86_64-windows",
            "cpu",
            {"os": "windows"},
            "built with the cxx11 ABI of Linux, the target is windows",
        ),
        (
            "torch213-cxx11-cann81-x86_64-linux",
            "npu",
            {"backend_version": "8.5"},
            "built for npu 8.1, the target has 8.5",
        ),
        (CUDA, "cuda", {"cpu": "aarch64"}, "built for x86_64 linux, the target is aarch64 linux"),
        (CUDA, "cuda", {"os": "windows"}, "built for x86_64 linux, the target is x86_64 windows"),
        (
            CUDA,
            "cuda",
            {"free_threaded": True, "python": "3.14.2"},
            "compiled builds need Python 3.15 if free-threaded, the target has 3.14.2",
        ),
        (CUDA, "cuda", {"torch": None}, "needs torch 2.13, the target has none"),
        (CUDA, "cuda", {"torch": "2.12.1"}, "needs torch 2.13, the target has 2.12.1"),
        (CUDA, "cuda", {"torch": "3.13.0"}, "needs torch 2.13, the target has 3.13.0"),
        (
            CUDA,
            "cuda",
            {"cxx11_abi": False},
            "built with the cxx11 ABI, the target's torch uses cxx98",
        ),
        (
            "torch213-cxx98-cu126-x86_64-linux",
            "cuda",
            {},
            "built with the cxx98 ABI, the target's torch uses cxx11",
        ),
        (
            "torch-stable-abi210-cu126-x86_64-linux",
            "cuda",
            {"torch": "2.9.1"},
            "needs torch 2.10 or newer, the target has 2.9.1",
        ),
        ("tvm-ffi01-cu126-x86_64-linux", "cuda", {}, "needs tvm-ffi 0.1, the target has none"),
        (
            "tvm-ffi01-cu126-x86_64-linux",
            "cuda",
            {"packages": {"apache-tvm-ffi": "0.2.0"}},
            "needs tvm-ffi 0.1, the target has 0.2.0",
        ),
        (CUDA, "cuda", {"backend_version": "12.4"}, "built for cuda 12.6, the target has 12.4"),
        (CUDA, "cuda", {"backend_version": "13.0"}, "built for cuda 12.6, the target has 13.0"),
        (CUDA, "cuda", {"backend_version": None}, "needs cuda 12.6, the target's version is not known"),
        (
            "torch213-cxx11-rocm64-x86_64-linux",
            "rocm",
            {"backend_version": "7.0"},
            "built for rocm 6.4, the target has 7.0",
        ),
        (
            "torch213-cxx11-rocm63-x86_64-linux",
            "rocm",
            {"backend_version": "6.4"},
            "built for rocm 6.3, the target has 6.4",
        ),
    ],
)
def test_a_refusal_names_both_sides(name: str, device: str, said: dict[str, Any], reason: str) -> None:
    assert variant(name).refusal(target(device, **said)) == reason


BEST_LAST = [
    "torch-universal",
    "torch-cuda",
    "tvm-ffi01-cu126-x86_64-linux",
    "torch213-cxx98-cu128-x86_64-linux",
    "torch213-cxx11-cu126-x86_64-linux",
    "torch213-cxx11-cu128-x86_64-linux",
    "torch213-cu126-x86_64-linux",
    "torch213-cu128-x86_64-linux",
    "torch-stable-abi29-cu128-x86_64-linux",
    "torch-stable-abi210-cu126-x86_64-linux",
    "torch-stable-abi210-cu128-x86_64-linux",
]


@pytest.mark.parametrize("pair", list(permutations(BEST_LAST, 2)), ids=" ".join)
def test_the_better_of_two_builds_is_that_of_the_hub_library(pair: tuple[str, str]) -> None:
    better = max(pair, key=lambda name: variant(name).rank())
    assert better == max(pair, key=BEST_LAST.index)


def chosen(names: Sequence[str], system: Target) -> str | None:
    """The build that is taken of a listing in this order."""
    fitting = [build for build in map(variant, names) if build.refusal(system) is None]
    return max(fitting, key=Variant.rank).name if fitting else None


SIX = [
    "torch-universal",
    "torch-cuda",
    "torch213-cxx11-cu128-x86_64-linux",
    "torch213-cxx11-rocm64-x86_64-linux",
    "torch-stable-abi29-cu126-x86_64-linux",
    "torch213-metal-aarch64-darwin",
]


@pytest.mark.parametrize("names", list(permutations(SIX)), ids=lambda names: "".join(str(SIX.index(n)) for n in names))
def test_the_order_of_a_listing_decides_nothing(names: Sequence[str]) -> None:
    assert chosen(names, target()) == "torch-stable-abi29-cu126-x86_64-linux"
    assert chosen(names, target("cpu")) == "torch-universal"


# Names that read alike but for their zeros and tags: where the grammar sees no difference, the name makes one.
ALIKE = [
    "torch213-cu126-x86_64-linux",
    "torch2013-cu126-x86_64-linux",
    "torch213-cxx11-cu126-x86_64-linux",
    "torch213-cxx98-cu126-x86_64-linux",
    "tvm-ffi01-cu130-x86_64-linux",
    "torch-cuda",
]


@pytest.mark.parametrize("count", range(2, len(ALIKE) + 1))
def test_two_builds_are_never_equal(count: int) -> None:
    unknown = target(cxx11_abi=None, packages={"apache-tvm-ffi": "0.1.9"})
    for names in combinations(ALIKE, count):
        assert len({chosen(order, unknown) for order in permutations(names)}) == 1


H100 = target(torch="2.9.1", backend_version="12.8")
M3 = target("mps", macos="15.6", **MAC)
MI300X = target("rocm", capability="9.4", arch="gfx942", backend_version="7.0")
REASONS: dict[str, tuple[Target, str, list[str | None]]] = {
    "h100": (
        H100,
        "torch-stable-abi29-cu126-x86_64-linux",
        [
            None,
            None,
            "needs torch 2.13, the target has 2.9.1",
            "built for rocm, the target is cuda",
            None,
            "built for mps, the target is cuda",
        ],
    ),
    "mi300x": (
        MI300X,
        "torch-universal",
        [
            None,
            "built for cuda, the target is rocm",
            "built for cuda, the target is rocm",
            "built for rocm 6.4, the target has 7.0",
            "built for cuda, the target is rocm",
            "built for mps, the target is rocm",
        ],
    ),
    "m3": (
        M3,
        "torch-universal",
        [
            None,
            "built for cuda, the target is mps",
            "built for cuda, the target is mps",
            "built for rocm, the target is mps",
            "built for cuda, the target is mps",
            "needs macOS 26 or newer, the target has 15.6",
        ],
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_each_of_six_builds_is_taken_or_says_why_not(name: str) -> None:
    system, best, reasons = REASONS[name]
    assert [variant(build).refusal(system) for build in SIX] == reasons
    assert chosen(SIX, system) == best


def test_a_target_that_is_the_cpu_gets_cpu_builds_beside_a_cuda_build_of_torch() -> None:
    system = target("cpu", torch="2.13.0+cu128")
    assert chosen(["torch-cpu", "torch-cuda", "torch213-cu128-x86_64-linux"], system) == "torch-cpu"
