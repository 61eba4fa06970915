"""What is wrong on a machine: each finding for machines that are not here, and the command on this one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerncfg.cli import main
from kerncfg.compiler.schema import validate
from kerncfg.doctor import FLAGS, PROBES, Finding, examine
from kerncfg.locations import conf
from kerncfg.signs import Cache, Facts, accelerators, accepts, cache, compiler, gather
from kerncfg.sources.environment import Settings
from tests.builders import target

VERSIONS: dict[str, str | None] = {
    "python": "3.11.9",
    "kerncfg": "0.1.0",
    "torch": "2.13.0",
    "triton": "3.5.0",
    "transformers": "5.24.0",
    "hydra-core": "1.3.2",
    "omegaconf": "2.3.0",
    "huggingface_hub": "2.4.0",
    "kernels": None,
}
REQUIRES = (
    "torch>=2.9",
    "triton>=3.5; sys_platform == 'linux'",
    "triton-windows; sys_platform == 'win32'",
    "omegaconf>=2.3",
    "hydra-core>=1.3",
    "huggingface-hub>=2.0",
    'transformers<6,>=5.24; extra == "transformers"',
    'kerncfg[transformers]; extra == "dev"',
    'kernels>=0.17.2; extra == "peers"',
)
WELL = Facts(
    versions=VERSIONS,
    requires=REQUIRES,
    accepts=">=0.18.2,<0.19.0",
    target=target("cuda"),
    failure=None,
    builds={"cuda": "12.8"},
    devices=frozenset({"cuda"}),
    environment={"PATH": "/usr/bin"},
    compiler="/usr/bin/gcc",
    system="linux",
    hub=Settings(endpoint="https://huggingface.co", cache=Path("/cache"), token=None, offline=False),
    cache=Cache(path=Path("/cache"), exists=True, writable=True, kernels=2, size=3_500_000),
    presets=23,
    faults=(),
    plugin=True,
)


def bad(**facts: Any) -> list[Finding]:
    """The findings that are not ok, on a machine that is well but for this."""
    return [finding for finding in examine(replace(WELL, **facts)).findings if finding.severity != "ok"]


def one(**facts: Any) -> Finding:
    (found,) = bad(**facts)
    return found


def without(**versions: str | None) -> dict[str, str | None]:
    return {**VERSIONS, **versions}


def flags(**environment: str) -> list[Finding]:
    found = examine(replace(WELL, environment={"PATH": "/usr/bin", **environment})).findings
    return [finding for finding in found if finding.name in environment]


def test_a_machine_that_is_well_has_nothing_but_ok() -> None:
    diagnosis = examine(WELL)
    assert diagnosis.ok
    assert {finding.severity for finding in diagnosis.findings} == {"ok"}
    assert [finding.name for finding in diagnosis.findings] == [
        "torch", "triton", "omegaconf", "hydra-core", "huggingface_hub", "transformers",
        "device", "C compiler", "Hub", "cache", "packaged files", "Hydra plugin",
    ]  # fmt: skip


def test_torch_below_the_declared_minimum_is_an_error() -> None:
    assert one(versions=without(torch="2.8.0")) == Finding(
        name="torch", severity="error", found="2.8.0", expected=">=2.9", cure="pip install 'torch>=2.9'"
    )


@pytest.mark.parametrize(
    ("name", "version"), [("hydra-core", "1.2.0"), ("omegaconf", "2.2.3"), ("huggingface_hub", "1.9")]
)
def test_a_requirement_outside_its_range_is_an_error(name: str, version: str) -> None:
    found = one(versions={**VERSIONS, name: version})
    assert (found.name, found.severity, found.found) == (name, "error", version)


def test_a_requirement_that_is_missing_is_an_error() -> None:
    found = one(versions=without(omegaconf=None))
    assert (found.name, found.severity, found.found) == ("omegaconf", "error", "not installed")


def test_an_extra_outside_its_range_is_a_warning_and_a_missing_one_is_nothing() -> None:
    found = one(versions=without(transformers="5.0.0"))
    assert (found.name, found.severity, found.cure) == ("transformers", "warn", "pip install 'transformers<6,>=5.24'")
    assert bad(versions=without(transformers=None)) == []


def test_a_development_build_of_torch_is_inside_the_range() -> None:
    assert bad(versions=without(torch="2.13.0.dev20260101+cu128")) == []


def test_kerncfg_that_is_not_installed_declares_nothing() -> None:
    found = one(requires=None)
    assert (found.name, found.severity) == ("kerncfg", "warn")


def test_kernels_that_transformers_does_not_take_is_a_warning() -> None:
    found = one(versions=without(kernels="0.17.2"))
    assert (found.name, found.severity) == ("kernels with transformers", "warn")
    assert found.found == "kernels 0.17.2, which transformers 5.24.0 takes for not installed"
    assert found.expected == ">=0.18.2,<0.19.0"
    assert bad(versions=without(kernels="0.18.3")) == []
    assert bad(versions=without(kernels="0.17.2"), accepts=None) == []


def test_a_capability_below_seven_is_an_error() -> None:
    found = one(target=target("cuda", capability="6.1"))
    assert (found.name, found.severity, found.found) == ("device", "error", "cuda, capability 6.1")
    assert found.expected == "capability 7.0 or newer"
    assert bad(target=target("cuda", capability="7.0")) == []
    assert bad(target=target("cuda", capability="10.0")) == []


def test_torch_that_cannot_be_imported_is_an_error() -> None:
    found = one(target=None, failure="OSError: libcudart.so.12: cannot open shared object file")
    assert (found.name, found.severity) == ("torch", "error")
    assert found.found.startswith("OSError: libcudart.so.12")


CPU = {"target": target("cpu", capability=None), "versions": {**VERSIONS, "torch": "2.13.0+cpu"}}


@pytest.mark.parametrize(
    ("device", "severity", "found", "expected"),
    [
        ("cuda", "error", "an NVIDIA device, and torch 2.13.0+cpu, built for the CPU only", "a build for CUDA"),
        ("rocm", "error", "an AMD device, and torch 2.13.0+cpu, built for the CPU only", "a build for ROCm"),
        ("xpu", "warn", "an Intel device, and torch 2.13.0+cpu, built for the CPU only", "a build for XPU"),
    ],
)
def test_a_device_that_torch_is_not_built_for(device: str, severity: str, found: str, expected: str) -> None:
    made = one(**CPU, builds={}, devices=frozenset({device}))
    assert (made.name, made.severity, made.found, made.expected) == ("device support", severity, found, expected)
    assert made.cure is not None and "https://pytorch.org/get-started/locally" in made.cure


def test_a_build_for_another_maker_is_named() -> None:
    made = one(**CPU, devices=frozenset({"rocm"}))
    assert made.found == "an AMD device, and torch 2.13.0+cpu, built for CUDA 12.8"


def test_a_device_that_torch_does_not_find_is_a_matter_of_the_driver() -> None:
    made = one(**CPU, devices=frozenset({"cuda"}))
    assert (made.severity, made.expected) == ("error", "torch finds the device")
    assert made.cure is not None and "driver" in made.cure


def test_graphics_beside_the_accelerator_in_use_are_a_warning_only() -> None:
    assert one(devices=frozenset({"cuda", "xpu"})).severity == "warn"
    assert bad(devices=frozenset({"cuda", "rocm"}), builds={"cuda": "12.8", "rocm": "6.4"}) == []


def test_a_mac_is_not_asked_about_other_accelerators() -> None:
    assert bad(target=target("mps"), devices=frozenset(), builds={}, system="darwin") == []


def test_no_compiler_is_an_error_where_kernels_are_compiled() -> None:
    found = one(compiler=None)
    assert (found.name, found.severity, found.found) == ("C compiler", "error", "none of gcc, clang, cc on PATH")
    assert one(compiler=None, **{**CPU, "devices": frozenset()}).severity == "warn"


def test_a_compiler_that_is_named_and_not_there() -> None:
    found = one(compiler=None, environment={"CC": "icx"})
    assert (found.found, found.cure) == ("CC=icx, which is not there", "set CC to a compiler")


def test_triton_that_is_missing() -> None:
    missing = without(triton=None)
    assert (one(versions=missing).name, one(versions=missing).severity) == ("triton", "error")
    found = [each for each in bad(versions=missing, requires=None) if each.name == "triton"]
    assert [(each.severity, each.found, each.cure) for each in found] == [
        ("error", "not installed", "pip install triton")
    ]
    assert [each.name for each in bad(versions=missing, requires=None, system="darwin")] == ["kerncfg"]


@pytest.mark.parametrize(
    ("name", "value", "severity", "found"),
    [
        ("USE_HUB_KERNELS", "yes", "ok", "yes: Hub kernels are on"),
        ("USE_HUB_KERNELS", "0", "warn", "0: Hub kernels are switched off, local and bundled ones are not"),
        ("USE_HUB_KERNELS", "ture", "warn", "ture: Hub kernels are switched off, local and bundled ones are not"),
        ("DISABLE_KERNEL_MAPPING", "1", "warn", "1: the `kernels` library swaps nothing; kerncfg does not read it"),
        ("DISABLE_KERNEL_MAPPING", "0", "ok", "0: off"),
        ("LOCAL_KERNELS", "org/a=/", "warn", "org/a=/: folders take the place of these repositories"),
        ("LOCAL_KERNELS", "org/a=/nowhere", "warn", "org/a=/nowhere: there is no folder /nowhere"),
        ("LOCAL_KERNELS", "/nowhere", "warn", "/nowhere: there is no folder /nowhere"),
        ("KERNELS_CACHE", "/cache", "ok", "/cache: the cache of kernels"),
        ("HF_HOME", "/hf", "ok", "/hf: the home of the Hub's files"),
        ("HF_HUB_CACHE", "/hub", "ok", "/hub: the cache of the Hub"),
        ("HF_HUB_OFFLINE", "1", "warn", "1: nothing is asked of the Hub, only the cache is used"),
        ("HF_ENDPOINT", "https://hub.acme.com:8443/hf", "ok", "https://hub.acme.com:8443/hf: the Hub is asked there"),
        ("HF_ENDPOINT", "hub.acme.com", "error", "no web address"),
        ("TRITON_INTERPRET", "1", "warn", "1: Triton kernels are interpreted, for tests: very slow"),
    ],
)  # fmt: skip
def test_a_variable_that_is_set_says_what_it_does(name: str, value: str, severity: str, found: str) -> None:
    (made,) = flags(**{name: value})
    assert (made.severity, made.found) == (severity, found)


def test_a_value_that_is_neither_on_nor_off_names_what_is_on() -> None:
    assert flags(USE_HUB_KERNELS="ture")[0].expected == "1, ON, YES or TRUE; anything else is off"


def test_a_secret_is_never_shown() -> None:
    environment = {"HF_TOKEN": "hf_very_secret", "HF_ENDPOINT": "https://me:hf_very_secret@hub.acme.com"}
    found = flags(**environment)
    assert [(each.name, each.severity) for each in found] == [("HF_ENDPOINT", "ok"), ("HF_TOKEN", "ok")]
    assert "very_secret" not in json.dumps(examine(replace(WELL, environment=environment)).to_dict())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("USE_HUB_KERNAL", "USE_HUB_KERNELS"),
        ("KERNEL_CACHE", "KERNELS_CACHE"),
        ("DISABLE_KERNELS_MAPPING", "DISABLE_KERNEL_MAPPING"),
        ("HF_OFFLINE", "HF_HUB_OFFLINE"),
        ("hf_home", "HF_HOME"),
    ],
)
def test_a_variable_that_is_nearly_one_of_them_asks_which_was_meant(name: str, meant: str) -> None:
    (made,) = flags(**{name: "1"})
    assert (made.severity, made.cure) == ("warn", f"did you mean {meant}?")


def test_a_variable_with_our_prefix_that_is_not_read() -> None:
    (made,) = flags(KERNCFG_STRICT="1")
    assert (made.severity, made.found) == ("warn", "is set, and kerncfg does not read it")
    assert made.cure == "say policy=strict"


def test_a_folder_of_ours_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (made,) = flags(KERNCFG_CACHE=str(tmp_path / "file"))
    assert (made.severity, made.cure) == ("error", "name a folder, or unset KERNCFG_CACHE")
    for place in (tmp_path, tmp_path / "later"):
        (made,) = flags(KERNCFG_CACHE=str(place))
        assert (made.severity, made.found) == ("ok", f"{place}: the folder of what kerncfg keeps between runs")


OTHERS = (
    "HF_TOKEN_PATH HF_XET_CACHE HF_ASSETS_CACHE TRANSFORMERS_OFFLINE HF_DATASETS_OFFLINE "
    "HF_DATASETS_CACHE HF_MODULES_CACHE HF_HUB_DISABLE_XET HF_DEBUG TRITON_CACHE_DIR TRITON_HOME "
    "HF_INFERENCE_ENDPOINT HF_EVALUATE_OFFLINE HOME GH_TOKEN NPM_TOKEN HF_HUB_ENABLE_HF_TRANSFER PATH CC "
    "CUDA_HOME ROCM_HOME "
)


@pytest.mark.parametrize("name", OTHERS.split())
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert flags(**{name: "1"}) == []


def test_a_variable_that_is_empty_is_not_set() -> None:
    assert flags(**dict.fromkeys(FLAGS, "")) == []


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, "https://huggingface.co: would be asked without a token; not tried"),
        ({"HF_TOKEN": "hf_very_secret"}, "https://huggingface.co: would be asked with a token; not tried"),
        (
            {"HF_ENDPOINT": "https://me:hf_very_secret@hub.acme.com/"},
            "https://hub.acme.com: would be asked without a token; not tried",
        ),
        ({"TRANSFORMERS_OFFLINE": "1"}, "https://huggingface.co: not asked, only the cache is used"),
    ],
)
def test_where_the_hub_is_and_whether_it_is_asked(said: dict[str, str], found: str) -> None:
    facts = replace(WELL, hub=Settings.read({"HF_HOME": "/nowhere", **said}))
    assert [each.found for each in examine(facts).findings if each.name == "Hub"] == [found]


def test_what_two_extras_ask_for_alike_is_told_once() -> None:
    twice = (*REQUIRES, 'transformers<6,>=5.24; extra == "dev"', 'transformers<5.23; extra == "old"')
    found = [each.expected for each in examine(replace(WELL, requires=twice)).findings if each.name == "transformers"]
    assert found == ["<6,>=5.24", "<5.23"]


def test_a_hub_that_is_not_asked_and_a_cache_without_kernels() -> None:
    offline = Settings.read({"HF_HUB_OFFLINE": "1", "HF_HOME": "/nowhere"})
    found = one(hub=offline, cache=replace(WELL.cache, kernels=0))
    assert (found.severity, found.found.endswith("it holds no kernels")) == ("warn", True)
    assert found.cure is not None and "kerncfg fetch PLAN" in found.cure


def test_the_cache() -> None:
    (found,) = (each for each in examine(WELL).findings if each.name == "cache")
    assert found.found == "/cache: 2 kernel repositories, 3.5 MB"
    new = replace(WELL.cache, exists=False)
    (found,) = (each for each in examine(replace(WELL, cache=new)).findings if each.name == "cache")
    assert (found.severity, found.found) == ("ok", "/cache: not there yet")
    assert one(cache=replace(WELL.cache, writable=False)).expected == "a folder you may write to"


def test_packaged_files_that_are_not_as_shipped() -> None:
    assert one(faults=("kernels/x.yaml:1:1: unknown key",)).severity == "error"
    assert one(presets=0).found == f"no presets in {conf()}"


def test_a_missing_hydra_plugin_is_a_warning() -> None:
    assert one(plugin=False).severity == "warn"


def test_a_diagnosis_with_an_error_is_not_ok() -> None:
    assert not examine(replace(WELL, compiler=None)).ok
    assert examine(replace(WELL, plugin=False)).ok


def test_every_probe_has_something_to_say_of_a_sick_machine() -> None:
    sick = replace(
        WELL,
        versions={**without(torch="2.1.0", triton=None, kernels="0.1")},
        target=target("cpu"),
        builds={},
        compiler=None,
        environment={"USE_HUB_KERNELS": "0"},
        hub=replace(WELL.hub, offline=True),
        cache=replace(WELL.cache, writable=False, kernels=0),
        presets=0,
        plugin=False,
    )
    silent = [probe for probe in PROBES if all(finding.severity == "ok" for finding in probe(sick))]
    assert [probe.__name__ for probe in silent] == ["_device"]
    assert all(finding.cure for finding in bad() + list(examine(sick).findings) if finding.severity == "error")


def test_the_range_of_kernels_is_read_from_the_source_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    file = tmp_path / "utils" / "import_utils.py"
    file.write_text('import os\nKERNELS_MIN_VERSION = "0.18.2"\nKERNELS_MAX_VERSION = "0.19.0"\n')
    assert accepts(tmp_path) == ">=0.18.2,<0.19.0"
    file.write_text('KERNELS_MIN_VERSION = "0.9.0"\n')
    assert accepts(tmp_path) == ">=0.9.0"
    file.write_text("\n")
    assert accepts(tmp_path) is None
    assert accepts(tmp_path / "elsewhere") is None
    assert accepts(None) is None


def test_accelerators_are_told_by_their_device_files(tmp_path: Path) -> None:
    assert accelerators(tmp_path) == frozenset()
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("nvidia-uvm", "nvidiactl"):  # these are there without a card
        (tmp_path / "dev" / name).touch()
    for name, vendor in (("renderD128", "0x1002"), ("renderD129", "0x8086")):
        (tmp_path / "dev/dri" / name).touch()
        (tmp_path / f"sys/class/drm/{name}/device").mkdir(parents=True)
        (tmp_path / f"sys/class/drm/{name}/device/vendor").write_text(f"{vendor}\n")
    assert accelerators(tmp_path) == {"xpu"}
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "dev/kfd").touch()
    assert accelerators(tmp_path) == {"cuda", "rocm", "xpu"}


def program(folder: Path, name: str) -> str:
    file = folder / name
    file.touch(mode=0o755)
    return str(file)


def test_the_compiler_is_cc_or_the_first_on_the_path(tmp_path: Path) -> None:
    path = {"PATH": str(tmp_path)}
    assert compiler(path) is None
    cc = program(tmp_path, "cc")
    assert compiler(path) == cc
    gcc, own = program(tmp_path, "gcc"), program(tmp_path, "mycc")
    assert compiler(path) == gcc
    assert compiler({**path, "CC": "mycc -O2"}) == own
    assert compiler({**path, "CC": "icx"}) is None


def test_the_cache_is_where_the_hub_library_would_put_it(tmp_path: Path) -> None:
    said = {"KERNELS_CACHE": "/k", "HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/o", "HF_HOME": "/h",
            "XDG_CACHE_HOME": "/x"}  # fmt: skip
    for expected in ("/k", "/c", "/o", "/h/hub", "/x/huggingface/hub"):
        assert cache(said).path == Path(expected)
        said.pop(next(iter(said)))
    assert cache({}).path == Path.home() / ".cache/huggingface/hub"


def test_the_cache_counts_kernels_only_and_each_file_once(tmp_path: Path) -> None:
    blob = tmp_path / "kernels--org--a/blobs/1"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 1000)
    (tmp_path / "kernels--org--a/link").symlink_to(blob)
    (tmp_path / "models--org--b").mkdir()
    (tmp_path / "models--org--b/weights").write_bytes(b"x" * 5000)
    found = cache({"KERNELS_CACHE": str(tmp_path)})
    assert found == Cache(path=tmp_path, exists=True, writable=True, kernels=1, size=1000)
    there = cache({"KERNELS_CACHE": str(tmp_path / "not/yet")})
    assert (there.exists, there.writable, there.kernels, there.size) == (False, True, 0, 0)


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    facts = gather({"PATH": os.environ["PATH"]}, tmp_path)
    assert facts.failure is None and facts.target is not None
    assert facts.versions["torch"] and facts.presets and facts.faults == ()
    assert facts.devices == frozenset()


def test_the_command_prints_versions_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("python 3.")
    assert any(re.match(r"ok +packaged files", line) for line in lines)
    assert code == int(any(line.startswith("error") for line in lines))


def test_json_is_in_the_form_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    data = json.loads(capsys.readouterr().out)
    validate(data, "doctor")
    assert code == int(not data["ok"])
    validate(examine(replace(WELL, target=None, failure="x")).to_dict(), "doctor")


def test_it_answers_without_torch_hydra_and_a_valid_preset(tmp_path: Path) -> None:
    """What it is for is an environment that is broken."""
    hide = "import sys; sys.modules.update(torch=None, hydra=None); from kerncfg.cli import main; "
    hide += "sys.exit(main(['doctor']))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", hide], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error  torch" in done.stdout and "error  packaged files" in done.stdout
    assert done.stderr == ""
