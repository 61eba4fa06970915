from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.compiler.normalise import normalise
from kerncfg.documents.config import Candidate, Conditions, Config, KernelRef, Match, Origin, Row
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError, Issue
from tests.builders import (
    ARGUMENT,
    INFERENCE,
    A,
    B,
    C,
    D,
    cells,
    config,
    document,
    file,
    origins,
    override,
    preset,
)


def every(*texts: str) -> dict[str, list[str]]:
    return {mode.value: list(texts) for mode in Mode}


def only(found: Config, device: str = "cuda") -> Candidate:
    """Give the one candidate of the row N for inference."""
    (candidate,) = found.rows["N"].at(device)[INFERENCE]
    return candidate


def row(said: Any, inherited: Any = None, **nodes: Any) -> Row:
    return config({"N": said}, {"N": inherited} if inherited else {}, **nodes).rows["N"]


def faults(data: dict[str, Any], **keywords: Any) -> list[Issue]:
    with pytest.raises(ConfigError) as caught:
        normalise(data, **keywords)
    return caught.value.issues


# What a row says by itself


@pytest.mark.parametrize(
    "said",
    [
        A,
        [A],
        {"kernel": A},
        {"any": A},
        {"any": [A]},
        {"any": {"kernel": A}},
        {"any": {"kernel": "kernels-community/a:A", "version": 1}},
        {"any": {"kernel": "kernels-community/a:A", "revision": "v1"}},
        {"any": dict.fromkeys(["inference", "training", "inference_compile", "training_compile"], A)},
    ],
    ids=str,
)
def test_one_kernel_for_everything_has_many_spellings(said: Any) -> None:
    assert config({"N": said}) == config({"N": A})
    assert cells(config({"N": said}), "N", "cpu") == every(A)


@pytest.mark.parametrize("said", [None, "", "original", {"kernel": None}, {"any": [None]}, {"any": ""}], ids=str)
def test_off_has_many_spellings(said: Any) -> None:
    assert cells(config({"N": said}), "N") == every("original")


def test_a_value_without_a_device_says_every_device() -> None:
    found = config({"N": A})
    assert cells(found, "N", "cuda") == cells(found, "N", "npu") == every(A)


def test_a_device_without_a_value_has_nothing() -> None:
    assert cells(config({"N": {"cuda": A}}), "N", "cpu") == {}


def test_any_stands_for_the_devices_without_a_key() -> None:
    found = config({"N": {"any": A, "cuda": B}})
    assert (cells(found, "N", "cuda"), cells(found, "N", "cpu")) == (every(B), every(A))


def test_a_kernel_beside_devices_stands_for_the_others() -> None:
    assert config({"N": {"kernel": A, "cuda": B}}) == config({"N": {"any": A, "cuda": B}})


def test_a_device_may_be_off_beside_a_kernel() -> None:
    found = config({"N": {"kernel": A, "cuda": None}})
    assert (cells(found, "N", "cuda"), cells(found, "N", "cpu")) == (every("original"), every(A))


def test_metal_is_another_word_for_mps() -> None:
    assert cells(config({"N": {"metal": A}}), "N", "mps") == every(A)


def test_a_list_keeps_its_order() -> None:
    assert cells(config({"N": [B, A, None, C]}), "N") == every(B, A, "original", C)


def test_what_a_list_says_twice_stands_once() -> None:
    assert cells(config({"N": [A, B, A]}), "N") == every(A, B)


def test_a_mode_map_says_only_its_modes() -> None:
    found = config({"N": {"cuda": {"inference": A, "training_compile": [B, C]}}})
    assert cells(found, "N") == {"inference": [A], "training_compile": [B, C]}


def test_modes_of_one_device_complete_those_of_any() -> None:
    found = config({"N": {"any": A, "cuda": {"training": B}}})
    assert cells(found, "N") == {**every(A), "training": [B]}


def test_the_order_of_names_does_not_matter() -> None:
    assert config({"M": A, "N": B}) == config({"N": B, "M": A})
    assert list(config({"N": B, "M": A}, {"L": C}).rows) == ["L", "M", "N"]


def test_the_order_of_devices_does_not_matter() -> None:
    one, other = {"cuda": A, "rocm": B, "any": C}, {"any": C, "rocm": B, "cuda": A}
    assert list(config({"N": one}).rows["N"].cells) == list(config({"N": other}).rows["N"].cells)


def test_a_row_without_candidates_is_still_a_row_of_ones_own() -> None:
    assert row({"fallback": "error"}) == Row(name="N", cells={}, fallback="error", own=True)


# Conditions


@pytest.mark.parametrize(
    ("said", "conditions"),
    [
        ({"capability": "<9.0, >=8.0"}, Conditions(capability=">=8.0,<9.0")),
        ({"torch": ">=2.9"}, Conditions(torch=">=2.9")),
        ({"dtype": "bfloat16"}, Conditions(dtype=("bfloat16",))),
        ({"dtype": ["bfloat16", "float16"]}, Conditions(dtype=("bfloat16", "float16"))),
        ({"when": {"config.hidden_act": "silu"}}, Conditions(when=(("config.hidden_act", ("silu",)),))),
        ({"when": {"config": {"hidden_act": "silu"}}}, Conditions(when=(("config.hidden_act", ("silu",)),))),
        (
            {"when": {"eps": [1e-6, 1e-5], "bias": None}},
            Conditions(when=(("bias", (None,)), ("eps", (1e-6, 1e-5)))),
        ),
    ],
    ids=str,
)
def test_a_condition_of_a_candidate(said: Any, conditions: Conditions) -> None:
    assert only(config({"N": {"cuda": {"kernel": A, **said}}})).conditions == conditions


def test_conditions_beside_devices_hold_for_each_kernel_below() -> None:
    found = config({"N": {"capability": ">=8.0", "cuda": [A, {"kernel": B}], "rocm": {"training": C}}}).rows["N"]
    assert {each.conditions for each in found.candidates()} == {Conditions(capability=">=8.0")}


def test_a_candidates_own_condition_wins_over_that_of_its_row() -> None:
    said = {"capability": ">=8.0", "torch": ">=2.9", "cuda": {"kernel": A, "capability": ">=9.0"}}
    assert only(config({"N": said})).conditions == Conditions(capability=">=9.0", torch=">=2.9")


def test_conditions_of_a_row_do_not_limit_the_original() -> None:
    assert only(config({"N": {"capability": ">=8.0", "cuda": "original"}})).conditions == Conditions()


def test_an_original_may_have_conditions_of_its_own() -> None:
    said = {"cuda": {"kernel": "original", "capability": "<8.0"}}
    assert only(config({"N": said})).conditions == Conditions(capability="<8.0")


# Inheriting: per name, device and mode


@pytest.mark.parametrize(
    ("own", "inherited", "device", "expected"),
    [
        pytest.param(A, B, "cuda", every(A), id="a value replaces what was inherited"),
        pytest.param(A, {"cuda": B}, "cuda", every(A), id="a value without a device says every device"),
        pytest.param({"rocm": A}, {"cuda": B}, "cuda", every(f"({B})"), id="another device is inherited"),
        pytest.param({"cuda": A}, B, "rocm", every(f"({B})"), id="any is inherited by another device"),
        pytest.param({"cuda": A}, B, "cuda", every(A), id="a device replaces an inherited any"),
        pytest.param(
            {"cuda": {"inference": A}},
            B,
            "cuda",
            {**every(f"({B})"), "inference": [A]},
            id="a mode replaces that mode alone",
        ),
        pytest.param(
            {"cuda": A},
            {"cuda": {"inference": B}},
            "cuda",
            every(A),
            id="a value without a mode says all modes",
        ),
        pytest.param(
            {"cuda": {"training": A}},
            {"cuda": {"inference": B, "training": C}},
            "cuda",
            {"inference": [f"({B})"], "training": [A]},
            id="modes not said are inherited",
        ),
        pytest.param(
            {"any": {"training": A}},
            {"cuda": B},
            "cuda",
            {**every(f"({B})"), "training": [A]},
            id="a mode of any replaces that mode of every device",
        ),
        pytest.param(
            {"any": A, "cuda": "inherited"},
            {"cuda": B},
            "cuda",
            every(A),
            id="without its line the device would have what any says",
        ),
        pytest.param(None, B, "cuda", every("original"), id="off replaces what was inherited"),
        pytest.param({"cuda": None}, B, "cpu", every(f"({B})"), id="off for one device alone"),
        pytest.param([A, "inherited"], B, "cuda", every(A, f"({B})"), id="own first, inherited next"),
        pytest.param(["inherited", A], [B, C], "cuda", every(f"({B})", f"({C})", A), id="inherited first"),
        pytest.param(["inherited", A, "inherited"], B, "cuda", every(f"({B})", A), id="inherited twice"),
        pytest.param({"cuda": [A, "inherited"]}, B, "cuda", every(A, f"({B})"), id="a device's list, inherited any"),
        pytest.param([A, "inherited"], {"cuda": B}, "cuda", every(A, f"({B})"), id="a list of any, inherited device"),
        pytest.param({"any": A, "cuda": [B, "inherited"]}, {"cuda": C}, "cuda", every(B, A), id="a list over any"),
        pytest.param(
            {"cuda": {"inference": [A, "inherited"]}},
            {"cuda": {"training": B}},
            "cuda",
            {"inference": [A, f"({B})"], "training": [f"({B})"]},
            id="a mode inherits from the mode that serves it",
        ),
        pytest.param(
            {"cuda": {"training": [A, "inherited"]}},
            {"cuda": {"inference": B}},
            "cuda",
            {"inference": [f"({B})"], "training": [A]},
            id="a mode does not inherit from one that cannot serve it",
        ),
        pytest.param([A, "inherited"], None, "cuda", every(A), id="nothing to inherit"),
        pytest.param("inherited", B, "cuda", every(f"({B})"), id="a row that only says inherited"),
        pytest.param({"kernel": "inherited"}, B, "cuda", every(f"({B})"), id="a map that only says inherited"),
        pytest.param({"inherit_mapping": False, "rocm": A}, B, "cuda", {}, id="a row that inherits nothing"),
        pytest.param({"inherit_mapping": True, "rocm": A}, B, "cuda", every(f"({B})"), id="a row that inherits"),
        pytest.param(
            {"inherit_mapping": False, "cuda": [A, "inherited"]},
            B,
            "cuda",
            every(A),
            id="inherited in a row that inherits nothing",
        ),
    ],
)
def test_what_is_said_replaces_what_is_inherited(
    own: Any, inherited: Any, device: str, expected: dict[str, list[str]]
) -> None:
    assert cells(config({"N": own}, {"N": inherited} if inherited else {}), "N", device) == expected


def test_a_device_that_says_the_same_as_any_needs_no_cell() -> None:
    assert list(row({"any": A, "cuda": A}).cells) == ["any"]


def test_an_inherited_row_stays_beside_ones_own() -> None:
    found = config({"M": A}, {"N": B})
    assert (found.rows["M"].own, found.rows["N"].own) == (True, False)


def test_a_row_that_only_says_inherited_is_not_ones_own() -> None:
    assert not row("inherited", A).own


def test_the_whole_mapping_may_inherit_nothing() -> None:
    assert list(config({"inherit_mapping": False, "M": [A, "inherited"]}, {"N": B, "M": C}).rows) == ["M"]


def test_reserved_words_are_no_names() -> None:
    assert list(config({"inherit_mapping": True, "defaults": ["none"], "N": A}).rows) == ["N"]


def test_an_inherited_row_without_candidates_is_no_row() -> None:
    assert config({}, {"N": {"match": {"class": "X"}}}).rows == {}


MATCH = {"class": "*Norm", "path": "model.**"}


@pytest.mark.parametrize(
    ("own", "inherited", "expected"),
    [
        ({"any": A, "match": MATCH}, B, Match(class_="*Norm", path="model.**")),
        ({"cuda": A}, {"any": B, "match": MATCH}, Match(class_="*Norm", path="model.**")),
        ({"any": A, "match": {"name": "X"}}, {"any": B, "match": MATCH}, Match(name="X")),
        ({"cuda": A, "inherit_mapping": False}, {"any": B, "match": MATCH}, None),
        (A, B, None),
    ],
)
def test_a_match_is_inherited_whole(own: Any, inherited: Any, expected: Match | None) -> None:
    assert row(own, inherited).match == expected


@pytest.mark.parametrize(
    ("own", "inherited", "expected"),
    [
        ({"any": A, "exclude": ["a.*", "b"]}, B, ("a.*", "b")),
        (A, {"any": B, "exclude": ["a.*"]}, ("a.*",)),
        ({"any": A, "exclude": []}, {"any": B, "exclude": ["a.*"]}, ()),
        ({"any": A, "exclude": ["b"]}, {"any": B, "exclude": ["a.*"]}, ("b",)),
        (A, B, ()),
    ],
)
def test_an_exclusion_is_inherited_whole(own: Any, inherited: Any, expected: tuple[str, ...]) -> None:
    assert row(own, inherited).exclude == expected


@pytest.mark.parametrize(
    ("own", "inherited", "policy", "expected"),
    [
        (A, B, "original", "original"),
        (A, B, "error", "error"),
        ({"any": A, "fallback": "original"}, B, "error", "original"),
        (A, {"any": B, "fallback": "error"}, "original", "error"),
        ({"any": A, "fallback": "original"}, {"any": B, "fallback": "error"}, "error", "original"),
    ],
)
def test_the_nearest_fallback_counts(own: Any, inherited: Any, policy: str, expected: str) -> None:
    assert row(own, inherited, policy={"fallback": policy}).fallback == expected


def test_enabled_policy_and_trust_are_taken_over() -> None:
    data = document(
        enabled=False,
        policy={"strict": True, "require_pin": True},
        trust={"publishers": {"acme": True, "evil": False}, "repositories": {"o/r": True, "o/s": False}},
    )
    found = normalise(data)
    assert found.enabled is False
    assert (found.policy.strict, found.policy.require_pin) == (True, True)
    assert found.policy.verify == {"on_fail": "report"}
    assert found.trust.publishers == {"acme"}
    assert found.trust.repositories == {"o/r"}


# B01 and B02


def test_b01_every_device_keeps_its_row_in_any_order() -> None:
    for said in ({"cuda": A, "rocm": B}, {"rocm": B, "cuda": A}):
        found = config({"N": said})
        assert [cells(found, "N", device) for device in ("cuda", "rocm", "cpu")] == [every(A), every(B), {}]


def test_b01_the_document_is_left_as_it_was() -> None:
    data = document({"N": {"capability": ">=8.0", "cuda": [A, "inherited"], "when": {"a": {"b": 1}}}}, {"N": B})
    before = repr(data)
    normalise(data)
    assert repr(data) == before


def test_b02_a_name_is_chosen_inherited_or_off() -> None:
    found = config({"L": A, "N": None}, {"L": B, "M": C, "N": D})
    assert [cells(found, name) for name in "LMN"] == [every(A), every(f"({C})"), every("original")]


def test_b02_one_kernel_alone() -> None:
    assert list(config({"inherit_mapping": False, "L": A}, {"L": B, "M": C}).rows) == ["L"]


# Where kernels in folders are


def at(data: dict[str, Any], everywhere: Origin, base: Path | None = None, **places: Origin) -> Config:
    said = {key.replace("__", "."): origin for key, origin in places.items()}
    return normalise(data, origins=origins(data, everywhere, said), base=base)


@pytest.mark.parametrize("cwd", ["work", "elsewhere"])
@pytest.mark.parametrize(
    ("origin", "text", "expected"),
    [
        (file("{tmp}/conf/kernels/mine.yaml"), "./norms:A", "{tmp}/conf/kernels/norms"),
        (file("{tmp}/conf/kernels/mine.yaml"), "../../norms:A", "{tmp}/norms"),
        (file("conf/mine.yaml"), "./norms:A", "{cwd}/conf/norms"),
        (override("kernels.N=./norms:A"), "./norms:A", "{cwd}/norms"),
        (ARGUMENT, "./norms:A", "{cwd}/norms"),
        (ARGUMENT, "~/norms:A", "/home/me/norms"),
        (file("{tmp}/conf/mine.yaml"), "/abs/norms:A", "/abs/norms"),
        (file("{tmp}/conf/mine.yaml"), "C:\\norms:A", "C:\\norms"),
    ],
    ids=str,
)
def test_a_folder_starts_where_it_was_said(
    origin: Origin, text: str, expected: str, cwd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / cwd
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", "/home/me")
    place = Origin(kind=origin.kind, place=origin.place.format(tmp=tmp_path))
    found = at(document({"N": text}), place)
    assert only(found).ref.location == expected.format(tmp=tmp_path, cwd=here)


def test_a_folder_said_by_override_starts_at_the_base(tmp_path: Path) -> None:
    found = at(document({"N": "./norms:A"}), override("kernels.N=./norms:A"), base=tmp_path)
    assert only(found).ref.location == str(tmp_path / "norms")


def test_a_folder_starts_at_the_file_of_its_own_key(tmp_path: Path) -> None:
    data = document({"N": {"cuda": {"kernel": "./norms:A", "capability": ">=8.0"}}})
    kernel = file(str(tmp_path / "norms.yaml"))
    found = at(data, override("kernels.N.cuda.capability='>=8.0'"), kernels__N__cuda__kernel=kernel)
    assert only(found).ref.location == str(tmp_path / "norms")


def test_two_spellings_of_one_folder_are_one_kernel(tmp_path: Path) -> None:
    data = document({"M": "./norms:A", "N": f"{tmp_path}/x/../norms/:A"})
    rows = normalise(data, base=tmp_path).rows
    assert rows["M"].references("cpu") == rows["N"].references("cpu")


# Whose code may run


@pytest.mark.parametrize(
    ("origin", "consents"),
    [(file(), True), (override("kernels.N=…"), True), (ARGUMENT, True), (preset(), False)],
    ids=str,
)
@pytest.mark.parametrize(("text", "place"), [("/norms:A", "/norms"), ("python:pkg.mod:A", "python:pkg.mod")])
def test_naming_local_code_is_consent_but_not_in_a_preset(
    text: str, place: str, origin: Origin, consents: bool
) -> None:
    assert at(document({"N": text}), origin).trust.local == ({place} if consents else set())


def test_without_origins_naming_local_code_is_consent() -> None:
    assert config({"N": "python:pkg.mod:A"}, {"M": "/norms:A"}).trust.local == {"python:pkg.mod", "/norms"}


def test_naming_code_in_a_row_that_is_replaced_is_no_consent() -> None:
    assert config({"N": A}, {"N": "python:pkg.mod:A"}).trust.local == set()


def test_changing_a_presets_condition_is_no_consent_to_its_code() -> None:
    data = document({"N": {"cuda": {"kernel": "python:pkg.mod:A", "capability": ">=8.0"}}})
    mine = override("kernels.N.cuda.capability='>=8.0'")
    assert at(data, mine, kernels__N__cuda__kernel=preset()).trust.local == set()


def test_naming_the_code_in_a_presets_row_is_consent() -> None:
    data = document({"N": {"cuda": {"kernel": "python:pkg.mod:A", "capability": ">=8.0"}}})
    mine = override("kernels.N.cuda.kernel=python:pkg.mod:A")
    assert at(data, preset(), kernels__N__cuda__kernel=mine).trust.local == {"python:pkg.mod"}


WHY = "and only a local file or an override can grant trust"


@pytest.mark.parametrize(
    ("origin", "counts", "why"),
    [
        (file("conf/trust/mine.yaml", 3), True, ""),
        (file("conf/experiment/mine.yaml", 3), True, ""),
        (override("trust.publishers.acme=true"), True, ""),
        (preset("trust/default.yaml", 3), True, ""),
        (preset("experiment/big.yaml", 3), False, f"it comes from preset: experiment/big.yaml:3, {WHY}"),
        (preset("trust.yaml"), False, f"it comes from preset: trust.yaml, {WHY}"),
        (ARGUMENT, False, f"it comes from argument, {WHY}"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("said", "path"),
    [
        ({"publishers": {"acme": True}}, "trust.publishers.acme"),
        ({"repositories": {"acme/norms": True}}, "trust.repositories.acme/norms"),
        ({"allow_all_kernels": True}, "trust.allow_all_kernels"),
    ],
)
def test_trust_counts_only_from_the_person_who_runs_it(
    said: Any, path: str, origin: Origin, counts: bool, why: str
) -> None:
    data = document(trust={"publishers": {}, **said})
    found = at(data, origin)
    assert found.trust.to_dict() == (data["trust"] if counts else document(trust={"publishers": {}})["trust"])
    assert found.notes == (() if counts else (f"{path} is ignored: {why}",))


def test_distrust_said_anywhere_is_no_reason_for_a_note() -> None:
    assert at(document(trust={"publishers": {"acme": False}}), ARGUMENT).notes == ()


CONSENT = {"cuda": {"kernel": A, "trust_remote_code": True}}


@pytest.mark.parametrize(
    ("origin", "counts"),
    [(file(), True), (override("…"), True), (preset(), False), (ARGUMENT, False)],
    ids=str,
)
def test_consent_beside_a_kernel_counts_only_from_the_person_who_runs_it(origin: Origin, counts: bool) -> None:
    data = document({"N": CONSENT}, trust={"publishers": {}})
    found = at(data, origin)
    note = f"kernels.N.cuda.trust_remote_code is ignored: it comes from {origin}, {WHY}"
    assert only(found).trust_remote_code is counts
    assert found.notes == (() if counts else (note,))


def test_changing_a_presets_kernel_does_not_make_its_consent_ones_own() -> None:
    found = at(
        document({"N": CONSENT}, trust={"publishers": {}}),
        override(f"kernels.N.cuda.kernel={A}"),
        kernels__N__cuda__trust_remote_code=preset(),
    )
    assert not only(found).trust_remote_code


def test_consent_of_ones_own_counts_for_a_presets_kernel() -> None:
    found = at(
        document({"N": CONSENT}),
        preset(),
        trust=file(),
        kernels__N__cuda__trust_remote_code=override("kernels.N.cuda.trust_remote_code=true"),
    )
    assert only(found).trust_remote_code


def test_consent_beside_devices_is_where_the_row_says_it() -> None:
    data = document({"N": {"trust_remote_code": True, "cuda": A}}, trust={"publishers": {}})
    assert only(at(data, preset(), kernels__N__trust_remote_code=file())).trust_remote_code
    assert not only(at(data, file(), kernels__N__trust_remote_code=preset())).trust_remote_code


# Origins and notes


def test_a_candidate_knows_where_its_kernel_was_said() -> None:
    data = document({"M": A, "N": {"cuda": [A, {"kernel": B}]}}, {"L": C})
    found = at(
        data,
        file("a.yaml", 1),
        kernels__M=file("m.yaml", 2),
        kernels__N__cuda__1__kernel=override("kernels.N.cuda.1.kernel=b"),
        inherited__L=preset("kernels/default.yaml", 9),
    )
    places = {str(each.ref): str(each.origin) for row in found.rows.values() for each in row.candidates()}
    assert places == {
        A: "a.yaml:1",
        B: "override: kernels.N.cuda.1.kernel=b",
        C: "preset: kernels/default.yaml:9",
    }
    assert str(found.rows["M"].origin) == "m.yaml:2"
    assert str(found.rows["L"].origin) == "preset: kernels/default.yaml:9"


def test_what_a_map_took_the_place_of_is_noted() -> None:
    data = document({"M": {"cuda": A}, "N": {"cpu": B}})
    text = Origin(kind="preset", place="kernels/liger.yaml", line=4, text=C)
    lost = ((("kernels", "M"), text), (("kernels", "N", "cpu"), file("mine.yaml", 7)))
    assert normalise(data, origins=origins(data, file(), lost=lost)).notes == (
        f"kernels.M: a map takes the place of '{C}', said at preset: kernels/liger.yaml:4",
        "kernels.N.cpu: a map takes the place of a list, said at mine.yaml:7",
    )


# Faults


@pytest.mark.parametrize(
    ("said", "path", "message", "hint"),
    [
        ("org/a:", "N", "'org/a:': nothing after the ':', expected a kernel name", "write org/a:Name"),
        (["org/a:A", "org/b"], "N.1", "'org/b': no kernel name, expected one after a ':'", "write org/b:Name"),
        (
            {"cuda": {"kernel": "org/b@v2"}},
            "N.cuda.kernel",
            "'org/b@v2': no kernel name, expected one after a ':'",
            "write org/b@v2:Name",
        ),
        (
            {"kernel": "org/b@v2"},
            "N.kernel",
            "'org/b@v2': no kernel name, expected one after a ':'",
            "write org/b@v2:Name",
        ),
        (
            {"cuda": {"kernel": A, "capability": "9.0"}},
            "N.cuda.capability",
            "'9.0' is no version range",
            "write comparisons such as >=2.0,<3.0 or ==9.0",
        ),
        (
            {"torch": "new", "cuda": {"training": A}},
            "N.torch",
            "'new' is no version range",
            "write comparisons such as >=2.0,<3.0 or ==9.0",
        ),
        (
            {"cpu": {"kernel": "org/a:A", "version": "3"}},
            "N.cpu.version",
            "'3' is no version range",
            "write comparisons such as >=2.0,<3.0 or ==9.0",
        ),
        (
            {"cpu": {"kernel": "org/a@v1:A", "revision": "v1"}},
            "N.cpu.revision",
            "'org/a@v1:A': more than one of '@', version and revision",
            "keep one of them",
        ),
        (
            {"cpu": {"kernel": None, "version": 3}},
            "N.cpu.version",
            "'original': only a Hub kernel has versions",
            "leave version and revision out",
        ),
        (
            {"version": 3, "cuda": "org/a:A"},
            "N.version",
            "'version' stands beside no kernel",
            "put it into the candidate it is for",
        ),
        ({"metal": A, "mps": B}, "N.mps", "'mps' is said twice in one row", "keep one of the two"),
        ({"kernel": A, "any": B}, "N.any", "'any' is said twice in one row", "keep one of the two"),
        (
            {"cpu": [A, {"kernel": "inherited", "dtype": "float16"}]},
            "N.cpu.1.dtype",
            "'dtype' stands beside 'inherited', which takes no conditions",
            "put it beside a kernel of your own",
        ),
        (
            {"cpu": {"kernel": A, "when": {"a.b": 1, "a": {"b": [2]}}}},
            "N.cpu.when.a.b",
            "'a.b' is said twice",
            "keep one of the two",
        ),
        (
            "~nobody-of-this-name/norms:A",
            "N",
            "'~nobody-of-this-name/norms': there is no such home folder",
            "write the folder in full",
        ),
    ],
)
def test_a_fault_says_where_and_how_to_mend_it(said: Any, path: str, message: str, hint: str) -> None:
    (issue,) = faults(document({"N": said}))
    assert (issue.path, issue.message, issue.hint) == (f"kernels.{path}", message, hint)


def test_all_faults_are_told_at_once() -> None:
    data = document(
        {"L": "a:b:c", "M": {"cuda": {"kernel": "https://x/a/b", "capability": "9", "torch": "2"}}},
        {"N": [A, "org/b"]},
    )
    assert [issue.path for issue in faults(data)] == [
        "kernels.L",
        "kernels.M.cuda.kernel",
        "kernels.M.cuda.capability",
        "kernels.M.cuda.torch",
        "inherited.N.1",
    ]


def test_a_fault_names_file_line_and_column() -> None:
    data = document({"N": {"cuda": {"kernel": A, "capability": "9.0"}}})
    place = Origin(kind="file", place="mine.yaml", line=4, column=17, text="9.0")
    (issue,) = faults(data, origins=origins(data, file("mine.yaml", 1), {"kernels.N.cuda.capability": place}))
    assert issue.where == "mine.yaml:4:17: kernels.N.cuda.capability"


def test_a_relative_folder_that_came_by_interpolation_is_refused() -> None:
    data = document({"N": "./norms:A"})
    place = Origin(kind="file", place="mine.yaml", line=2, text="${model.norms}")
    (issue,) = faults(data, origins=origins(data, file(), {"kernels.N": place}))
    assert issue.message == (
        "'./norms:A' is a relative folder that came by ${model.norms}, so no file says what it is relative to"
    )
    assert issue.hint == "write the folder here as well, or in full where it is first said"


@pytest.mark.parametrize("text", ["/norms:A", "~/norms:A", "python:p.q:A"])
def test_other_code_may_come_by_interpolation(text: str) -> None:
    data = document({"N": text})
    place = Origin(kind="file", place="mine.yaml", line=2, text="${model.norms}")
    assert only(at(data, file(), kernels__N=place)).ref.name == "A"


def test_a_reference_is_read_once_whatever_its_modes() -> None:
    assert len(faults(document({"N": "a:b:c"}))) == 1


# The way back


@pytest.mark.parametrize(
    ("own", "inherited"),
    [
        ({"N": A}, {}),
        ({"N": None}, {"N": A}),
        ({"N": [A, "inherited"]}, {"N": [B, C]}),
        ({"N": {"any": [A, "inherited"], "cuda": [B, "inherited"]}}, {"N": {"cuda": C, "any": D}}),
        ({"N": {"cuda": {"inference": A}}}, {"N": {"any": B, "rocm": C, "match": MATCH, "exclude": ["a"]}}),
        ({"N": {"inherit_mapping": False, "cuda": {"training": [A, None]}, "fallback": "error"}}, {"N": B}),
        ({"inherit_mapping": False, "N": {"exclude": ["a"], "match": MATCH}}, {"M": B}),
        (
            {
                "N": {
                    "cuda": {
                        "kernel": "org/a:A",
                        "version": 3,
                        "torch": ">=2.9",
                        "dtype": "float16",
                        "when": {"config": {"act": ["silu", None]}},
                        "trust_remote_code": True,
                    }
                }
            },
            {"M": "/norms:A", "L": "python:p.q:A"},
        ),
    ],
    ids=range(8),
)
def test_a_config_as_a_document_means_the_same(own: Any, inherited: Any) -> None:
    found = config(own, inherited)
    assert normalise(found.to_dict()) == found


def test_a_reference_in_a_row_is_a_kernel_ref() -> None:
    assert only(config({"N": A})).ref == KernelRef.parse(A)
