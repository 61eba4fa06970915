"""Every page does what it says: its blocks run in order, in one folder, and print what stands below them.

A `yaml` block below `<!-- file: PATH -->` is written to that file, and the option is planned; any other is a
document and is planned as one. `python` and `bash` blocks are run, commands of kerncfg that need no shell in this
process. A `text` block right after one of these is what it prints: numbers may differ, and `...` stands for anything.
Of the README's two set-up commands only the main job runs here; `.ci/run` runs all of both. The Hub is one on this
machine, with the kernels that pages name.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kerncfg
from kerncfg.cli import main
from kerncfg.compiler.compose import compose
from kerncfg.compiler.sweeps import combinations
from tests.hub import kernels
from tests.hub.guard import loopback

if TYPE_CHECKING:
    from tests.hub.fixtures import TestHub

CHECKOUT = Path(__file__).parent.parent
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
_SETUP = re.compile(r"<!-- command: (\w+) -->")
_FILE = re.compile(r"<!-- file: (?P<path>[\w/-]+\.yaml) -->")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OF_SHELLS = set("*?[]{}$~\\`!#&;<()")
_RUN = ("yaml", "python", "bash")
_SHOWN = ("text", "")  # pictures and output
_AGAIN = "run: python docs/_generate.py"


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    body: str
    line: int
    setup: bool
    file: str | None
    told: bool  # whether the text above says which file
    output: str | None


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    fences = list(_FENCE.finditer(text))
    for index, fence in enumerate(fences):
        follower = fences[index + 1] if index + 1 < len(fences) else None
        adjacent = follower is not None and not text[fence.end() : follower.start("language") - 3].strip()
        shown = follower["body"] if follower and adjacent and follower["language"] == "text" else None
        file = _FILE.search(fence["before"])
        paragraph = text[max(fence.start() - 400, 0) : fence.start()]
        yield Block(
            language=fence["language"],
            body=fence["body"],
            line=text.count("\n", 0, fence.start("language")) + 1,
            setup=bool(_SETUP.search(fence["before"])),
            file=file and file["path"],
            told=file is not None and f"`{file['path']}`" in paragraph,
            output=shown,
        )


def _rows(kind: str) -> list[list[str]]:
    """The cells of the tables of the page on overrides that have this mark above them; a cell is its code."""
    text = (CHECKOUT / "docs/overrides.md").read_text("utf-8")
    tables = re.findall(rf"<!-- {kind} -->\n+\|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _composed(typed: str) -> dict[str, Any]:
    return compose(shlex.split(typed))[0]


def _without_setup(body: str) -> str:
    """What is left of a set-up command where everything is installed: the main job, but not these tests."""
    return "".join(line for line in body.splitlines(keepends=True) if line.startswith("kerncfg "))


def _plan_yaml(body: str, file: str | None) -> str:
    if file is not None:
        path = PurePosixPath(file)
        Path(path.parent).mkdir(parents=True, exist_ok=True)
        Path(path).write_text(body, encoding="utf-8")
        folder, group = path.parts[0], "/".join(path.parts[1:-1])
        return str(kerncfg.plan(f"{group}={path.stem}", config_dir=folder))
    return str(kerncfg.plan(config=yaml.safe_load(body)))


def _run_python(body: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(body, "<page>", "exec"), names)
    return printed.getvalue()


def _command(line: str) -> tuple[list[str], str | None, list[str]] | None:
    """Read a line that is one command of kerncfg with nothing for a shell to do: its words, its file, what follows."""
    plain = _QUOTED.sub("", line)
    if not line.startswith("kerncfg ") or set(plain) & _OF_SHELLS:
        return None
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    command, _, otherwise = " ".join(map(shlex.quote, lexer)).partition(" '||' ")
    words, _, file = command.partition(" '>' ")
    return shlex.split(words)[1:], file or None, shlex.split(otherwise)


def _run_command(words: list[str], file: str | None, otherwise: list[str]) -> None:
    """Run a command in this process, which has imported already what each process would import again."""
    with contextlib.ExitStack() as stack:
        if file is not None:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(file).open("w", encoding="utf-8"))))
        code = main(words)
    match otherwise:
        case ["echo", text] if code:
            print(text.replace("$?", str(code)))  # noqa: T201 - as a shell would
        case []:
            assert code == 0, (words, code)
        case _:
            assert otherwise[0] in ("true", "echo"), otherwise


def _run_bash(body: str, environment: Mapping[str, str]) -> str:
    commands = [_command(line) for line in body.splitlines()]
    if all(commands):
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
            for command in filter(None, commands):
                _run_command(*command)
        return printed.getvalue()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", body],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _alike(text: str) -> str:
    """Reduce text to what does not change from run to run: no digests, numbers, widths of tables."""
    text = re.sub(r"\b(?=\w*\d)[0-9a-f]{7,}\b", "#", text)
    text = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
    return re.sub(r"([─━═-])\1+", r"\1", text)


def prints(expected: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(_alike(expected), _alike(printed), flags)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: TestHub) -> None:
    (tmp_path / "page").mkdir()
    monkeypatch.chdir(tmp_path / "page")
    hub.add(*kernels.documented())
    hub.tokens["hf_of_yours"], hub.writers["hf_of_yours"] = frozenset({"*"}), frozenset({kernels.ACME})
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = hub.environment(PATH=path, PYTHONPATH=str(Path(loopback.__file__).parent), OMP_NUM_THREADS=None)
    names: dict[str, Any] = {"__name__": "page"}
    run: dict[str, Callable[[str, str | None], str]] = {
        "yaml": _plan_yaml,
        "python": lambda body, _: _run_python(body, names),
        "bash": lambda body, _: _run_bash(body, environment),
    }
    for block in _blocks(page):
        body = _without_setup(block.body) if block.setup else block.body
        if block.language not in _RUN or not body:
            continue
        try:
            printed = run[block.language](body, block.file)
        except Exception as error:
            error.add_note(f"in the block at {page.name}:{block.line}")
            raise
        if block.output is not None and block.language != "yaml":
            where = f"the block at {page.name}:{block.line} prints\n{printed}"
            assert prints(block.output, printed), f"{where}\nand the page says\n{block.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_only_blocks_that_are_checked_or_shown(page: Path) -> None:
    languages = {block.language for block in _blocks(page) if not block.language.startswith("{")}
    assert languages <= {*_RUN, *_SHOWN}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_of_every_yaml_block_which_file_it_is(page: Path) -> None:
    assert [block.line for block in _blocks(page) if block.language == "yaml" and not block.told] == []


def test_the_readme_has_the_two_commands_that_set_everything_up() -> None:
    readme = PAGES[0].read_text("utf-8")
    assert _SETUP.findall(readme) == ["run", "test"]
    assert sum(block.setup for block in _blocks(PAGES[0])) == 2


@pytest.mark.parametrize(("typed", "means"), _rows("compose"))
def test_an_override_of_the_page_means_what_a_file_would_say(typed: str, means: str) -> None:
    path, _, value = _code(means)[0].partition(": ")
    found: Any = _composed(_code(typed)[0])
    for part in path.split("."):
        found = found[part]
    assert found == yaml.safe_load(value)


@pytest.mark.parametrize(("typed", "file", "text", "other"), _rows("refused"))
def test_an_override_of_the_page_that_is_refused_is_told_what_to_type(
    typed: str, file: str, text: str, other: str
) -> None:
    with pytest.raises(kerncfg.ConfigError) as caught:
        _composed(_code(typed)[0])
    assert f"in a file it would be {_code(file)[0]}" in str(caught.value).replace("the text ", "")
    for line in _code(text) + _code(other):
        assert line in str(caught.value)
        _composed(line)


@pytest.mark.parametrize(("typed", "runs"), _rows("sweep"))
def test_a_sweep_of_the_page_has_the_runs_that_it_says(typed: str, runs: str) -> None:
    found = [compose(words)[0] for words in combinations(shlex.split(_code(typed)[0]))]
    assert found == [_composed(run) for run in _code(runs)]


def test_the_page_on_overrides_has_tables_of_every_kind() -> None:
    assert len(_rows("compose")) >= 30
    assert len(_rows("refused")) >= 4
    assert len(_rows("sweep")) >= 6


def test_what_the_pages_take_from_the_code_is_up_to_date() -> None:
    pages = runpy.run_path(str(CHECKOUT / "docs/_generate.py"))
    assert (CHECKOUT / "docs/reference.md").read_text("utf-8") == pages["reference"](), _AGAIN
    assert (CHECKOUT / "docs/python.md").read_text("utf-8") == pages["python"](), _AGAIN
    troubleshooting = (CHECKOUT / "docs/troubleshooting.md").read_text("utf-8")
    assert troubleshooting == pages["troubleshooting"](troubleshooting), _AGAIN


def test_the_picture_of_the_concepts_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(CHECKOUT / "docs/images/flow.py"))
    assert (CHECKOUT / "docs/images/flow.svg").read_text("utf-8") == drawn["picture"](), (
        "run: python docs/images/flow.py"
    )
    for page in ("concepts", "index"):
        alt = " ".join((CHECKOUT / f"docs/{page}.md").read_text("utf-8").split())
        assert f"![{drawn['ALT']}](images/flow.svg)" in alt


@pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["ground", "document", "outside"])
def test_the_words_of_the_picture_can_be_read(ground: str, dark: int) -> None:
    colours = runpy.run_path(str(CHECKOUT / "docs/images/flow.py"))["COLOURS"]
    inks = ["ink", "quiet", "world"] if ground == "ground" else ["ink", "quiet"]
    ratios = {ink: _contrast(colours[ink][dark], colours[ground][dark]) for ink in inks}
    assert min(ratios.values()) >= 4.5, ratios  # WCAG's least for text


def _contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    light = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(light) + 0.05) / (min(light) + 0.05)
