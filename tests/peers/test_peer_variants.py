"""Builds, architectures and metadata are judged as the `kernels` library judges them."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.documents import metadata
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.variant import Variant
from kerncfg.errors import SourceError
from tests.builders import target
from tests.peers.overlay import ask

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

pytestmark = pytest.mark.peers

PAIRS = 25_000
FILES = 8_000

VARIANTS = """
import json, sys
from packaging.version import Version
from kernels import backends, variants

def backend(name, version):
    kind = getattr(backends, name)
    return kind(version=Version(version)) if version else kind()

def parsed(name):
    try:
        return variants.parse_variant(name)
    except ValueError:
        return None

def version(text):
    return text and Version(text)

def answer(names, system):
    found = [parsed(name) for name in names]
    place = {id(variant): index for index, variant in enumerate(found)}
    variants._is_unsupported_free_threaded_build = lambda: system["free_threaded"]
    def fitting(listed):
        good, _ = variants._resolve_variant_for_system(
            variants=[variant for variant in listed if variant is not None],
            selected_backend=backend(*system["backend"]), cpu=system["cpu"], os=system["os"],
            torch_version=version(system["torch"]), torch_cxx11_abi=system["cxx11_abi"],
            tvm_ffi_version=version(system["tvm_ffi"]), macos_version=version(system["macos"]),
        )
        return [place[id(variant)] for variant in good]
    return {"parsed": [variant is not None for variant in found], "one": fitting(found), "other": fitting(found[::-1])}

import logging
logging.disable()
json.dump([answer(*pair) for pair in json.load(sys.stdin)], sys.stdout)
"""

# Our name for a device -> the library's class for it, what a name of a build has for it, and its versions.
BACKENDS: dict[str, tuple[str, str, list[str]]] = {
    "cuda": ("CUDA", "cu", ["11.8", "12.0", "12.6", "12.8", "13.0", "13.2"]),
    "rocm": ("ROCm", "rocm", ["6.3", "6.4", "7.0", "6.10"]),
    "xpu": ("XPU", "xpu", ["2025.0", "2025.2", "2026.0"]),
    "npu": ("CANN", "cann", ["8.1", "8.5"]),
    "mps": ("Metal", "metal", []),
    "neuron": ("Neuron", "neuron", []),
    "tpu": ("TPU", "tpu", []),
    "cpu": ("CPU", "cpu", []),
}
NOARCH = ["universal", "cpu", "cuda", "rocm", "xpu", "metal", "npu", "neuron", "tpu", "cann", "vulkan", ""]
MACHINES = [
    ("x86_64", "linux"),
    ("aarch64", "linux"),
    ("aarch64", "darwin"),
    ("x86_64", "windows"),
    ("riscv64", "linux"),
]
TORCH = ["2.9", "2.10", "2.13", "3.0"]
TVM_FFI = ["0.1", "0.2"]


def system_of(rng: random.Random) -> dict[str, Any]:
    """A machine as the library describes it to itself."""
    device = rng.choice(list(BACKENDS))
    cpu, os = ("aarch64", "darwin") if device == "mps" else rng.choice(MACHINES)
    torch = rng.choice([*TORCH, *TORCH, None])
    kind, _, versions = BACKENDS[device]
    return {
        "device": device,
        "backend": (kind, rng.choice(versions) if versions else None),
        "cpu": cpu,
        "os": os,
        "torch": torch,
        "cxx11_abi": rng.choice([True, True, False]) if torch and os == "linux" else None,
        "tvm_ffi": rng.choice([*TVM_FFI, None]),
        "macos": rng.choice(["15.6", "26.0", "26.1", None]) if os == "darwin" else None,
        "free_threaded": rng.random() < 0.1,
    }


def ours(system: dict[str, Any], rng: random.Random) -> Target:
    """The same machine as a target: patch releases and local tags say nothing."""
    full = {"torch": "{}.1+cu126", "tvm_ffi": "{}.9"}
    said = {key: form.format(system[key]) if system[key] else None for key, form in full.items()}
    packages = {"apache-tvm-ffi": said["tvm_ffi"]} if said["tvm_ffi"] else {}
    return target(
        system["device"],
        torch=said["torch"],
        backend_version=system["backend"][1],
        # The library asks for the ABI on Linux alone; here a target has one everywhere.
        cxx11_abi=system["cxx11_abi"] if system["os"] == "linux" else rng.choice([True, False, None]),
        cpu=system["cpu"],
        os=system["os"],
        macos=system["macos"],
        python=rng.choice(["3.13.1", "3.14.0"]) if system["free_threaded"] else rng.choice(["3.12.1", "3.15.0"]),
        free_threaded=system["free_threaded"],
        packages=packages,
    )


def build_for(system: dict[str, Any], rng: random.Random) -> str:
    """A build's name: of a kind that may fit, with each part from the system or from anywhere."""
    device = system["device"] if rng.random() < 0.8 else rng.choice(list(BACKENDS))
    kind = rng.choice(["noarch", "torch", "torch", "torch", "torch-stable-abi", "tvm-ffi"])
    if kind == "noarch":
        _, word, _ = BACKENDS[device]
        return f"torch-{ {'cu': 'cuda', 'cann': 'npu'}.get(word, word) if rng.random() < 0.6 else rng.choice(NOARCH) }"
    _, word, versions = BACKENDS[device]
    version = rng.choice(versions).replace(".", "") if versions else ""
    likely = system["tvm_ffi" if kind == "tvm-ffi" else "torch"] if rng.random() < 0.7 else None
    against = (likely or rng.choice(TVM_FFI if kind == "tvm-ffi" else TORCH)).replace(".", "")
    tag = rng.choice(["", "", "-cxx11", "-cxx98"]) if kind == "torch" else ""
    cpu, os = (system["cpu"], system["os"]) if rng.random() < 0.8 else rng.choice(MACHINES)
    return f"{kind}{against}{tag}-{word}{version}-{cpu}-{os}"


def spoiled(name: str, rng: random.Random) -> str:
    """The name with a character more, less or other, which may be no build's name any more."""
    at = rng.randrange(len(name) + 1)
    return name[:at] + rng.choice(["", "-", "0", "1", "x", "_"]) + name[at + rng.randrange(2) :]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[list[str], dict[str, Any]]]:
    rng = random.Random(20_000)
    made = []
    for _ in range(PAIRS):
        system = system_of(rng)
        names = [build_for(system, rng) for _ in range(rng.randint(1, 8))]
        made.append(([spoiled(name, rng) if rng.random() < 0.05 else name for name in names], system))
    return made


@pytest.fixture(scope="module")
def answers(peer_folder: Path | None, pairs: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(peer_folder, VARIANTS, pairs)
    return found


def test_the_same_builds_fit_and_the_same_one_is_chosen(pairs: Any, answers: Any) -> None:
    rng = random.Random(1)
    decided = refused = 0
    for (names, system), answer in zip(pairs, answers, strict=True):
        described = ours(system, rng)
        reasons = [variant and (variant.refusal(described) or "fits") for variant in map(Variant.parse, names)]
        fitting = [index for index, reason in enumerate(reasons) if reason == "fits"]
        assert fitting == sorted(answer["one"]), (names, system, reasons)
        best = max((Variant.parse(names[index]) for index in fitting), key=partial(_rank), default=None)
        if not answer["one"]:
            refused += 1
        elif answer["one"][0] == answer["other"][0]:  # whichever way the builds are listed
            decided += 1
            assert best is not None
            assert best.name == names[answer["one"][0]], (names, system)
    # Where two are equal to the library it takes the one that is listed first.
    assert decided > PAIRS // 3
    assert refused > PAIRS // 10


def _rank(variant: Variant | None) -> Any:
    assert variant is not None
    return variant.rank()


def test_a_name_is_a_builds_for_both_or_for_neither(pairs: Any, answers: Any) -> None:
    read = {
        name: known
        for (names, _), answer in zip(pairs, answers, strict=True)
        for name, known in zip(names, answer["parsed"], strict=True)
    }
    differ = {name for name, known in read.items() if known is not (Variant.parse(name) is not None)}
    # There any word is a backend behind `torch-`, and an empty one a CPU or system; no machine has such a one.
    assert {name for name in differ if not name.startswith("torch-") and "" not in name.split("-")[-2:]} == set()
    assert sum(known for known in read.values()) > 500
    assert sum(not known for known in read.values()) > 100


ARCHS = """
import json, sys
from kernels.archs import _supports_cuda_capability as supports
json.dump([supports(archs, tuple(pair)) for archs, pair in json.load(sys.stdin)], sys.stdout)
"""


def test_the_same_cuda_architectures_run_on_a_capability(peer_folder: Path | None) -> None:
    rng = random.Random(2)
    numbers = [(major, minor) for major in (7, 8, 9, 10, 12) for minor in (0, 3, 5, 9)]
    forms = ["{}.{}"] * 3 + [
        "{}.{}a",
        "{}.{}f",
        "{}.{}+PTX",
        "{}.{}a+PTX",
        "{}.{}f+PTX",
        "{}{}",
        "sm_{}{}",
        "{}.{}b",
        "{}.{}.{}",
    ]
    cases = []
    for _ in range(10_000):
        archs = [rng.choice(forms).format(*rng.choice(numbers), 0) for _ in range(rng.randint(1, 4))]
        cases.append((archs, rng.choice(numbers)))
    verdicts = ask(peer_folder, ARCHS, cases)
    for (archs, (major, minor)), verdict in zip(cases, verdicts, strict=True):
        build = Metadata(id="a", name="ab", backend="cuda", archs=tuple(archs))
        reason = build.refusal(target("cuda", capability=f"{major}.{minor}"))
        assert (reason is None) is verdict, (archs, major, minor)
    assert 2_000 < sum(verdicts) < 8_000


DEPENDENCIES = """
import json, sys
from kernels.python_deps import _DEPENDENCY_DATA as data
def packages(found):
    return {name: [each.pkg for each in said.python if each.import_name] for name, said in found.items()}
json.dump([packages(data.general), {name: packages(found) for name, found in data.backends.items()}], sys.stdout)
"""


def test_the_same_python_packages_may_be_needed(peer_folder: Path | None) -> None:
    everywhere, by_device = ask(peer_folder, DEPENDENCIES, None)
    mine = {name: [package] if package else [] for name, package in metadata._PACKAGES.items()}
    assert everywhere == mine
    theirs = {device: found for device, found in by_device.items() if found}
    assert theirs == {
        device: {name: [package] if package else [] for name, package in found.items()}
        for device, found in metadata._PACKAGES_OF.items()
    }


FILE = """
import base64, json, sys
from kernels._rust import KernelVersion, Metadata
def depends(each):
    said = each.version
    revision = isinstance(said, KernelVersion.Revision)
    return [each.repo_id, None if revision else said.version, said.revision if revision else None]
def answer(content):
    try:
        said = Metadata.from_bytes(base64.b64decode(content))
    except ValueError as error:
        return {"error": str(error)}
    return {
        "id": said.id, "name": str(said.name), "backend": str(said.backend.backend_type).lower(),
        "archs": said.backend.archs or [], "python": said.python_depends,
        "kernel": [depends(each) for each in said.kernel_depends],
        "minver": said.kernels_minver and str(said.kernels_minver),
        "dirty": bool(said.provenance and said.provenance.dirty),
    }
json.dump([answer(content) for content in json.load(sys.stdin)], sys.stdout)
"""

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LEAST = {"id": "_norms_1a", "name": "norms", "version": 1, "license": "mit", "python-depends": ["einops"]}
MOST = {
    **LEAST,
    "backend": {"type": "cuda", "archs": ["9.0a", "8.0"]},
    "kernels-minver": "0.17.2",
    "upstream": "https://github.com/acme/norms",
    "source": "git@github.com:acme/norms.git",
    "kernel-depends": [{"repo-id": "acme/a", "version": 1}, {"repo-id": "acme/b", "revision": "x"}],
    "digest": {"algorithm": "sha256", "files": {"a.py": "x"}},
    "provenance": {
        "kernel-builder": {"version": "0.17", "sha": COMMIT, "dirty": False},
        "kernel": {"commit": COMMIT, "dirty": True},
    },
    "later": {"a": [1, {"b": None}], "c": "\u00e9"},
}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, 1 << 64, (1 << 64) - 1, "", "a", "ab", "cpu", "metal", "npu", "CUDA", "sha512",
    "0.17.2", "0.17", "1.2.3.4", " 1.2.3\n", "1.+2.3", "01.2.3", "1..3", "a.b.c", "x y", "x_1", "a-b", "a-", "\u00e9",
    COMMIT, COMMIT.upper(), COMMIT[:39], COMMIT + COMMIT[:24], "https://host", "https://", "ftp://host/x", "git@host:x",
    "git:x", "host/x", "https://h x/", "https:x", [], [1], ["a"], {}, {"type": "rocm"}, {"a": 1}, {"version": "1"},
    {"repo-id": "acme/c", "version": 3}, [{"repo-id": "acme/c", "version": 3}], [None],
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(child, (*path, key))


def mutated(rng: random.Random) -> bytes:
    """A metadata.json with up to three things changed: values, keys, and sometimes its text."""
    data = copy.deepcopy(MOST)
    for _ in range(rng.randint(0, 3)):
        path = rng.choice(list(places(data)))
        node: Any = data
        for key in path[:-1]:
            node = node[key]
        change = rng.randrange(6)
        if change < 3:
            node[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        elif change == 3:
            del node[path[-1]]
        elif isinstance(node, dict):
            name = rng.choice(["later", "commit", "sha", "dirty", "version", "revision", "archs", "x"])
            node[name] = node.pop(path[-1]) if change == 4 else copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(data, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.15:  # one key twice, somewhere
        key = rng.choice(["id", "type", "later", "commit", "dirty", "version", "files", "a"])
        text = text.replace(f'"{key}":', f'"{key}": {json.dumps(rng.choice(VALUES))}, "{key}":', 1)
    if rng.random() < 0.15:
        at = rng.randrange(len(text))
        text = (
            text[:at]
            + rng.choice(["", ",", '"', "{", "]", "0", "-", "e", "\\", "\t", "N", "NaN", " "])
            + text[at + rng.randrange(2) :]
        )
    return text.encode()


def test_the_same_metadata_are_read_and_the_same_refused(peer_folder: Path | None) -> None:
    rng = random.Random(3)
    contents = [mutated(rng) for _ in range(FILES)]
    answers = ask(peer_folder, FILE, [base64.b64encode(content).decode() for content in contents])
    stricter = good = 0
    for content, answer in zip(contents, answers, strict=True):
        try:
            said = Metadata.parse(content)
        except SourceError as error:
            if "error" not in answer:
                stricter += 1
                assert _on_purpose(error.message), (error.message, content)
            continue
        assert "error" not in answer, (answer, content)
        good += 1
        assert answer == {
            "id": said.id,
            "name": said.name,
            "backend": said.backend,
            "archs": [*said.archs],
            "python": [*said.python_depends],
            "kernel": [[*each] for each in said.kernel_depends],
            "minver": said.kernels_minver,
            "dirty": said.dirty,
        }
    assert good > FILES // 4
    assert stricter < FILES // 20


def _on_purpose(message: str) -> bool:
    """Whether this is a thing in which we are stricter.

    An id is a name, a map is no list, and an address is written as git takes it and not as a browser still reads it.
    """
    stricter = ("expected a name of letters", "is a list, expected a map", "expected the address of a git repository")
    return any(words in message for words in stricter)
