"""Every page does what it says: its blocks run in order, in one folder, and print what stands below them.

A `yaml` block whose first line is a comment with a path is written to that file, and the option is
planned; any other is a document and is planned as one. `python` and `bash` blocks are run. A `text`
block right after one of these is what it prints: numbers may differ, and `...` stands for anything. Of
the README's two set-up commands only the main job runs here; `.ci/run` runs all of both.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

import kerncfg

CHECKOUT = Path(__file__).parent.parent
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>[^\n`]*)\n(?P<body>.*?)^```$", re.M | re.S)
_SETUP = re.compile(r"<!-- command: (\w+) -->")
_FILE = re.compile(r"# (?P<path>[\w/-]+\.yaml)\n")
_RUN = ("yaml", "python", "bash")
_SHOWN = ("text", "")  # pictures and output


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    body: str
    line: int
    setup: bool
    output: str | None


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    fences = list(_FENCE.finditer(text))
    for index, fence in enumerate(fences):
        follower = fences[index + 1] if index + 1 < len(fences) else None
        adjacent = follower is not None and not text[fence.end() : follower.start("language") - 3].strip()
        shown = follower["body"] if follower and adjacent and follower["language"] == "text" else None
        yield Block(
            language=fence["language"],
            body=fence["body"],
            line=text.count("\n", 0, fence.start("language")) + 1,
            setup=bool(_SETUP.search(fence["before"])),
            output=shown,
        )


def _without_setup(body: str) -> str:
    """What is left of a set-up command where everything is installed: the main job, but not these tests."""
    return "".join(line for line in body.splitlines(keepends=True) if line.startswith("kerncfg "))


def _plan_yaml(body: str) -> str:
    if found := _FILE.match(body):
        path = PurePosixPath(found["path"])
        Path(path.parent).mkdir(parents=True, exist_ok=True)
        Path(path).write_text(body, encoding="utf-8")
        folder, group = path.parts[0], "/".join(path.parts[1:-1])
        return str(kerncfg.plan(f"{group}={path.stem}", config_dir=folder))
    return str(kerncfg.plan(config=yaml.safe_load(body)))


def _run_python(body: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(body, "<page>", "exec"), names)
    return printed.getvalue()


def _run_bash(body: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", body],
        env={**os.environ, "PATH": path},
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


def _prints(expected: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(_alike(expected), _alike(printed), flags)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    run = {"yaml": _plan_yaml, "python": lambda body: _run_python(body, names), "bash": _run_bash}
    for block in _blocks(page):
        body = _without_setup(block.body) if block.setup else block.body
        if block.language not in _RUN or not body:
            continue
        try:
            printed = run[block.language](body)
        except Exception as error:
            error.add_note(f"in the block at {page.name}:{block.line}")
            raise
        if block.output is not None and block.language != "yaml":
            where = f"the block at {page.name}:{block.line} prints\n{printed}"
            assert _prints(block.output, printed), f"{where}\nand the page says\n{block.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_only_blocks_that_are_checked_or_shown(page: Path) -> None:
    languages = {block.language for block in _blocks(page) if not block.language.startswith("{")}
    assert languages <= {*_RUN, *_SHOWN}


def test_the_readme_has_the_two_commands_that_set_everything_up() -> None:
    readme = PAGES[0].read_text("utf-8")
    assert _SETUP.findall(readme) == ["run", "test"]
    assert sum(block.setup for block in _blocks(PAGES[0])) == 2
