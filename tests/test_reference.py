from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerncfg.documents.reference import INHERITED, ORIGINAL, KernelRef, absolute, is_folder, is_relative, parse_range
from kerncfg.errors import ConfigError, Issue

COMMIT = "09eec95c1f2a3b4c5d6e7f8091a2b3c4d5e6f708"
FORMS = "write one of org/repo@v1:Name, ./dir:Name, python:package.module:Name, builtin:Name, original or inherited"


def hub(location: str = "org/repo", **parts: str) -> KernelRef:
    return KernelRef(scheme="hub", location=location, **{"name": "Name", **parts})


def folder(location: str) -> KernelRef:
    return KernelRef(scheme="path", location=location, name="Name")


def fault(call: Any, *arguments: Any, **keywords: Any) -> Issue:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keywords)
    (issue,) = caught.value.issues
    return issue


ACCEPTED = [
    ("org/repo:Name", hub()),
    ("org/repo", KernelRef(scheme="hub", location="org/repo")),
    ("org/repo@v3", KernelRef(scheme="hub", location="org/repo", revision="v3")),
    ("org/repo@v3:Name", hub(revision="v3")),
    ("org/repo@v2.1.0:Name", hub(revision="v2.1.0")),
    ("org/repo@main:Name", hub(revision="main")),
    ("org/repo@feature/x:Name", hub(revision="feature/x")),
    ("org/repo@release+1_2-rc:Name", hub(revision="release+1_2-rc")),
    ("org/repo@09eec95:Name", hub(revision="09eec95")),
    ("org/repo@61e9540:Name", hub(revision="61e9540")),
    (f"org/repo@{COMMIT}:Name", hub(revision=COMMIT)),
    ("org/repo@>=2.0,<3.0:Name", hub(version=">=2.0,<3.0")),
    ("org/repo@==2.1.*:Name", hub(version="==2.1.*")),
    ("org/repo@~=2.1:Name", hub(version="~=2.1")),
    ("org-1/re.po_2:Name", hub("org-1/re.po_2")),
    ("/abs/dir:Name", folder("/abs/dir")),
    ("./dir:Name", folder("./dir")),
    ("../dir:Name", folder("../dir")),
    (".:Name", folder(".")),
    ("..:Name", folder("..")),
    ("~/dir:Name", folder("~/dir")),
    ("~:Name", folder("~")),
    ("/:Name", folder("/")),
    ("C:\\dir:Name", folder("C:\\dir")),
    ("C:/dir:Name", folder("C:/dir")),
    ("C:\\:Name", folder("C:\\")),
    ("\\\\server\\share:Name", folder("\\\\server\\share")),
    ("./dir@v1:Name", folder("./dir@v1")),
    ("python:pkg:Name", KernelRef(scheme="python", location="pkg", name="Name")),
    ("python:pkg.mod:_Name2", KernelRef(scheme="python", location="pkg.mod", name="_Name2")),
    ("builtin:Name", KernelRef(scheme="builtin", name="Name")),
    ("original", ORIGINAL),
    ("inherited", INHERITED),
]


@pytest.mark.parametrize(("text", "ref"), ACCEPTED)
def test_a_text_is_read_into_its_parts(text: str, ref: KernelRef) -> None:
    assert KernelRef.parse(text) == ref


@pytest.mark.parametrize("ref", [ref for _, ref in ACCEPTED], ids=str)
def test_a_reference_as_text_is_read_as_itself(ref: KernelRef) -> None:
    assert KernelRef.parse(str(ref)) == ref


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (" org/repo@v1:Name\n", "org/repo@v1:Name"),
        ("org/repo@<3.0, >=2.0:Name", "org/repo@>=2.0,<3.0:Name"),
        ("org/repo@ >= 2.0 ,<3.0:Name", "org/repo@>=2.0,<3.0:Name"),
        ("./dir/:Name", "./dir:Name"),
        ("/abs/dir//:Name", "/abs/dir:Name"),
        ("C:\\dir\\:Name", "C:\\dir:Name"),
    ],
)
def test_two_spellings_of_one_kernel_are_equal(text: str, other: str) -> None:
    assert KernelRef.parse(text) == KernelRef.parse(other)
    assert hash(KernelRef.parse(text)) == hash(KernelRef.parse(other))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("org/repo@v1:Name", "org/repo@v2:Name"),
        ("org/repo:Name", "org/repo@main:Name"),
        ("org/repo:Name", "org/repo:name"),
        ("org/repo@==1:Name", "org/repo@v1:Name"),
        ("python:a.b:Name", "./a.b:Name"),
    ],
)
def test_two_kernels_differ(text: str, other: str) -> None:
    assert KernelRef.parse(text) != KernelRef.parse(other)


ADDRESS = "a web address is no kernel reference"
NO_VERSION = "write org/repo@v1, @v2.1.0, @<commit> or a range such as @>=2.0,<3.0"
WRONG = "is no branch, tag, commit or range"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "'': a reference cannot be empty", f"{FORMS}; for off write null"),
        ("  ", "'': a reference cannot be empty", f"{FORMS}; for off write null"),
        ("Name", "'Name': 'Name' is no repository (organisation/name)", FORMS),
        ("repo:Name", "'repo:Name': 'repo' is no repository (organisation/name)", FORMS),
        (":Name", "':Name': '' is no repository (organisation/name)", FORMS),
        ("org/:Name", "'org/:Name': 'org/' is no repository (organisation/name)", FORMS),
        ("a/b/c:Name", "'a/b/c:Name': 'a/b/c' is no repository (organisation/name)", FORMS),
        ("or g/repo:Name", "'or g/repo:Name': 'or g/repo' is no repository (organisation/name)", FORMS),
        ("builtin", "'builtin': 'builtin' is no repository (organisation/name)", FORMS),
        ("Original", "'Original': 'Original' is no repository (organisation/name)", "did you mean original?"),
        (
            "git@github.com:org/repo",
            "'git@github.com:org/repo': 'git' is no repository (organisation/name)",
            FORMS,
        ),
        (
            "org/../repo:Name",
            "'org/../repo:Name': a repository has no parent part",
            "write org/repo@v1:Name, or ./dir:Name for a folder",
        ),
        ("org/repo:", "'org/repo:': nothing after the ':', expected a kernel name", "write org/repo:Name"),
        ("org/repo@v1:", "'org/repo@v1:': nothing after the ':', expected a kernel name", "write org/repo@v1:Name"),
        ("org/repo:A:B", "'org/repo:A:B': two names, expected one", "write org/repo:A"),
        ("org/repo@v1::B", "'org/repo@v1::B': two names, expected one", "write org/repo@v1:B"),
        ("org/repo::", "'org/repo::': two names, expected one", "write org/repo:Name"),
        ("org/repo:a-b", "'org/repo:a-b': 'a-b' is no kernel name", "write a Python name after the ':'"),
        ("org/repo:A.B", "'org/repo:A.B': 'A.B' is no kernel name", "write a Python name after the ':'"),
        ("org/repo@:Name", f"'org/repo@': '' {WRONG}", NO_VERSION),
        ("org/repo@v1@v2:Name", f"'org/repo@v1@v2': 'v1@v2' {WRONG}", NO_VERSION),
        ("org/repo@a..b:Name", f"'org/repo@a..b': 'a..b' {WRONG}", NO_VERSION),
        ("org/repo@v 1:Name", f"'org/repo@v 1': 'v 1' {WRONG}", NO_VERSION),
        (
            "org/repo@>=new:Name",
            "'>=new' is no version range",
            "write comparisons such as >=2.0,<3.0 or ==9.0",
        ),
        ("https://host/org/norm", f"'https://host/org/norm': {ADDRESS}", "write org/norm@v1:Name"),
        ("https://host/org/norm:A", f"'https://host/org/norm:A': {ADDRESS}", "write org/norm@v1:Name"),
        (
            "https://hf.co/kernels/org/norm/tree/v1",
            f"'https://hf.co/kernels/org/norm/tree/v1': {ADDRESS}",
            "write org/norm@v1:Name",
        ),
        ("www.host.com/org/norm", f"'www.host.com/org/norm': {ADDRESS}", "write org/norm@v1:Name"),
        ("hf://org/norm@v2", f"'hf://org/norm@v2': {ADDRESS}", "write org/norm@v1:Name"),
        ("https://host", f"'https://host': {ADDRESS}", "write org/repo@v1:Name"),
        ("./dir", "'./dir': no kernel name after the folder", "write ./dir:Name"),
        ("..", "'..': no kernel name after the folder", "write ..:Name"),
        ("C:\\dir", "'C:\\\\dir': no kernel name after the folder", "write C:\\dir:Name"),
        ("./dir:", "'./dir:': nothing after the ':', expected a kernel name", "write ./dir:Name"),
        (
            "./dir:A:B",
            "'./dir:A:B': more than one ':' after the folder",
            "write ./dir:Name, with one name",
        ),
        ("python:pkg.mod", "'python:pkg.mod': no kernel name after the module", "write python:pkg.mod:Name"),
        ("python:", "'python:': '' is no module name", "write python:package.module:Name"),
        ("python:a-b:Name", "'python:a-b:Name': 'a-b' is no module name", "write python:package.module:Name"),
        ("python:a.:Name", "'python:a.:Name': 'a.' is no module name", "write python:package.module:Name"),
        ("python:a:B:C", "'python:a:B:C': two names, expected one", "write python:a:B"),
        ("python:a:", "'python:a:': nothing after the ':', expected a kernel name", "write python:a:Name"),
        ("builtin:", "'builtin:': nothing after the ':', expected a kernel name", "write builtin:Name"),
        ("builtin:A:B", "'builtin:A:B': two names, expected one", "write builtin:A"),
    ],
)
def test_another_text_is_refused_with_the_right_spelling(text: str, message: str, hint: str) -> None:
    issue = fault(KernelRef.parse, text)
    assert (issue.message, issue.hint) == (message, hint)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"version": 3}, "org/repo@v3:Name"),
        ({"version": 0}, "org/repo@v0:Name"),
        ({"version": "<3,>=2"}, "org/repo@>=2,<3:Name"),
        ({"revision": "feature/x"}, "org/repo@feature/x:Name"),
    ],
)
def test_a_version_beside_means_the_same_as_one_within(said: Any, text: str) -> None:
    assert hub().at(**said) == KernelRef.parse(text)


MORE = "more than one of '@', version and revision"
RANGE = "write comparisons such as >=2.0,<3.0 or ==9.0"


@pytest.mark.parametrize(
    ("text", "said", "message", "hint"),
    [
        (
            "org/repo@v1:Name",
            {"version": 1},
            f"'org/repo@v1:Name': {MORE}",
            "keep one of them",
        ),
        ("org/repo@>=1:Name", {"revision": "x"}, f"'org/repo@>=1:Name': {MORE}", "keep one of them"),
        ("org/repo:Name", {"version": 1, "revision": "x"}, f"'org/repo:Name': {MORE}", "keep one of them"),
        (
            "builtin:Name",
            {"version": 1},
            "'builtin:Name': only a Hub kernel has versions",
            "leave version and revision out",
        ),
        (
            "original",
            {"revision": "x"},
            "'original': only a Hub kernel has versions",
            "leave version and revision out",
        ),
        ("org/repo:Name", {"version": "3"}, "'3' is no version range", RANGE),
        ("org/repo:Name", {"version": ""}, "'' is no version range", RANGE),
        ("org/repo:Name", {"revision": ">=2"}, f"'org/repo@>=2': '>=2' {WRONG}", NO_VERSION),
    ],
)
def test_a_version_that_cannot_be_is_refused(text: str, said: Any, message: str, hint: str) -> None:
    issue = fault(KernelRef.parse(text).at, **said)
    assert (issue.message, issue.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        (f"org/repo@{COMMIT}:Name", True),
        ("org/repo@09eec95:Name", False),
        ("org/repo@v1:Name", False),
        ("org/repo@>=1:Name", False),
        ("org/repo:Name", False),
        ("builtin:Name", True),
        ("./dir:Name", True),
        ("python:a:Name", True),
        ("original", True),
    ],
)
def test_only_a_whole_commit_pins_a_hub_kernel(text: str, pinned: bool) -> None:
    assert KernelRef.parse(text).pinned is pinned


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("org/repo@v1:Name", "org/repo"),
        ("/abs/dir:Name", "/abs/dir"),
        ("python:a.b:Name", "python:a.b"),
        ("builtin:Name", "builtin"),
    ],
)
def test_trust_names_a_place_without_version_and_name(text: str, place: str) -> None:
    assert KernelRef.parse(text).place == place


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (">=2.0,<3.0", ">=2.0,<3.0"),
        ("<3.0 , >=2.0", ">=2.0,<3.0"),
        ("== 9.0", "==9.0"),
        ("!=2.5,<3,>=2", ">=2,!=2.5,<3"),
    ],
)
def test_a_range_has_one_spelling(text: str, canonical: str) -> None:
    assert parse_range(text) == canonical
    assert parse_range(canonical) == canonical


@pytest.mark.parametrize("text", ["", "9.0", "v3", ">=", ">=2.0;<3.0", "latest"])
def test_another_text_is_no_range(text: str) -> None:
    issue = fault(parse_range, text)
    assert (issue.message, issue.hint) == (f"{text!r} is no version range", RANGE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a", True),
        ("./a", True),
        ("~/a", True),
        ("C:\\a", True),
        ("..", True),
        ("a/b", False),
        (".a/b", False),
        ("python:a", False),
    ],
)
def test_a_folder_is_told_by_its_spelling(text: str, expected: bool) -> None:
    assert is_folder(text) is expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [("./dir", True), ("..", True), ("/dir", False), ("~/dir", False), ("C:\\dir", False)],
)
def test_a_relative_folder_starts_with_a_dot(location: str, expected: bool) -> None:
    assert is_relative(location) is expected


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("./dir", "/start/dir"),
        ("../dir", "/dir"),
        (".", "/start"),
        ("/abs/./a/../dir", "/abs/dir"),
        ("C:\\dir", "C:\\dir"),
        ("\\\\server\\share", "\\\\server\\share"),
    ],
)
def test_a_folder_has_one_absolute_spelling(location: str, expected: str) -> None:
    assert absolute(location, Path("/start")) == expected


def test_a_home_folder_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute("~/dir", Path("/start")) == "/home/me/dir"


@pytest.mark.parametrize("location", ["~nobody-of-this-name/dir", "~\0/dir"])
def test_nobodys_home_is_refused(location: str) -> None:
    issue = fault(absolute, location, Path("/start"))
    assert issue.message == f"{location!r}: there is no such home folder"
    assert issue.hint == "write the folder in full"


@pytest.mark.parametrize("text", ["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_what_the_framework_has_for_attention_is_a_reference_there_and_nowhere_else(text: str) -> None:
    found = KernelRef.parse(text, attention=True)
    assert (found.scheme, str(found), found.framework, found.pinned) == ("attention", text, True, True)
    with pytest.raises(ConfigError) as caught:
        KernelRef.parse(text)
    (issue,) = caught.value.issues
    assert issue.message == f"{text!r}: this is an attention, which has rows of its own"
    assert issue.hint == f"take the row out, and write attention.default={text}"


@pytest.mark.parametrize(
    ("text", "scheme", "location"),
    [
        ("org/a@v1", "hub", "org/a"),
        ("python:flash_attn.cute", "python", "flash_attn.cute"),
        ("/abs/dir/", "path", "/abs/dir"),
        ("./dir", "path", "./dir"),
        ("~/dir", "path", "~/dir"),
        ("C:\\dir", "path", "C:\\dir"),
    ],
)
def test_a_kernel_for_attention_needs_no_name(text: str, scheme: str, location: str) -> None:
    found = KernelRef.parse(text, attention=True)
    assert (found.scheme, found.location, found.name, found.framework) == (scheme, location, None, False)
    assert KernelRef.parse(str(found), attention=True) == found


@pytest.mark.parametrize("text", ["org/a@v1:fn", "python:a.b:fn", "./dir:fn", "C:\\dir:fn", "builtin:fn"])
def test_it_may_have_one(text: str) -> None:
    assert KernelRef.parse(text, attention=True) == KernelRef.parse(text)


def test_a_misspelt_attention_is_answered_with_the_nearest_where_there_is_attention() -> None:
    for attention, hint in ((True, "did you mean flash_attention_2?"), (False, "write one of")):
        with pytest.raises(ConfigError) as caught:
            KernelRef.parse("flash_atention_2", attention=attention)
        assert (caught.value.issues[0].hint or "").startswith(hint)


def test_what_the_framework_has_takes_no_version() -> None:
    with pytest.raises(ConfigError, match="only a Hub kernel has versions"):
        KernelRef.parse("sdpa", attention=True).at(version=2)
