from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerncfg.cli.tables import print_plan
from kerncfg.documents.config import KernelRef, Match, Member, Trust
from kerncfg.documents.lock import File, digest_of
from kerncfg.documents.plan import (
    SCHEMA,
    Attend,
    Bind,
    Choice,
    Fuse,
    Keep,
    Kernel,
    ModePlan,
    Plan,
    Rejection,
    Step,
    seal,
)
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError, IntegrityError, LockError
from kerncfg.saved import load_plan
from tests.builders import A, target

COMMIT = "0" * 39 + "1"


def kernel(text: str = "/here:Norm", **parts: Any) -> Kernel:
    return Kernel(reference=KernelRef.parse(text), **{"digest": "abc", "variant": "torch-cuda", **parts})


def choice(made: Kernel | None = None, **parts: Any) -> Choice:
    said = {"origin": "my.yaml:3", "reason": "chosen for cuda", "conditions": {"dtype": ["bfloat16"]}}
    return Choice(kernel=made or kernel(), **{**said, **parts})


def bind(made: Kernel | None = None, **parts: Any) -> Bind:
    rejected = (Rejection(reference=A, reason="too old", origin=None),)
    left: dict[str, Any] = {
        "name": "RMSNorm",
        "modes": dict.fromkeys(Mode, ModePlan(choices=(choice(made),), rejected=rejected)),
        "match": Match(class_="*Norm"),
        "exclude": ("model.layers.0.*",),
        "fallback": "error",
        "own": True,
        "reason": "some mode runs a kernel",
    }
    return Bind(**{**left, **parts})


def plan(*steps: Step, **parts: Any) -> Plan:
    return Plan(**{"target": target(), "steps": steps or (bind(),), "strict": False, **parts})


KEEP = Keep(
    name="SiLU",
    modes={Mode.INFERENCE: ModePlan(choices=(choice(kernel("original", digest=None, variant=None)),))},
    fallback="original",
    own=False,
    reason="off, as inherited",
)


def test_a_plan_is_the_same_after_a_round_trip() -> None:
    made = plan(bind(), KEEP, notes=("something was ignored",), strict=True)
    assert Plan.from_dict(made.to_dict()) == made


def test_a_plan_is_the_same_after_a_file(tmp_path: Path) -> None:
    made = plan(bind(), KEEP)
    made.save(tmp_path / "plan.json")
    assert Plan.from_dict(json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))) == made


def test_a_saved_plan_is_its_json(tmp_path: Path) -> None:
    plan(KEEP).save(str(tmp_path / "plan.json"))
    assert (tmp_path / "plan.json").read_bytes() == plan(KEEP).to_json().encode()


def test_the_same_plan_gives_the_same_bytes() -> None:
    again = Plan.from_dict(json.loads(plan(bind(), KEEP).to_json()))
    assert again.to_json() == plan(bind(), KEEP).to_json()


def test_the_order_of_packages_does_not_change_the_bytes() -> None:
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert plan(target=target(packages=one)).to_json() == plan(target=target(packages=other)).to_json()


def test_a_plan_as_data_has_the_keys_that_others_rely_on() -> None:
    made = plan(KEEP)
    assert made.to_dict() == {
        "schema": SCHEMA,
        "digest": made.digest,
        "target": target().to_dict(),
        "strict": False,
        "deterministic": False,
        "seed": None,
        "endpoint": None,
        "cache": None,
        "notes": [],
        "searchpath": {},
        "steps": [
            {
                "name": "SiLU",
                "kind": "keep",
                "node": "kernels",
                "own": False,
                "reason": "off, as inherited",
                "fallback": "original",
                "match": None,
                "exclude": [],
                "members": [],
                "path": None,
                "mask": None,
                "modes": {
                    "inference": {
                        "choices": [
                            {
                                "reference": "original",
                                "repository": None,
                                "commit": None,
                                "variant": None,
                                "digest": None,
                                "dependencies": [],
                                "builds": {},
                                "conditions": {"dtype": ["bfloat16"]},
                                "needs": {},
                                "asked": {},
                                "trusted": None,
                                "origin": "my.yaml:3",
                                "reason": "chosen for cuda",
                            }
                        ],
                        "rejected": [],
                        "unreached": [],
                    }
                },
            }
        ],
        "files": {},
        "sealed": seal(made.to_dict()),
    }


def test_a_rejection_is_written_with_its_reason() -> None:
    step = plan().to_dict()["steps"][0]
    assert step["modes"]["training"]["rejected"] == [{"reference": A, "reason": "too old", "origin": None}]


def test_text_of_any_language_is_written_as_it_is() -> None:
    assert "größer" in plan(bind(reason="größer")).to_json()


@pytest.mark.parametrize(
    "other",
    [
        plan(bind(reason="another")),
        plan(notes=("a note",)),
        plan(trust=Trust(publishers=frozenset({"acme"}))),
        plan(bind(own=False)),
        plan(bind(modes=dict.fromkeys(Mode, ModePlan(choices=(choice(origin=None, reason="r"),))))),
        plan(bind(kernel("/elsewhere:Norm"))),
    ],
    ids=["reason of a step", "notes", "trust", "own", "origin, reason and rejections", "where a folder lies"],
)
def test_two_people_who_would_run_the_same_have_one_digest(other: Plan) -> None:
    assert other.digest == plan().digest


def test_the_digest_of_a_hub_kernel_is_by_commit() -> None:
    by_branch, by_range, by_commit = (
        plan(bind(kernel(f"org/repo@{at}:Norm", commit=COMMIT))) for at in ("v1", ">=1,<2", COMMIT)
    )
    assert by_branch.digest == by_range.digest == by_commit.digest


@pytest.mark.parametrize(
    "other",
    [
        plan(target=target("rocm")),
        plan(target=target(packages={"triton": "3"})),
        plan(strict=True),
        plan(bind(), KEEP),
        plan(bind(name="LayerNorm")),
        plan(bind(match=None)),
        plan(bind(exclude=())),
        plan(bind(fallback="original")),
        plan(bind(kernel(digest="abd"))),
        plan(bind(kernel(variant="torch-universal"))),
        plan(bind(kernel("/here:OtherNorm"))),
        plan(bind(kernel("python:here:Norm"))),
        plan(bind(kernel("org/repo@v1:Norm"))),
        plan(bind(modes=dict.fromkeys(Mode, ModePlan(choices=(choice(conditions={}),))))),
        plan(bind(modes={Mode.INFERENCE: ModePlan(choices=(choice(),))})),
        plan(bind(modes=dict.fromkeys(Mode, ModePlan(choices=(choice(), choice(kernel(A))))))),
    ],
)
def test_two_people_who_would_run_something_else_have_two_digests(other: Plan) -> None:
    assert other.digest != plan().digest


@pytest.mark.parametrize("parts", [{"commit": COMMIT}, {"text": "org/other@v1:Norm"}, {"text": "org/repo@v1:Other"}])
def test_two_hub_kernels_have_two_digests(parts: dict[str, str]) -> None:
    said = {"text": "org/repo@v1:Norm", "commit": "2" * 40}
    assert plan(bind(kernel(**said))).digest != plan(bind(kernel(**{**said, **parts}))).digest


def to_another_kernel(data: dict[str, Any]) -> None:
    data["steps"][0]["modes"]["inference"]["choices"][0]["digest"] = "def"


def to_another_device(data: dict[str, Any]) -> None:
    data["target"]["device"] = "cpu"


def to_all_modules(data: dict[str, Any]) -> None:
    data["steps"][0]["match"] = None


@pytest.mark.parametrize("edit", [to_another_kernel, to_another_device, to_all_modules])
def test_an_edited_plan_is_refused(edit: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(plan().to_json())
    edit(data)
    with pytest.raises(IntegrityError) as caught:
        Plan.from_dict(data)
    assert caught.value.message.startswith("the plan's content has digest ")
    assert caught.value.message.endswith(f", the file says {plan().digest[:12]}")
    assert caught.value.hint == "the file was edited; make the plan again with `kerncfg plan -o FILE`"


@pytest.mark.parametrize(("found", "shown"), [(2, "2"), ("1", "'1'"), (None, "None")])
def test_another_format_is_refused(found: object, shown: str) -> None:
    with pytest.raises(LockError) as caught:
        Plan.from_dict({**plan().to_dict(), "schema": found})
    assert caught.value.message == f"the plan has format {shown}, this kerncfg reads 1"
    assert caught.value.hint == "make the plan again with `kerncfg plan`"


def test_a_plan_from_data_carries_no_consent() -> None:
    made = plan(trust=Trust(allow_all_kernels=True))
    assert Plan.from_dict(made.to_dict()).trust == Trust()
    assert "allow_all" not in made.to_json()


def test_a_plan_shows_how_much_it_swaps() -> None:
    made = plan(bind(), KEEP)
    assert repr(made) == f"<Plan {made.digest[:12]} for cuda: 1 of 2 names swapped>"


def test_a_step_is_found_by_its_name() -> None:
    made = plan(bind(), KEEP)
    assert made.step("SiLU") == KEEP


def test_a_step_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no row is named 'RMSNrom'") as caught:
        plan(bind(), KEEP).step("RMSNrom")
    assert caught.value.issues[0].hint == "did you mean RMSNorm?"


def test_a_step_gives_each_kernel_once_and_not_the_original() -> None:
    original = choice(kernel("original"))
    modes = {
        Mode.INFERENCE: ModePlan(choices=(choice(), choice(kernel(A)), original)),
        Mode.TRAINING: ModePlan(choices=(choice(), original)),
    }
    assert bind(modes=modes).kernels() == {kernel(), kernel(A)}


@pytest.mark.parametrize(
    ("made", "original", "final"),
    [
        (choice(), False, False),
        (choice(kernel("original")), True, False),
        (choice(kernel("original"), conditions={}), True, True),
        (choice(conditions={}), False, False),
    ],
)
def test_only_an_original_without_conditions_is_final(made: Choice, original: bool, final: bool) -> None:
    assert (made.original, made.final) == (original, final)


def test_a_plan_with_other_steps_is_another() -> None:
    assert replace(plan(), steps=()) != plan()


def test_steps_of_every_kind_are_the_same_after_a_round_trip() -> None:
    parts: dict[str, Any] = {"modes": bind().modes, "fallback": "original", "own": True, "reason": "because"}
    fuse = Fuse(node="fusions", name="f", members=(Member(name="N", path="a.n"), Member(name="M", path="a.m")), **parts)
    attend = Attend(node="attention", name="a", path="x.**", mask="sdpa", **parts)
    made = plan(bind(), fuse, attend, KEEP)
    assert Plan.from_dict(json.loads(made.to_json())) == made
    assert "3 of 4 names swapped" in repr(made)
    assert [step.key for step in made.steps] == ["kernels.RMSNorm", "fusions.f", "attention.a", "inherited.SiLU"]
    assert [step.title for step in made.steps] == ["RMSNorm", "fusions.f", "attention.a", "SiLU"]


def test_a_choice_of_the_frameworks_attention_is_read_back() -> None:
    found = Choice.from_dict(
        choice(kernel("builtin:A")).to_dict() | {"reference": "sdpa", "asked": {"a": "x.yaml:3"}}, {}
    )
    assert (str(found.kernel.reference), found.asked, found.original) == ("sdpa", {"a": "x.yaml:3"}, False)


def nested() -> Kernel:
    """A kernel that imports another, which a redirect led to, each with its files."""
    files = (File(path="__init__.py", size=3, digest="git:" + "a" * 40),)
    digest = digest_of(files)
    needed = kernel("org/needed@v1", repository="org/moved", commit=COMMIT, digest=digest, files=files)
    return kernel("org/repo@v1:Norm", commit="1" * 40, digest=digest, files=files, dependencies=(needed,))


def test_a_kernel_comes_after_those_that_it_imports_and_the_digest_holds_them() -> None:
    made = nested()
    assert [each.place for each in made.with_dependencies()] == ["org/moved", "org/repo"]
    alone = replace(made, dependencies=())
    assert plan(bind(made)).digest != plan(bind(alone)).digest
    assert made.identity()[:-1] == alone.identity()


def test_a_plan_is_read_back_with_the_files_and_the_imports_of_its_kernels() -> None:
    made = plan(bind(nested()))
    read = Plan.from_dict(json.loads(made.to_json()))
    assert read == made
    assert {each.place: [file.path for file in each.files] for each in read.kernels()} == {
        "org/moved": ["__init__.py"],
        "org/repo": ["__init__.py"],
    }


def test_files_that_are_not_those_of_their_digest_are_refused() -> None:
    data = json.loads(plan(bind(nested())).to_json())
    (files,) = data["files"].values()
    files["__init__.py"]["digest"] = "git:" + "b" * 40
    with pytest.raises(IntegrityError, match=r"the files of a build have digest .*, the plan says"):
        Plan.from_dict(data)


def test_what_a_terminal_obeys_is_spelled_out_wherever_a_plan_from_a_file_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sign, line = "\x1b[31m\u202e", "\nnote: trusted"
    edited: dict[str, Any] = {"origin": f"o{line}{sign}", "reason": f"r{line}{sign}"}
    said = {mode: ModePlan(choices=(choice(**edited),), rejected=(Rejection(reference=A, **edited),)) for mode in Mode}
    made = plan(bind(modes=said, reason=f"s{line}{sign}"), notes=(f"kernels.RMSNorm: n{line}{sign}",))
    made.save(tmp_path / "p.json")
    read = load_plan(tmp_path / "p.json")
    assert read.notes == made.notes and read.steps == made.steps  # what is kept is what was said
    explained = read.explain("RMSNorm")
    print_plan(read)
    for text in (str(read), read._repr_html_(), str(explained), explained._repr_html_(), capsys.readouterr().out):
        assert "\x1b" not in text and "\u202e" not in text and "\nnote: trusted" not in text
        assert all(rf"{word}\nnote: trusted\x1b[31m\u202e" in text for word in "orn")
    other = replace(made, steps=(bind(modes=said, fallback="original"), bind(name="A\x1b[0mB")))
    assert "\x1b" not in str(made.diff(other)) and r"A\x1b[0mB" in str(made.diff(other))


def test_a_plan_with_kernels_of_the_hub_says_where_they_were_looked_up() -> None:
    of_hub = replace(plan(bind(kernel("org/repo@v1:Norm"))), endpoint="https://hub.example", cache="/cache")
    said = "kernels of the Hub were looked up at https://hub.example, with the cache /cache"
    assert said in str(of_hub)
    assert said not in str(replace(of_hub, cache=None)) and of_hub.digest == replace(of_hub, cache="/other").digest
