from __future__ import annotations

import json
from typing import Any

import pytest

from kerncfg.documents.metadata import FORMAT, Metadata
from kerncfg.errors import SourceError
from tests.builders import target

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GONE = object()


def document(**said: Any) -> dict[str, Any]:
    """A metadata.json with as little as it may have; `_` stands for `-`, `GONE` takes a key out."""
    least: dict[str, Any] = {
        "id": "_norms_cuda_1a2b3c",
        "name": "fast-norms",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    merged = {**least, **{key.replace("_", "-"): value for key, value in said.items()}}
    return {key: value for key, value in merged.items() if value is not GONE}


def parsed(**said: Any) -> Metadata:
    return Metadata.parse(json.dumps(document(**said)).encode())


def fault(**said: Any) -> str:
    with pytest.raises(SourceError) as caught:
        parsed(**said)
    assert caught.value.hint
    return caught.value.message.removeprefix("metadata.json: ")


FULL = {
    "upstream": "https://github.com/acme/norms",
    "source": "git@github.com:acme/norms.git",
    "digest": {"algorithm": "sha256", "files": {"__init__.py": "x", "layers.py": "y"}},
    "provenance": {"kernel-builder": {"version": "0.17.2"}, "kernel": {"commit": COMMIT, "dirty": True}},
    "kernels_minver": " 0.17.+02 ",
    "python_depends": ["einops"],
    "kernel_depends": [{"repo-id": "acme/a", "version": 2}, {"repo-id": "acme/b", "version": None, "revision": "x/y"}],
    "backend": {"type": "rocm", "archs": ["gfx942", "gfx90a"], "later": 1},
    "later": {"a": 1},
}


def test_what_a_decision_rests_on_is_kept() -> None:
    assert parsed(**FULL) == Metadata(
        id="_norms_cuda_1a2b3c",
        name="fast-norms",
        backend="rocm",
        archs=("gfx942", "gfx90a"),
        python_depends=("einops",),
        kernel_depends=(("acme/a", 2, None), ("acme/b", None, "x/y")),
        kernels_minver="0.17.2",
        dirty=True,
    )


def test_what_may_be_left_out_is_empty() -> None:
    least = Metadata(id="_norms_cuda_1a2b3c", name="fast-norms", backend="cuda")
    assert parsed() == least
    nothing = dict.fromkeys(["upstream", "source", "digest", "provenance", "kernels_minver"])
    assert parsed(**nothing, backend={"type": "cuda", "archs": None}, kernel_depends=[]) == least


@pytest.mark.parametrize("said", [{}, FULL], ids=["least", "full"])
def test_the_metadata_of_a_lock_are_the_same(said: dict[str, Any]) -> None:
    made = parsed(**said)
    assert Metadata.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_as_data_it_speaks_the_hubs_words() -> None:
    assert parsed(**FULL).to_dict() == {
        "id": "_norms_cuda_1a2b3c",
        "name": "fast-norms",
        "backend": {"type": "rocm", "archs": ["gfx942", "gfx90a"]},
        "python-depends": ["einops"],
        "kernel-depends": [{"repo-id": "acme/a", "version": 2}, {"repo-id": "acme/b", "revision": "x/y"}],
        "kernels-minver": "0.17.2",
        "dirty": True,
    }


@pytest.mark.parametrize("key", ["id", "name", "version", "license", "python_depends", "backend"])
def test_a_key_that_must_be_there_is_missed(key: str) -> None:
    assert fault(**{key: GONE}).startswith(f"{key.replace('_', '-')} is missing, expected ")


BACKENDS = "one of cann, cpu, cuda, metal, neuron, rocm, tpu, xpu"
NAME = "lower-case letters, digits and dashes, at least two"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"name": "a"}, f'name is "a", expected {NAME}'),
        ({"name": "a_b"}, f'name is "a_b", expected {NAME}'),
        ({"name": "norms-"}, f'name is "norms-", expected {NAME}'),
        ({"name": "norms\n"}, f'name is "norms\\n", expected {NAME}'),
        ({"id": ""}, 'id is "", expected a name of letters, digits and _'),
        ({"id": "a.b"}, 'id is "a.b", expected a name of letters, digits and _'),
        ({"id": "__a"}, 'id is "__a", expected a name of letters, digits and _'),
        ({"version": None}, "version is null, expected a whole number from 0"),
        ({"version": -1}, "version is -1, expected a whole number from 0"),
        ({"license": 1}, "license is 1, expected a text"),
        ({"python_depends": None}, "python-depends is null, expected a list"),
        ({"python_depends": ["einops", 1]}, "python-depends[1] is 1, expected a text"),
        ({"backend": "cuda"}, 'backend is "cuda", expected a map'),
        ({"backend": {}}, f"backend.type is missing, expected {BACKENDS}"),
        ({"backend": {"type": "npu"}}, f'backend.type is "npu", expected {BACKENDS}'),
        ({"backend": {"type": "universal"}}, f'backend.type is "universal", expected {BACKENDS}'),
        ({"backend": {"type": "CUDA"}}, f'backend.type is "CUDA", expected {BACKENDS}'),
        ({"backend": {"type": "cuda", "archs": "9.0"}}, 'backend.archs is "9.0", expected a list'),
        ({"backend": {"type": "cuda", "archs": [9.0]}}, "backend.archs[0] is 9.0, expected a text"),
        ({"kernel_depends": None}, "kernel-depends is null, expected a list"),
        ({"kernel_depends": ["acme/a"]}, 'kernel-depends[0] is "acme/a", expected a map'),
        (
            {"kernel_depends": [{"repo-id": "acme/a", "version": 1, "x": 1}]},
            'kernel-depends[0] is a map with the key "x", expected only repo-id, version, revision',
        ),
        (
            {"kernel_depends": [{"repo-id": "acme/a"}]},
            "kernel-depends[0] is a map with neither version nor revision, expected one of the two",
        ),
        (
            {"kernel_depends": [{"repo-id": "acme/a", "version": 1, "revision": "x"}]},
            "kernel-depends[0] is a map with both version and revision, expected one of the two",
        ),
        ({"kernel_depends": [{"version": 1}]}, "kernel-depends[0].repo-id is missing, expected a text"),
        ({"kernels_minver": "0.17"}, 'kernels-minver is "0.17", expected three numbers with dots'),
        ({"kernels_minver": "0.17.2.dev0"}, 'kernels-minver is "0.17.2.dev0", expected three numbers with dots'),
        (
            {"kernels_minver": f"0.17.{1 << 64}"},
            'kernels-minver is "0.17.18446744073709551616", expected three numbers of 64 bits',
        ),
        ({"digest": []}, "digest is a list, expected a map"),
        ({"digest": {"files": {}}}, "digest.algorithm is missing, expected sha256 or sha512"),
        ({"digest": {"algorithm": "md5", "files": {}}}, 'digest.algorithm is "md5", expected sha256 or sha512'),
        ({"digest": {"algorithm": "sha512", "files": None}}, "digest.files is null, expected a map"),
        ({"digest": {"algorithm": "sha512", "files": {"a": 1}}}, "digest.files.a is 1, expected a text"),
        ({"provenance": {}}, "provenance.kernel-builder is missing, expected a map"),
        ({"provenance": {"kernel-builder": {}}}, "provenance.kernel-builder.version is missing, expected a text"),
        (
            {"provenance": {"kernel-builder": {"version": "1", "dirty": True}}},
            "provenance.kernel-builder.commit is missing, expected 40 or 64 hexadecimal digits",
        ),
        (
            {"provenance": {"kernel-builder": {"version": "1", "sha": COMMIT}}},
            "provenance.kernel-builder.dirty is missing, expected true or false",
        ),
        (
            {"provenance": {"kernel-builder": {"version": "1"}, "kernel": {"commit": "zz", "dirty": True}}},
            'provenance.kernel.commit is "zz", expected 40 or 64 hexadecimal digits',
        ),
        (
            {"provenance": {"kernel-builder": {"version": "1"}, "kernel": {"sha": COMMIT, "commit": COMMIT}}},
            "provenance.kernel.commit is there twice, once as sha, expected it once",
        ),
    ],
)
def test_what_is_wrong_is_told_with_what_was_expected(said: dict[str, Any], message: str) -> None:
    assert fault(**said) == message


def test_a_file_that_is_there_twice_has_two_digests() -> None:
    content = json.dumps(document(digest={"algorithm": "sha256", "files": {"a": "x"}})).encode()
    Metadata.parse(content.replace(b'{"a"', b'{"a": "y", "a"'))
    with pytest.raises(SourceError, match=r"digest\.files\.a is 1, expected a text"):
        Metadata.parse(content.replace(b'{"a"', b'{"a": 1, "a"'))


def test_a_key_twice_is_told() -> None:
    with pytest.raises(SourceError, match=r"^metadata\.json: id is there twice, expected it once"):
        Metadata.parse(json.dumps(document()).encode().replace(b"{", b'{"id": "a", ', 1))


@pytest.mark.parametrize("content", [b"[]", b"null", b"metadata"])
def test_a_file_that_is_no_map_is_refused(content: bytes) -> None:
    with pytest.raises(SourceError, match=r"^metadata\.json is "):
        Metadata.parse(content)


@pytest.mark.parametrize("key", ["upstream", "source"])
@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("https://github.com/acme/norms", True),
        ("http://user:password@[::1]:8080/x", True),
        ("HTTPS://host", True),
        ("git+ssh://git@host/x", True),
        ("git:x", True),
        ("git@github.com:acme/norms.git", True),
        (" git@gith\tub.com:acme\n/norms ", True),
        ("", False),
        ("https", False),
        ("https://", False),
        ("https://a b/", False),
        ("https://host:99999/", False),
        ("github.com/acme/norms", False),
        ("file:///tmp/norms", False),
        ("git@github.com:", False),
        ("git@github.com://acme", False),
        ("git@git<hub.com:acme", False),
        ("h{ttps://host", False),
        ("https://ho\x7fst", False),
        ("https://ho%20st", False),
    ],
)
def test_an_address_is_that_of_a_git_repository(key: str, address: str, good: bool) -> None:
    if good:
        assert parsed(**{key: address}) == parsed()
    else:
        expected = "the address of a git repository, with one of https, http, git, ssh, git+ssh, git+https, git+http"
        assert fault(**{key: address}) == f"{key} is {json.dumps(address)}, expected {expected}"


@pytest.mark.parametrize(
    ("kernel", "builder", "dirty"),
    [(None, None, False), (False, False, False), (True, False, True), (False, True, True), (None, True, True)],
)
def test_a_build_is_dirty_if_the_kernel_or_its_builder_was(
    kernel: bool | None, builder: bool | None, dirty: bool
) -> None:
    made = {"version": "1", **({} if builder is None else {"commit": COMMIT, "dirty": builder})}
    said = None if kernel is None else {"sha": COMMIT + COMMIT[:24].upper(), "dirty": kernel}
    assert parsed(provenance={"kernel-builder": made, "kernel": said}).dirty is dirty


def refusal(backend: str, archs: list[str], device: str | None = None, **said: Any) -> str | None:
    metadata = parsed(backend={"type": backend, "archs": archs})
    return metadata.refusal(target(device or backend, **said))


@pytest.mark.parametrize(
    ("archs", "capabilities"),
    [
        (["9.0"], ["9.0", "9.1"]),
        (["9.0a"], ["9.0"]),
        (["10.0f"], ["10.0", "10.3"]),
        (["9.0+PTX"], ["9.0", "9.1", "10.0", "10.3", "12.0"]),
        (["9.0a+PTX"], ["9.0"]),
        (["10.0f+PTX"], ["10.0", "10.3"]),
        (["8.0", "9.0a"], ["8.0", "8.9", "9.0"]),
        (["8.0", "sm_120"], ["8.0", "8.9"]),
        (["9", "sm_90", "9.0b", "9.0+ptx"], ["8.0", "8.9", "9.0", "9.1", "10.0", "10.3", "12.0"]),
        ([], ["8.0", "8.9", "9.0", "9.1", "10.0", "10.3", "12.0"]),
    ],
    ids=str,
)
def test_an_architecture_runs_on_these_capabilities(archs: list[str], capabilities: list[str]) -> None:
    every = ["8.0", "8.9", "9.0", "9.1", "10.0", "10.3", "12.0"]
    assert [each for each in every if refusal("cuda", archs, capability=each) is None] == capabilities


def test_a_build_for_other_chips_names_theirs_and_the_targets() -> None:
    assert refusal("cuda", ["8.0", "9.0a"], capability="10.0") == (
        "built for capability 8.0, 9.0a, the target has 10.0"
    )


@pytest.mark.parametrize(
    ("archs", "said", "reason"),
    [
        (["gfx942", "gfx90a"], {"arch": "gfx942"}, None),
        (["gfx942", "gfx90a"], {"arch": "gfx1100"}, "built for architecture gfx942, gfx90a, the target has gfx1100"),
        (["gfx9-4-generic"], {"arch": "gfx942"}, "built for architecture gfx9-4-generic, the target has gfx942"),
        (["gfx90c"], {"arch": "gfx90a", "capability": "9.0"}, "built for architecture gfx90c, the target has gfx90a"),
        (["gfx942"], {}, None),
        (["gfx942"], {"capability": "9.4"}, None),
        (["gfx90c"], {"capability": "9.0"}, None),
        (["gfx1100"], {"capability": "11.0"}, None),
        (
            ["gfx1100", "gfx942"],
            {"capability": "9.0"},
            "built for architecture gfx1100, gfx942, the target has capability 9.0",
        ),
        (["gfx9-4-generic", "gfx942"], {"capability": "9.0"}, None),
    ],
)
def test_an_amd_architecture_is_compared_by_name_or_by_what_is_known_of_it(
    archs: list[str], said: dict[str, Any], reason: str | None
) -> None:
    assert refusal("rocm", archs, **said) == reason


def test_architectures_of_another_device_are_not_the_metadatas_to_judge() -> None:
    assert refusal("cuda", ["8.0"], "rocm", capability="9.4", arch="gfx942") is None
    assert refusal("cuda", ["8.0"], "cpu") is None
    assert refusal("xpu", ["pvc"]) is None
    assert refusal("metal", ["x"], "mps") is None


def test_a_capability_that_is_not_known_refuses_nothing() -> None:
    assert refusal("cuda", ["8.0"], capability=None) is None


@pytest.mark.parametrize(
    ("device", "depends", "packages", "reason"),
    [
        ("cpu", ["einops"], {"einops": "0.8.1"}, None),
        ("cpu", ["einops"], {}, "needs einops, not installed here: pip install einops"),
        ("cpu", ["tvm-ffi"], {"apache-tvm-ffi": "0.1.9"}, None),
        ("cpu", ["tvm-ffi"], {}, "needs tvm-ffi, not installed here: pip install apache-tvm-ffi"),
        (
            "cuda",
            ["tvm-ffi", "nvidia-cutlass-dsl", "einops"],
            {"einops": "0.8.1"},
            "needs tvm-ffi and nvidia-cutlass-dsl, not installed here: pip install apache-tvm-ffi nvidia-cutlass-dsl",
        ),
        ("neuron", ["nki"], {}, "needs nki, not installed here: pip install nki"),
        ("xpu", ["onednn"], {}, None),
        (
            "rocm",
            ["einops", "nvidia-cutlass-dsl"],
            {},
            "needs the Python package nvidia-cutlass-dsl, a build for rocm may need einops, helion, tvm-ffi",
        ),
        (
            "cuda",
            ["numpy"],
            {"numpy": "2.0"},
            "needs the Python package numpy, a build for cuda may need einops, helion, tvm-ffi, nvidia-cutlass-dsl",
        ),
    ],
)
def test_python_packages_are_named_as_they_are_installed(
    device: str, depends: list[str], packages: dict[str, str], reason: str | None
) -> None:
    assert parsed(python_depends=depends).refusal(target(device, packages=packages)) == reason


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        (FORMAT, None),
        ("0.9.9", None),
        ("0.17.3", f"needs kernels 0.17.3 or newer, kerncfg reads what {FORMAT} does"),
        ("0.100.0", f"needs kernels 0.100.0 or newer, kerncfg reads what {FORMAT} does"),
    ],
)
def test_a_build_for_a_later_format_is_refused(needed: str, reason: str | None) -> None:
    assert parsed(kernels_minver=needed).refusal(target()) == reason


def test_the_reason_that_nothing_mends_comes_first() -> None:
    metadata = parsed(backend={"type": "cuda", "archs": ["8.0"]}, kernels_minver="9.0.0", python_depends=["einops"])
    assert str(metadata.refusal(target(capability="10.0"))).startswith("built for capability 8.0")
    assert str(metadata.refusal(target(capability="8.0"))).startswith("needs kernels 9.0.0")
