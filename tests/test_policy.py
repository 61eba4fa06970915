from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from kerncfg.compiler.policy import (
    CHECKS,
    Request,
    alone,
    consent,
    moved,
    no_fit,
    refused,
    singled_out,
    trusted,
    unconsented,
    unfit,
)
from kerncfg.documents.config import Candidate, Conditions, KernelRef, Trust
from kerncfg.documents.lock import Build, Pin, Release
from kerncfg.documents.step import Choice, Kernel, Rejection
from kerncfg.documents.variant import Variant
from tests.builders import A, request, target

if TYPE_CHECKING:
    from kerncfg.documents.target import Target

COMMIT = "0" * 40


def build(name: str | None) -> Build:
    return Build(variant=Variant.parse(name) if name else None, digest=f"digest of {name}")


def pin(*names: str | None, ref: str = A, reason: str | None = None) -> Pin:
    return replace(Pin.of(KernelRef.parse(ref), *(build(name) for name in names)), reason=reason)


def chosen(found: Pin, machine: Target) -> Build | None:
    best = found.choose(machine)
    return best and best[1]


def refusal(
    ref: str = A, *builds: str | None, asked: Request | None = None, reason: str | None = None, **said: Any
) -> str | None:
    """Give the first reason against a candidate; a build that runs anywhere, unless others are named."""
    trust_remote_code = said.pop("trust_remote_code", False)
    candidate = Candidate(ref=KernelRef.parse(ref), conditions=Conditions(**said), trust_remote_code=trust_remote_code)
    found = pin(*(builds or (None,)), ref=ref, reason=reason)
    reasons = (check(candidate, found, asked or request()) for check in CHECKS)
    return next((reason for reason in reasons if reason), None)


TRUST = Trust(
    publishers=frozenset({"acme"}),
    repositories=frozenset({"org/norms"}),
    local=frozenset({"/norms", "python:p.q"}),
)


@pytest.mark.parametrize("text", ["original", "builtin:A", "acme/any@v1:A", "org/norms:A", "/norms:A", "python:p.q:A"])
def test_code_that_somebody_consented_to(text: str) -> None:
    assert trusted(KernelRef.parse(text), TRUST) is None


CURE = "name it in a local file or an override, or pass trust"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "org/other@v1:A",
            "publisher org is not trusted: set trust.publishers.org=true, "
            "or trust.repositories.org/other=true for this repository alone",
        ),
        (
            "acme-evil/any:A",
            "publisher acme-evil is not trusted: set trust.publishers.acme-evil=true, "
            "or trust.repositories.acme-evil/any=true for this repository alone",
        ),
        (
            "org/norms2:A",
            "publisher org is not trusted: set trust.publishers.org=true, "
            "or trust.repositories.org/norms2=true for this repository alone",
        ),
        ("/norms/inner:A", f"/norms/inner was not named by you: {CURE}=['/norms/inner']"),
        ("python:p:A", f"python:p was not named by you: {CURE}=['python:p']"),
    ],
)
def test_code_that_nobody_consented_to_is_refused_with_the_key_to_set(text: str, reason: str) -> None:
    assert trusted(KernelRef.parse(text), TRUST) == reason


@pytest.mark.parametrize(
    ("text", "trust", "said"),
    [
        ("org/x@v1:A", Trust(publishers=frozenset({"org"})), "trust.publishers.org"),
        ("org/x@v1:A", Trust(repositories=frozenset({"org/x"})), "trust.repositories.org/x"),
        ("org/x@v1:A", Trust(references=frozenset({"org/x@v1:A"})), "trust_remote_code of its row"),
        ("org/x@v1:A", Trust(allow_all_kernels=True), "trust.allow_all_kernels"),
        ("/norms:A", Trust(local=frozenset({"/norms"})), "/norms was named by you"),
        ("org/x@v1:A", Trust(), None),
        ("/norms:A", Trust(allow_all_kernels=True), None),
        ("builtin:A", Trust(publishers=frozenset({""})), None),
        ("original", Trust(), None),
    ],
)
def test_what_lets_code_run_is_told(text: str, trust: Trust, said: str | None) -> None:
    assert consent(KernelRef.parse(text), trust) == said


def test_all_kernels_means_those_of_the_hub() -> None:
    trust = Trust(allow_all_kernels=True)
    assert trusted(KernelRef.parse("any/thing:A"), trust) is None
    assert trusted(KernelRef.parse("/norms:A"), trust) is not None


def test_the_key_in_a_refusal_is_the_cure() -> None:
    ref = KernelRef.parse("/norms:A")
    reason = trusted(ref, Trust())
    assert reason is not None
    assert trusted(ref, Trust().plus(reason.partition("trust=['")[2].removesuffix("']"))) is None


@pytest.mark.parametrize("ref", [A, "builtin:A", "original"])
def test_a_candidate_with_nothing_against_it(ref: str) -> None:
    assert refusal(ref) is None


def test_an_untrusted_candidate_is_refused() -> None:
    expected = trusted(KernelRef.parse("org/x:A"), Trust())
    assert expected is not None
    assert refusal("org/x:A") == expected


def test_consent_for_one_candidate_is_enough_for_it() -> None:
    assert refusal("org/x:A", trust_remote_code=True) is None


def test_hub_kernels_may_be_switched_off() -> None:
    asked = request(hub=False)
    assert refusal(A, asked=asked) == "Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE"
    assert refusal("builtin:A", asked=asked) is None


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("kernels-community/a@v1:A", "v1"),
        ("kernels-community/a@>=1:A", ">=1"),
        ("kernels-community/a:A", "nothing"),
    ],
)
def test_a_commit_may_be_required(ref: str, found: str) -> None:
    asked = replace(request(), require_pin=True)
    assert refusal(ref, asked=asked) == f"policy.require_pin needs a commit of 40 digits, found {found}"


@pytest.mark.parametrize("ref", [f"kernels-community/a@{COMMIT}:A", "builtin:A"])
def test_a_commit_is_what_was_required(ref: str) -> None:
    assert refusal(ref, asked=replace(request(), require_pin=True)) is None


@pytest.mark.parametrize(
    ("conditions", "said", "reason"),
    [
        ({"capability": ">=9.0"}, {}, None),
        ({"capability": ">=8.0,<9.0"}, {"capability": "8.6"}, None),
        ({"capability": ">=10.0"}, {}, "needs capability >=10.0, the target has 9.0"),
        ({"capability": "<10.0"}, {"capability": "10.0"}, "needs capability <10.0, the target has 10.0"),
        ({"capability": ">=8.0"}, {"capability": None}, "needs capability >=8.0, the target has none"),
        ({"torch": ">=2.9"}, {}, None),
        ({"torch": "==2.13.0"}, {"torch": "2.13.0+cu128"}, None),
        ({"torch": ">=2.9"}, {"torch": "2.10.0.dev20260101"}, None),
        ({"torch": "<2.9"}, {}, "needs torch <2.9, the target has 2.13.0"),
        ({"torch": ">=2.9"}, {"torch": None}, "needs torch >=2.9, the target has none"),
        ({"dtype": ("float16",), "when": (("a", (1,)),)}, {}, None),
    ],
    ids=str,
)
def test_a_condition_on_the_target(conditions: Any, said: Any, reason: str | None) -> None:
    assert refusal(A, asked=request(**said), **conditions) == reason


def test_a_reference_that_could_not_be_pinned_is_refused_with_the_reason() -> None:
    assert refusal(A, reason="no folder /norms") == "no folder /norms"


def test_a_kernel_without_a_build_for_the_target_is_refused_with_the_reason_of_each() -> None:
    assert refusal(A, "torch-cpu", "torch213-cxx11-rocm64-x86_64-linux") == (
        "no build fits: torch-cpu: built for cpu, the target is cuda; "
        "torch213-cxx11-rocm64-x86_64-linux: built for rocm, the target is cuda"
    )


def test_the_original_needs_no_build() -> None:
    candidate = Candidate(ref=KernelRef.parse("original"))
    assert [check(candidate, Pin(ref=candidate.ref), request()) for check in CHECKS] == [None] * len(CHECKS)


def test_consent_is_asked_for_before_anything_else() -> None:
    asked = request(hub=False)
    assert str(refusal("org/x:A", asked=asked, reason="gone")).startswith("publisher org is not trusted")


BUILDS = ("torch-universal", "torch-cuda", "torch213-cxx11-cu126-x86_64-linux", "torch-cpu")


@pytest.mark.parametrize("names", list(permutations(BUILDS)), ids=" ".join)
def test_the_best_build_is_chosen_in_whatever_order_they_are_listed(names: tuple[str, ...]) -> None:
    assert chosen(pin(*names), target()) == build("torch213-cxx11-cu126-x86_64-linux")
    assert chosen(pin(*names), target("cpu")) == build("torch-cpu")
    assert chosen(pin(*names), target("xpu")) == build("torch-universal")


def test_a_build_for_the_target_is_better_than_code_without_one() -> None:
    assert chosen(pin("torch-cuda", None), target()) == build("torch-cuda")
    assert chosen(pin(None, "torch-cpu"), target()) == build(None)


def test_nothing_is_chosen_where_nothing_fits() -> None:
    assert chosen(pin("torch-cpu"), target()) is None


def test_a_kernel_that_its_own_row_trusts_is_trusted_alone() -> None:
    trust = Trust(references=frozenset({"org/x@v1:A"}))
    assert trusted(KernelRef.parse("org/x@v1:A"), trust) is None
    assert trusted(KernelRef.parse("org/x@v2:A"), trust) is not None


@pytest.mark.parametrize(
    ("variant", "needs", "reason"),
    [
        (None, {}, None),
        (None, {"capability": ">=8.0", "torch": ">=2.9"}, None),
        (None, {"capability": ">=10.0"}, "needs capability >=10.0, the target has 9.0"),
        (None, {"torch": "<2.0"}, "needs torch <2.0, the target has 2.13.0"),
        ("torch-cuda", {}, None),
        ("torch-cpu", {}, "built for cpu, the target is cuda"),
    ],
    ids=str,
)
def test_a_choice_is_asked_again_of_the_machine_at_hand(
    variant: str | None, needs: dict[str, str], reason: str | None
) -> None:
    kernel = Kernel(reference=KernelRef.parse(A), variant=variant)
    assert unfit(Choice(kernel=kernel, needs=needs, origin=None, reason="chosen"), target()) == reason


def test_what_a_redirect_leads_to_needs_consent_of_its_own() -> None:
    release = Release(commit=COMMIT, repository="acme/norms", builds=(build(None),))
    found = Pin(ref=KernelRef.parse(A), releases=(release,))
    candidate = Candidate(ref=KernelRef.parse(A), conditions=Conditions())
    asked = request()

    def reasons(trust: Trust) -> list[str]:
        said = replace(asked, trust=trust)
        return [reason for check in CHECKS if (reason := check(candidate, found, said))]

    publisher = KernelRef.parse(A).location.partition("/")[0]
    own = Trust(publishers=frozenset({publisher}))
    (reason,) = reasons(own)
    assert reason.startswith(f"{candidate.ref.location} moved to acme/norms, and publisher acme is not trusted: set ")
    assert reasons(own.plus("acme")) == []
    assert moved(candidate.ref, "acme/norms", own.plus("acme/norms")) is None


def test_what_is_refused_whatever_there_is_needs_no_answer() -> None:
    stranger = Candidate(ref=KernelRef.parse("stranger/x@v1:X"), conditions=Conditions())
    later = Candidate(ref=KernelRef.parse(A), conditions=Conditions(torch=">=99"))
    fine = Candidate(ref=KernelRef.parse(A), conditions=Conditions())
    assert [refused(each, request()) for each in (stranger, later, fine)] == [True, True, False]
    assert refused(fine, replace(request(), hub=False))


def versions(*own: str, **names: tuple[str, ...]) -> str:
    releases = tuple(Release(commit=COMMIT, revision=name, builds=(build("torch-rocm"),)) for name in own)
    return no_fit(Pin(ref=KernelRef.parse(A), releases=releases, versions=names), target())


def test_b14_a_missing_build_names_the_newest_version_that_has_one() -> None:
    both = {"v9": ("torch-cuda",), "v10": ("torch-cuda", "odd"), "v11": ("torch-rocm",), "v1": ("torch-rocm",)}
    assert versions("v1", **both).endswith("; v10 has torch-cuda")
    assert versions("v1", v2=("torch-rocm",)).endswith("; no version has one, looked at v2")
    assert "version" not in versions("v1")


def test_the_version_that_was_asked_about_is_no_advice() -> None:
    assert "v1 has" not in versions("v1", v1=("torch-cuda",))


@pytest.mark.parametrize(
    ("name", "said", "reason"),
    [
        ("sdpa", {"device": "cpu"}, None),
        ("eager", {"device": "rocm"}, None),
        ("flash_attention_2", {"packages": {"flash-attn": "2.8.3"}}, None),
        ("flash_attention_2", {}, "needs the compiled package flash-attn, the target has none"),
        (
            "flash_attention_3",
            {"packages": {"flash-attn": "2.8.3"}},
            "needs the compiled package flash-attn-3, the target has none",
        ),
        (
            "flash_attention_4",
            {"device": "rocm", "packages": {"flash-attn-4": "4.0.0"}},
            "the compiled package flash-attn-4 is for cuda, the target is rocm",
        ),
    ],
)
def test_the_frameworks_attention_needs_a_package_and_no_consent(name: str, said: Any, reason: str | None) -> None:
    ref = KernelRef.parse(name, attention=True)
    asked = request(**said)
    reasons = (check(Candidate(ref=ref), Pin(ref=ref), asked) for check in CHECKS)
    assert next(filter(None, reasons), None) == reason
    choice = Choice(kernel=Kernel(reference=ref), origin=None, reason="")
    assert unfit(choice, target(**said)) == reason


@pytest.mark.parametrize(
    ("origin", "reference", "place"),
    [
        ("hf://a/b@main/x.yaml:1", "org/x@v1:A", "org/x"),
        ("hf://a/b@main/x.yaml:1", "acme/x@v1:A", None),
        ("mine.yaml:1", "org/x@v1:A", None),
        (None, "org/x@v1:A", None),
    ],
)
def test_only_a_fetched_row_asks_for_consent(origin: str | None, reference: str, place: str | None) -> None:
    assert unconsented(Rejection(reference=reference, reason="why", origin=origin), TRUST) == place


def test_a_proposal_needs_consent_to_itself_and_digits_count_where_they_were_resolved() -> None:
    proposed, digits = KernelRef.parse("acme/norms@refs/pr/1:Norm"), KernelRef.parse("acme/norms@0123456:Norm")
    branch = KernelRef.parse("acme/norms@a1:Norm")
    publisher = Trust(publishers=frozenset({"acme"}))
    assert "anybody may propose" in (trusted(proposed, publisher) or "")
    assert not alone(proposed, publisher) and not alone(branch, Trust(repositories=frozenset({"acme/norms@a1"})))
    one = Trust(repositories=frozenset({"acme/norms@refs/pr/1"}))
    assert trusted(proposed, one) is None and alone(proposed, one)
    assert singled_out(proposed, "acme/norms", A, one) and not singled_out(proposed, "acme/norms", A, one, claimed=True)
    short, commit = Trust(repositories=frozenset({"acme/norms@0123456"})), "0123456" + "0" * 33
    assert singled_out(digits, "acme/norms", commit, short) and not singled_out(digits, "acme/norms", A, short)
    assert not singled_out(digits, "acme/norms", commit, publisher)
    assert singled_out(branch, "acme/norms", A, Trust(repositories=frozenset({f"acme/norms@{A}"})))
    assert singled_out(branch, "acme/norms", A, Trust(allow_all_kernels=True))
