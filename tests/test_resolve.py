from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.policy import CHECKS, Request
from kerncfg.compiler.resolve import resolve
from kerncfg.documents.config import Candidate, Trust
from kerncfg.documents.lock import Build, Lock, Pin, Release
from kerncfg.documents.metadata import Metadata
from kerncfg.documents.plan import Bind, Keep, Kernel, ModePlan, Plan, Rejection
from kerncfg.documents.reference import KernelRef
from kerncfg.documents.target import Mode
from kerncfg.documents.variant import Variant
from kerncfg.errors import ResolutionError
from tests.builders import (
    INFERENCE,
    INFERENCE_COMPILE,
    TRAINING,
    TRAINING_COMPILE,
    A,
    B,
    C,
    D,
    chosen,
    config,
    document,
    file,
    locked,
    origins,
    override,
    plan,
    preset,
    request,
    step,
)

OFF = "kernels are switched off: enabled is false, needed true"
LEFT = "fallback: the original where no kernel is left"


def reasons(made: Plan, name: str = "N", mode: Mode = INFERENCE) -> list[str]:
    return [choice.reason for choice in step(made, name).modes[mode].choices]


def rejected(made: Plan, name: str = "N", mode: Mode = INFERENCE) -> list[tuple[str, str]]:
    return [(each.reference, each.reason) for each in step(made, name).modes[mode].rejected]


def from_file(kernels: dict[str, Any], **nodes: Any) -> Plan:
    """Resolve a document that stands in line 3 of a file."""
    data = document(kernels, **nodes)
    found = normalise(data, origins=origins(data, file("mine.yaml", 3)))
    return resolve(found, locked(found), request())


# Which kernel


@pytest.mark.parametrize("mode", Mode)
def test_one_kernel_for_all_serves_every_mode(mode: Mode) -> None:
    assert chosen(plan({"N": A}), mode=mode) == [A, "original"]


@pytest.mark.parametrize(
    ("said", "inference", "training", "inference_compile", "training_compile"),
    [
        ({"inference": A}, [A], [], [], []),
        ({"training": A}, [A], [A], [], []),
        ({"inference_compile": A}, [A], [], [A], []),
        ({"training_compile": A}, [A], [A], [A], [A]),
        ({"inference": A, "training": B}, [A, B], [B], [], []),
        ({"inference": A, "inference_compile": B}, [A, B], [], [B], []),
        ({"inference": A, "training_compile": B}, [A, B], [B], [B], [B]),
        ({"training": A, "inference_compile": B}, [B, A], [A], [B], []),
        ({"training": A, "training_compile": B}, [A, B], [A, B], [B], [B]),
        ({"inference_compile": A, "training_compile": B}, [A, B], [B], [A, B], [B]),
        (
            {"inference": A, "training": B, "inference_compile": C, "training_compile": D},
            [A, C, B, D],
            [B, D],
            [C, D],
            [D],
        ),
        ({"inference": [A, B], "training": [C, A]}, [A, B, C], [C, A], [], []),
    ],
    ids=str,
)
def test_who_serves_whom(
    said: dict[str, Any],
    inference: list[str],
    training: list[str],
    inference_compile: list[str],
    training_compile: list[str],
) -> None:
    made = plan({"N": {"cuda": said}})
    found = {mode: chosen(made, mode=mode) for mode in Mode}
    expected = dict(zip(Mode, (inference, training, inference_compile, training_compile), strict=True))
    assert found == {mode: [*kernels, "original"] for mode, kernels in expected.items()}


@pytest.mark.parametrize(
    ("said", "mode", "expected"),
    [
        ([A, B], INFERENCE, [A, B, "original"]),
        ([A, None, B], INFERENCE, [A, "original"]),
        (None, INFERENCE, ["original"]),
        ({"cuda": {"inference": None, "training": A}}, INFERENCE, ["original"]),
        ({"cuda": {"inference": A, "training": None}}, INFERENCE, [A, "original"]),
        ({"cuda": {"training": None}}, INFERENCE, ["original"]),
        ({"cuda": {"inference": A, "training": [None, B]}}, INFERENCE, [A, B, "original"]),
        ({"cuda": {"inference": A}}, TRAINING, ["original"]),
        ({"rocm": A}, INFERENCE, ["original"]),
    ],
    ids=str,
)
def test_a_written_original_stands_where_it_is_written(said: Any, mode: Mode, expected: list[str]) -> None:
    assert chosen(plan({"N": said}), mode=mode) == expected


@pytest.mark.parametrize(
    ("own", "inherited", "mode", "expected"),
    [
        ({"inference": A}, {"training": B}, INFERENCE, [A]),
        ({"inference": A}, {"training": B}, TRAINING, [B]),
        ({"inference_compile": A}, {"inference": B}, INFERENCE, [B, A]),
        ({"training_compile": A}, {"training": B}, INFERENCE, [B, A]),
        ({"inference": [A, "inherited"]}, {"training": B}, INFERENCE, [A, B]),
        ({"training_compile": A}, {"inference": B, "training": C}, INFERENCE, [B, C, A]),
    ],
    ids=str,
)
def test_what_one_said_for_a_mode_is_not_followed_by_what_was_inherited_for_another(
    own: Any, inherited: Any, mode: Mode, expected: list[str]
) -> None:
    made = plan({"N": {"cuda": own}}, {"N": {"cuda": inherited}})
    assert chosen(made, mode=mode) == [*expected, "original"]


def test_a_choice_names_commit_build_and_digest() -> None:
    found = config({"N": A})
    (ref,) = found.rows["N"].references("cuda")
    names = ("torch-cuda", "torch-universal", "torch-cpu")
    builds = tuple(Build(variant=Variant.parse(name), digest=f"digest of {name}") for name in names)
    lock = Lock(pins={ref: Pin.of(ref, *builds, commit="c0ffee")})
    choice = step(resolve(found, lock, request())).modes[TRAINING].choices[0]
    assert choice.kernel == Kernel(reference=ref, commit="c0ffee", variant="torch-cuda", digest="digest of torch-cuda")


def test_a_choice_keeps_the_conditions_that_only_a_module_can_answer() -> None:
    said = {"kernel": A, "capability": ">=8.0", "dtype": "float16", "when": {"bias": None}}
    choice = step(plan({"N": {"cuda": said}})).modes[INFERENCE].choices[0]
    assert choice.conditions == {"dtype": ["float16"], "when": {"bias": [None]}}


def test_a_step_has_the_rows_match_exclusions_and_fallback() -> None:
    said = {"any": A, "match": {"class": "*Norm"}, "exclude": ["a.*"], "fallback": "error"}
    found = step(plan({"N": said}))
    assert found.match is not None
    assert (found.match.to_dict(), found.exclude, found.fallback) == ({"class": "*Norm"}, ("a.*",), "error")


# Why that one


@pytest.mark.parametrize(
    ("own", "inherited", "mode", "expected"),
    [
        (A, None, INFERENCE, ["chosen for cuda", LEFT]),
        (None, A, INFERENCE, ["off, as the row says"]),
        ({"rocm": None}, A, INFERENCE, ["inherited for cuda", LEFT]),
        ([A, "inherited"], B, INFERENCE, ["chosen for cuda", "inherited for cuda", LEFT]),
        ("inherited", {"cuda": None}, INFERENCE, ["off, as inherited"]),
        (
            {"cuda": {"training": A}},
            None,
            INFERENCE,
            ["chosen for cuda, the row for training serves inference", LEFT],
        ),
        (
            {"cuda": {"inference": A}},
            None,
            TRAINING_COMPILE,
            ["the row names no kernel for training_compile on cuda"],
        ),
        ({"rocm": A}, None, INFERENCE, ["no row for cuda"]),
    ],
    ids=str,
)
def test_every_choice_has_its_reason(own: Any, inherited: Any, mode: Mode, expected: list[str]) -> None:
    rows = {"N": own} if own is not None or inherited is not None else {}
    assert reasons(plan(rows, {"N": inherited} if inherited else {}), mode=mode) == expected


def test_b02_a_plan_tells_chosen_inherited_and_off_apart() -> None:
    made = plan({"L": A, "M": None}, {"L": B, "M": C, "N": D})
    assert [reasons(made, name)[0] for name in "LMN"] == [
        "chosen for cuda",
        "off, as the row says",
        "inherited for cuda",
    ]
    assert [step(made, name).kind for name in "LMN"] == ["bind", "keep", "bind"]
    assert [step(made, name).own for name in "LMN"] == [True, True, False]


def test_b28_a_choice_says_why_its_code_may_run() -> None:
    asked = request(trust=Trust(publishers=frozenset({"org"})))
    row = {"cuda": [{"kernel": "acme/r@v1:A", "trust_remote_code": True}, "org/r@v1:A", "builtin:A"]}
    pins = (hub_pin("org/r@v1"), hub_pin("acme/r@v1"), hub_pin("builtin:A"))
    found = resolve(config({"X": row}), Lock(pins={pin.ref: pin for pin in pins}), asked).step("X")
    choices = found.modes[Mode.INFERENCE].choices
    assert {str(choice.kernel.reference): choice.trusted for choice in choices} == {
        "acme/r@v1:A": "trust_remote_code of its row",
        "org/r@v1:A": "trust.publishers.org",
        "builtin:A": None,
        "original": None,
    }


def test_a_choice_says_where_it_was_said() -> None:
    choices = step(from_file({"N": A})).modes[INFERENCE].choices
    assert [choice.origin for choice in choices] == ["mine.yaml:3", None]


@pytest.mark.parametrize(
    ("own", "kind", "reason"),
    [
        (A, Bind, "some mode runs a kernel"),
        ({"cuda": {"training": A, "inference": None}}, Bind, "some mode runs a kernel"),
        (None, Keep, "off, as the row says"),
        ({"rocm": A}, Keep, "no row for cuda"),
        ("org/a:A", Keep, "every candidate was refused"),
    ],
    ids=str,
)
def test_a_step_says_what_happens_to_its_name(own: Any, kind: type, reason: str) -> None:
    found = step(plan({"N": own}))
    assert (type(found), found.reason) == (kind, reason)


# Why not the others


UNTRUSTED = (
    "publisher org is not trusted: set trust.publishers.org=true, "
    "or trust.repositories.org/a=true for this repository alone"
)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ({"kernel": A, "capability": ">=10.0"}, "needs capability >=10.0, the target has 9.0"),
        ({"kernel": A, "torch": "<2.9"}, "needs torch <2.9, the target has 2.13.0"),
        ({"kernel": "org/a:A"}, UNTRUSTED),
        ({"kernel": "kernels-community/a@v1:Gone"}, "no folder"),
    ],
    ids=str,
)
def test_a_candidate_that_is_passed_over_is_kept_with_its_reason(candidate: Any, reason: str) -> None:
    made = plan({"N": [candidate, B]}, refused={"Gone": "no folder"})
    assert chosen(made) == [B, "original"]
    assert rejected(made) == [(candidate["kernel"], reason)]


def test_a_rejection_says_where_the_candidate_was_said() -> None:
    made = from_file({"N": {"cuda": "org/a:A"}})
    assert step(made).modes[INFERENCE].rejected == (
        Rejection(reference="org/a:A", reason=UNTRUSTED, origin="mine.yaml:3"),
    )


def test_a_reference_that_the_lock_does_not_hold_is_refused() -> None:
    made = resolve(config({"N": A}), Lock(), request())
    assert (chosen(made), rejected(made)) == (
        ["original"],
        [(A, "the lock does not hold it: `kerncfg lock` asks for what it lacks")],
    )


def test_hub_kernels_switched_off_are_rejected_and_others_stay() -> None:
    found = config({"N": [A, "builtin:B"]})
    made = resolve(found, locked(found), request(hub=False))
    assert chosen(made) == ["builtin:B", "original"]
    assert rejected(made) == [(A, "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE")]


@pytest.mark.parametrize(("capability", "expected"), [("9.0", [A, "original"]), ("7.5", ["original"])])
def test_a_condition_filters_an_original_too(capability: str, expected: list[str]) -> None:
    found = config({"N": {"cuda": [{"kernel": None, "capability": "<8.0"}, A]}})
    made = resolve(found, locked(found), request(capability=capability))
    assert chosen(made) == expected
    assert reasons(made)[-1] == (LEFT if capability == "9.0" else "off, as the row says")


def test_an_original_for_some_modules_leaves_a_kernel_for_the_others() -> None:
    made = plan({"N": [{"kernel": "original", "dtype": "float16"}, A]})
    assert chosen(made) == ["original", A, "original"]
    assert [choice.conditions for choice in step(made).modes[INFERENCE].choices] == [
        {"dtype": ["float16"]},
        {},
        {},
    ]


def test_another_check_may_be_added() -> None:
    def no_vowels(candidate: Candidate, pin: Pin, asked: Request) -> str | None:
        return "its name has a vowel" if candidate.ref.name in ("A", "E") else None

    found = config({"N": [A, B]})
    made = resolve(found, locked(found), request(), checks=(*CHECKS, no_vowels))
    assert (chosen(made), rejected(made)) == ([B, "original"], [(A, "its name has a vowel")])


# Rows that may not fall back


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"any": "org/a:A"}, f"org/a:A: {UNTRUSTED}"),
        ({"rocm": A, "cpu": B}, "no row for cuda, found cpu, rocm"),
        ({}, "no row for cuda, found nothing"),
        (
            {"cuda": {"inference": A, "training": {"kernel": B, "torch": "<2"}}},
            f"{B}: needs torch <2, the target has 2.13.0",
        ),
    ],
    ids=str,
)
def test_a_row_that_may_not_fall_back_needs_a_kernel(said: Any, reason: str) -> None:
    with pytest.raises(ResolutionError) as caught:
        plan({"N": {**said, "fallback": "error"}})
    assert caught.value.reasons == {"N": [reason]}
    assert caught.value.message == f"kernels.N: no kernel for cuda: {reason}"
    assert caught.value.hint == "mend what is refused, or keep the original there: kernels.N.fallback=original"


def test_every_row_without_a_kernel_is_in_one_error() -> None:
    with pytest.raises(ResolutionError) as caught:
        plan(
            {"K": A, "L": ["org/a:A", {"kernel": B, "torch": "<2"}], "M": {"cpu": A}, "N": "org/a:A"},
            policy={"fallback": "error"},
        )
    old = f"{B}: needs torch <2, the target has 2.13.0"
    assert caught.value.reasons == {
        "L": [f"org/a:A: {UNTRUSTED}", old],
        "M": ["no row for cuda, found cpu"],
        "N": [f"org/a:A: {UNTRUSTED}"],
    }
    assert caught.value.message.splitlines() == [
        f"kernels.L: no kernel for cuda: org/a:A: {UNTRUSTED}",
        f"kernels.L: no kernel for cuda: {old}",
        "kernels.M: no kernel for cuda: no row for cuda, found cpu",
        f"kernels.N: no kernel for cuda: org/a:A: {UNTRUSTED}",
    ]


@pytest.mark.parametrize(
    "said",
    [
        A,
        None,
        [A, None],
        ["org/a:A", B],
        ["org/a:A", None],
        {"cuda": {"inference": A}},
        {"cuda": {"inference": [{"kernel": A, "torch": "<2"}], "training": B}},
    ],
    ids=str,
)
def test_a_row_that_has_something_to_run_does_not_fail(said: Any) -> None:
    rows = {"N": said}
    assert plan(rows, policy={"fallback": "error"}).step("N").own


def test_a_row_that_may_not_fall_back_has_no_original_after_its_kernels() -> None:
    assert chosen(plan({"N": A}, policy={"fallback": "error"})) == [A]


def test_a_mode_that_a_row_does_not_name_is_left_alone_whatever_its_fallback() -> None:
    made = plan({"N": {"cuda": {"inference": A}}}, policy={"fallback": "error"})
    assert chosen(made, mode=TRAINING) == ["original"]


def test_an_inherited_row_may_always_fall_back() -> None:
    made = plan({}, {"N": "org/a:A", "M": {"cpu": A}}, policy={"fallback": "error"})
    assert (chosen(made, "N"), chosen(made, "M")) == (["original"], ["original"])


def test_an_error_says_where_the_row_stands() -> None:
    with pytest.raises(ResolutionError) as caught:
        from_file({"N": "org/a:A"}, policy={"fallback": "error"})
    assert caught.value.message == f"mine.yaml:3: kernels.N: no kernel for cuda: org/a:A: {UNTRUSTED}"


# The whole plan


@pytest.mark.parametrize("fallback", ["original", "error"])
def test_nothing_is_swapped_where_kernels_are_switched_off(fallback: str) -> None:
    rows = {"K": {"rocm": A}, "M": "org/a:A", "N": A}
    made = plan(rows, {"L": B}, enabled=False, policy={"fallback": fallback})
    assert [type(each) for each in made.steps] == [Keep] * 4
    assert {each.reason for each in made.steps} == {OFF}
    assert [reasons(made, "N", mode) for mode in Mode] == [[OFF]] * 4


def test_there_is_one_step_for_every_name_in_order() -> None:
    assert [each.name for each in plan({"N": A, "L": None}, {"M": B}).steps] == ["L", "M", "N"]


def test_the_order_of_names_and_devices_does_not_matter() -> None:
    one = plan({"M": {"cuda": A, "rocm": B}, "N": C}, {"K": D, "L": A})
    other = plan({"N": C, "M": {"rocm": B, "cuda": A}}, {"L": A, "K": D})
    assert one.to_json() == other.to_json()


def test_a_plan_has_target_strictness_notes_and_consent() -> None:
    trust = Trust(publishers=frozenset({"me"}))
    found = config({"N": A}, policy={"strict": True})
    made = resolve(found, Lock(), request(trust=trust))
    assert (made.target, made.strict, made.notes, made.trust) == (request().target, True, (), trust)


def test_b01_one_config_serves_every_device_in_any_order() -> None:
    found = config({"N": {"cuda": A, "rocm": B}})
    before = copy.deepcopy(found)
    lock = locked(found)
    for order in (["cuda", "rocm", "cpu"], ["cpu", "rocm", "cuda"]):
        plans = {device: resolve(found, lock, request(device)) for device in order}
        kernels = {device: chosen(made) for device, made in plans.items()}
        assert kernels == {"cuda": [A, "original"], "rocm": [B, "original"], "cpu": ["original"]}
    assert found == before
    assert reasons(plans["cpu"]) == ["no row for cpu"]


def test_b01_a_missing_device_is_an_error_where_the_row_says_so() -> None:
    with pytest.raises(ResolutionError) as caught:
        plan({"N": {"cuda": A, "rocm": B, "fallback": "error"}}, device="cpu")
    assert caught.value.message == "kernels.N: no kernel for cpu: no row for cpu, found cuda, rocm"


def test_the_modes_of_an_inference_kernel_b39() -> None:
    made = plan({"N": {"cpu": {"inference": A, "training": B}}}, device="cpu")
    assert {mode: chosen(made, mode=mode) for mode in Mode} == {
        INFERENCE: [A, B, "original"],
        TRAINING: [B, "original"],
        INFERENCE_COMPILE: ["original"],
        TRAINING_COMPILE: ["original"],
    }


def hub_pin(text: str, *, repository: str | None = None, needs: tuple[Any, ...] = (), **said: Any) -> Pin:
    """The answer about a repository with one build, which imports others."""
    metadata = Metadata(id="_x", name="xx", backend="cuda", kernel_depends=needs)
    build = Build(variant=Variant.parse("torch-cuda"), digest=f"digest of {text}", metadata=metadata)
    release = Release(commit="c" * 40, revision=said.pop("revision", "v1"), repository=repository, builds=(build,))
    return Pin(ref=KernelRef.parse(text), releases=(release,), **said)


def resolved(*pins: Pin, row: str = "org/r@v1:A", **asked: Any) -> ModePlan:
    said = asked.pop("said", request(trust=Trust(publishers=frozenset({"org"}))))
    found = resolve(config({"X": row}), Lock(pins={pin.ref: pin for pin in pins}), said)
    return found.step("X").modes[Mode.INFERENCE]


def test_a_kernel_comes_with_those_that_it_imports() -> None:
    found = resolved(hub_pin("org/r@v1", needs=(("org/base", 2, None),)), hub_pin("org/base@v2"))
    (needed,) = found.choices[0].kernel.dependencies
    assert (str(needed.reference), needed.commit) == ("org/base@v2", "c" * 40)


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (None, "it imports org/base@v2: the lock does not hold it: `kerncfg lock` asks for what it lacks"),
        (Pin(ref=KernelRef.parse("org/base@v2"), reason="HTTP 404: no"), "it imports org/base@v2: HTTP 404: no"),
        (
            Pin.of(KernelRef.parse("org/base@v2")),
            "it imports org/base@v2: no build fits: found none, needed one for cuda",
        ),
        (
            hub_pin("org/base@v2", needs=(("org/r", 1, None),)),
            "it imports org/base@v2: it imports itself, by way of org/r@v1, needed kernels without such a circle",
        ),
        (
            hub_pin("org/base@v2", repository="acme/base"),
            "it imports org/base@v2: org/base moved to acme/base, and publisher acme is not trusted: set "
            "trust.publishers.acme=true, or trust.repositories.acme/base=true for this repository alone",
        ),
    ],
)
def test_a_kernel_without_what_it_imports_is_refused(base: Pin | None, reason: str) -> None:
    pins = [hub_pin("org/r@v1", needs=(("org/base", 2, None),)), *([base] if base else [])]
    assert [each.reason for each in resolved(*pins).rejected] == [reason]


def test_a_kernel_that_imports_a_stranger_is_refused() -> None:
    found = resolved(hub_pin("org/r@v1", needs=(("stranger/base", 2, None),)))
    assert found.rejected[0].reason.startswith("it imports stranger/base@v2: publisher stranger is not trusted")


@pytest.mark.parametrize(
    ("row", "pin", "reason"),
    [
        ("org/r:A", hub_pin("org/r"), "chosen for cuda, unpinned, v1 is the highest version with a build that fits"),
        ("org/r@>=1:A", hub_pin("org/r@>=1", revision="v1.4"), "chosen for cuda, v1.4 is the highest of >=1"),
        ("org/r@v1:A", hub_pin("org/r@v1", note="as last resolved, for X"), "chosen for cuda, as last resolved, for X"),
        ("org/r@v1:A", hub_pin("org/r@v1", repository="org/new"), "chosen for cuda, moved to org/new"),
    ],
)
def test_a_choice_says_how_its_commit_was_found(row: str, pin: Pin, reason: str) -> None:
    found = resolved(pin, row=row)
    assert found.choices[0].reason == reason
    assert found.choices[0].kernel.repository == pin.releases[0].repository


def test_a_choice_has_a_verdict_on_every_build() -> None:
    names = ("torch-universal", "torch-stable-abi28-cu126-x86_64-linux", "torch-rocm", "torch-cuda")
    builds = tuple(Build(variant=Variant.parse(name), digest=name) for name in names)
    pin = Pin(ref=KernelRef.parse("org/r@v1"), releases=(Release(commit="c" * 40, builds=builds),))
    verdicts = resolved(pin).choices[0].builds
    assert verdicts[names[1]] == "chosen" and verdicts["torch-cuda"] == f"fits, {names[1]} goes before"  # the runner-up
    assert verdicts["torch-universal"] == "fits, torch-cuda goes before"
    assert "rocm" in verdicts["torch-rocm"] and "cuda" in verdicts["torch-rocm"]


MEMBERS = [["Norm", "layers.*.norm"], ["MLP", "layers.*.mlp"]]


def test_a_fusion_and_a_row_of_attention_are_steps_of_their_own_kind() -> None:
    made = plan(
        {"N": A},
        fusions={"f": {"members": MEMBERS, "kernel": B}, "off": None},
        attention={"a": {"kernel": "sdpa", "path": "x.**", "mask": "eager"}, "off": None},
    )
    assert [(step.node, step.name, step.kind) for step in made.steps] == [
        ("kernels", "N", "bind"),
        ("fusions", "f", "fuse"),
        ("fusions", "off", "keep"),
        ("attention", "a", "attend"),
        ("attention", "off", "keep"),
    ]
    fuse, attend = made.step("f"), made.step("a")
    assert [str(member) for member in fuse.members] == ["Norm at layers.*.norm", "MLP at layers.*.mlp"]
    assert (attend.path, attend.mask, fuse.path, fuse.mask) == ("x.**", "eager", None, None)
    assert made.step("fusions.off").reason == "off, as the row says"
    assert all(step.own for step in made.steps)


def test_flash_attention_ends_in_sdpa_with_a_reason_for_each_that_was_passed_over() -> None:
    found = plan(attention={"a": "flash_attention_4"}, refused={"": "no network"}).step("a").modes[INFERENCE]
    assert [(str(choice.kernel.reference), choice.reason) for choice in found.choices] == [
        ("sdpa", "chosen for cuda"),
        ("original", "fallback: the original where no kernel is left"),
    ]
    assert [(entry.reference, entry.reason) for entry in found.rejected] == [
        ("flash_attention_4", "needs the compiled package flash-attn-4, the target has none"),
        ("kernels-community/flash-attn4@v0", "no network"),
    ]


def test_version_4_is_said_to_be_beta_where_it_is_chosen() -> None:
    found = plan(attention={"a": "flash_attention_4"}).step("a").modes[INFERENCE].choices
    assert [choice.reason for choice in found][:2] == [
        "chosen for cuda; flash_attention_4 is beta upstream", "chosen for cuda",
    ]  # fmt: skip


def test_rows_without_a_kernel_are_named_with_their_node_and_the_line_to_type() -> None:
    with pytest.raises(ResolutionError) as caught:
        plan(
            {"N": {"cpu": A}},
            fusions={"f": {"members": MEMBERS, "cpu": A}},
            attention={"a": {"cpu": "sdpa"}, "b": {"cpu": "sdpa"}},
            policy={"fallback": "error"},
        )
    assert set(caught.value.reasons) == {"N", "fusions.f", "attention.a", "attention.b"}
    assert "fusions.f: no kernel for cuda: no row for cuda, found cpu" in caught.value.message
    lines = "kernels.N.fallback=original fusions.f.fallback=original attention.a.fallback=original"
    assert caught.value.hint == f"mend what is refused, or keep the original there: {lines} …"


def test_a_kernel_without_a_name_that_is_not_pinned_is_told_how_to_pin_it() -> None:
    found = config(attention={"a": {"kernel": "kernels-community/x@v1", "fallback": "error"}})
    with pytest.raises(ResolutionError) as caught:
        resolve(found, locked(found), replace(request(), require_pin=True))
    assert caught.value.hint == (
        "write kernels-community/x@COMMIT with the 40 digits of the commit, or policy.require_pin=false"
    )


def test_a_choice_says_where_its_conditions_were_said() -> None:
    data = document({"N": {"kernel": A, "when": {"bias": False}}, "O": {"kernel": None, "when": {"bias": True}}})
    at = {"kernels.N.when.bias": override("kernels.N.when.bias=false")}
    found = normalise(data, origins=origins(data, preset(), at))
    made = resolve(found, locked(found), request())
    assert made.step("N").modes[INFERENCE].choices[0].asked == {"bias": "override: kernels.N.when.bias=false"}
    assert made.step("O").modes[INFERENCE].choices[0].asked == {"bias": "preset: kernels/bundled.yaml"}
