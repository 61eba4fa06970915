"""The house keeps its shape: one import order, one door a package, no module too long for one sitting."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kerncfg"

# A module imports only from modules above it.
ORDER = (
    "terminal",
    "errors",
    "locations",
    "variables",
    "ending",
    "anchors.language",
    "anchors.planning",
    "anchors.hub",
    "anchors.applying",
    "anchors.tools",
    "anchors.sharing",
    "anchors",
    "documents.plain",
    "documents.target",
    "documents.variant",
    "documents.fields",
    "documents.metadata",
    "documents.reference",
    "documents.row",
    "documents.config",
    "documents.lock",
    "documents.step",
    "documents.table",
    "documents.difference",
    "documents.explanation",
    "documents.plan",
    "compiler.tree",
    "compiler.reading",
    "compiler.assign",
    "compiler.bounds",
    "compiler.interpolate",
    "compiler.brackets",
    "compiler.unfit",
    "compiler.overrides",
    "compiler.sweeps",
    "compiler.fetched",
    "compiler.shared",
    "compiler.loading",
    "compiler.entries",
    "compiler.defaults",
    "compiler.compose",
    "compiler.composed",
    "compiler.schema",
    "compiler.writing",
    "saved",
    "compiler.saying",
    "compiler.flash",
    "compiler.normalise",
    "compiler.checking",
    "compiler.policy",
    "compiler.resolve",
    "machine",
    "together",
    "sources",
    "sources.names",
    "sources.importing",
    "sources.standin",
    "sources.environment",
    "sources.local",
    "sources.hub.revisions",
    "sources.hub.asking",
    "sources.hub.memory",
    "sources.hub.files",
    "sources.hub.released",
    "sources.hub.configs",
    "sources.hub.uploading",
    "sources.hub",
    "locking",
    "verdicts",
    "signs",
    "doctor",
    "applier.called",
    "applier.adapters",
    "applier.adapters.statements",
    "applier.adapters.registrations",
    "applier.adapters.torch",
    "applier.adapters.transformers",
    "applier.adapters.attention_source",
    "applier.adapters.attention",
    "applier.adapters.attention_forms",
    "applier.adapters.attention_calls",
    "applier.adapters.attention_names",
    "applier.adapters.attention_config",
    "applier.report",
    "applier.wrapping",
    "applier.passing",
    "applier.edits",
    "applier.bound",
    "applier.bind",
    "applier.deterministic",
    "applier.attributes",
    "applier.contract",
    "applier.match",
    "applier.wanting",
    "applier.attention",
    "applier.choices",
    "applier.decide",
    "applier.attending",
    "applier.functions",
    "applier.groups",
    "applier.stacking",
    "applier.arguments",
    "applier.layouts",
    "applier.converting",
    "applier.connecting",
    "applier.alike",
    "applier.fused",
    "applier.fuse",
    "applier.fusing",
    "applier.findings",
    "applier.settle",
    "applier.added",
    "applier.telling",
    "applier.binding",
    "applier.apply",
    "models",
    "evidence.contents",
    "evidence.process",
    "evidence.keeping",
    "evidence.listening",
    "evidence.padding",
    "evidence.capture",
    "evidence.judge",
    "evidence.wording",
    "evidence.timed",
    "evidence.rows",
    "evidence.compare",
    "evidence.widen",
    "evidence.trial",
    "evidence.whole",
    "evidence.verify",
    "evidence.timing",
    "evidence.tokens",
    "evidence.bench",
    "evidence.gate",
    "api",
    "dialects.translation",
    "dialects.kernel_config",
    "dialects.kernel_mapping",
    "dialects.pins",
    "dialects.liger",
    "dialects.literals",
    "dialects.source",
    "dialects.files",
    "trainer",
    "outcome",
    "sharing.experiment",
    "sharing.card",
    "sharing.secrets",
    "sharing.push",
    "sharing.pull",
    "page.markup",
    "page.colours",
    "page.tree",
    "page.reasons",
    "page.charts",
    "page.drawing",
    "page.figures",
    "page.evidence",
    "page.speed",
    "page.report",
    "page.comparison",
    "page.sweep",
    "launching",
    "job",
    "run",
    "cli.offers",
    "cli.completing",
    "cli.words",
    "cli.tables",
    "cli.configs",
    "cli.importing",
    "cli.plans",
    "cli.locks",
    "cli.jobs",
    "cli.sharing",
    "cli.machines",
    "cli",
)
# The package's own names and the door into Hydra, which nothing of ours imports.
DOORSTEPS = ("", "__main__", "_hydra")
# Folders of bundled kernels import nothing of kerncfg but each other, as a kernel from elsewhere would.
KERNELS = "kernels"
FOLDERS = ("documents", "compiler", "applier", "evidence", "dialects", "page", "sharing")

# Where each package may be imported; a folder stands for everything in it.
DOORS: dict[str, tuple[str, ...]] = {
    "click": ("cli",),
    "huggingface_hub": ("sources.hub",),
    "hydra": ("compiler.overrides", "compiler.shared", "compiler.loading", "compiler.defaults", "run", "_hydra"),
    "jsonschema": ("compiler.schema",),
    "matplotlib": ("page.drawing",),
    "omegaconf": (
        "compiler.shared",
        "compiler.loading",
        "compiler.defaults",
        "compiler.compose",
        "compiler.composed",
        "compiler.interpolate",
    ),
    "packaging": ("documents", "compiler", "machine", "sources.hub", "doctor"),
    "rich": ("cli",),
    # `signs` asks torch what it is built for, which only torch knows.
    "torch": ("machine", "signs", "applier", "models", "evidence", KERNELS),
    "transformers": ("applier.adapters.transformers", "models", "trainer"),
    "triton": (KERNELS,),
    "yaml": ("compiler.reading",),
}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda name: name or "kerncfg")


def _imports(module: str, *, run: bool = False) -> Iterator[str]:
    """Every module that an import statement names, wherever it stands; with `run` only if executed."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    for node in ast.walk(_Executed().visit(tree) if run else tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            nested = {f"{node.module}.{alias.name}" for alias in node.names}
            ours = {name for name in nested if name.removeprefix("kerncfg.") in MODULES}
            yield from ours or {node.module}


class _Executed(ast.NodeTransformer):
    """Takes out what stands below `if TYPE_CHECKING:`."""

    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def _own(module: str) -> set[str]:
    ours = (name for name in _imports(module) if _root(name) == "kerncfg")
    return {name.removeprefix("kerncfg").removeprefix(".") for name in ours} - {module}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _inside(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_every_module_has_its_place() -> None:
    outside = {name for name in MODULES if name not in ORDER and not _inside(name, (*DOORSTEPS[1:], KERNELS))}
    assert outside - {"", *FOLDERS} == set()
    assert set(ORDER) - set(MODULES) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_is_no_module_is_empty(folder: str) -> None:
    body = ast.parse(MODULES[folder].read_text("utf-8")).body
    assert all(isinstance(node, ast.Expr) for node in body)


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_modules_above_it(module: str) -> None:
    above = ORDER[: ORDER.index(module)]
    assert _own(module) - set(above) == set()


@pytest.mark.parametrize("module", [name for name in MODULES if _inside(name, (KERNELS,))])
def test_a_bundled_kernel_imports_nothing_of_kerncfg_but_its_neighbours(module: str) -> None:
    assert {name for name in _own(module) if not _inside(name, (KERNELS,))} == set()


@each_module
def test_a_package_has_one_door(module: str) -> None:
    foreign = {_root(name) for name in _imports(module, run=True)} - sys.stdlib_module_names - {"kerncfg"}
    assert foreign - set(DOORS) == set(), "a package that has no door yet"
    assert {name for name in foreign if not _inside(module, DOORS[name])} == set()


@each_module
def test_no_module_is_longer_than_one_sitting(module: str) -> None:
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= 400
