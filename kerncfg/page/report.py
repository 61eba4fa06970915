"""One run as one page: a file of its own that asks nothing of any network, made from the files of the run's folder."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.reading import Place, parse_bytes
from kerncfg.documents import table as words
from kerncfg.errors import ContractError, SourceError
from kerncfg.outcome import STAGES, Outcome, blaming, read
from kerncfg.page.colours import Colours, colours
from kerncfg.page.evidence import verification
from kerncfg.page.figures import noted, verdict
from kerncfg.page.markup import NONE, Child, Markup, document, element
from kerncfg.page.reasons import reasons
from kerncfg.page.speed import rates, speed, speedup
from kerncfg.page.tree import tree

if TYPE_CHECKING:
    from kerncfg.documents.plan import Plan

__all__ = ["page", "report", "write"]


def report(folder: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of a run, by default as `report.html` into its folder, and return where it is.

    Raises:
        ConfigError: The folder is none of a run, or one of its files cannot be read.
        IntegrityError: The plan in the folder was edited.
        SourceError: The page cannot be written.
    """
    place = Path(folder)
    with blaming(place):
        text = page(read(place))
    return write(text, Path(output) if output else place / "report.html")


def write(text: str, file: Path) -> Path:
    """Write a page and return where it is."""
    try:
        file.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SourceError(
            f"{file} cannot be written: {error.strerror}", hint="say another file with -o FILE"
        ) from error
    return file


def page(outcome: Outcome) -> Markup:
    """Return the page of a run, as far as the run came."""
    known, config = colours([outcome]), _config(outcome)
    title = _title(outcome, config[1])
    verified = outcome.verification.rows if outcome.verification else ()
    failed = frozenset((row.name, row.kernel) for row in verified if not row.passed)
    functions = (
        frozenset(row.name for row in outcome.report.rows if row.kind == "function") if outcome.report else frozenset()
    )
    sections = [
        tree(outcome.report, known) if outcome.report and outcome.report.rows else None,
        verification(outcome.verification, _swapped(outcome), known, functions) if outcome.verification else None,
        speed(outcome.measurement, failed, known, functions) if outcome.measurement else None,
        reasons(_as_run(outcome), outcome.report, known),
        _notes(outcome),
        _again(outcome, config[0]),
    ]
    links = [(name, word) for (name, word), section in zip(_PARTS, sections, strict=True) if section]
    return document(
        f"{title} - kerncfg",
        element("header", _heading(outcome, title), _contents(links)),
        element("main", _error(outcome), _cards(outcome, known), sections, id="content"),
        element("footer", element("p", "Made by kerncfg. This page holds everything it shows and asks no network.")),
    )


_PARTS = (
    ("modules", "Modules"),
    ("verification", "Same?"),
    ("speed", "Faster?"),
    ("why", "Why"),
    ("notes", "Notes"),
    ("again", "Again"),
)


def _as_run(outcome: Outcome) -> Plan | None:
    """Return the plan without what had to give way, which is passed over with the reason."""
    plan, found = outcome.plan, outcome.verification
    if plan is None or found is None or not found.removed:
        return plan
    from kerncfg.evidence.gate import without  # loads torch, which no other page needs

    try:
        return without(plan, {(name, kernel): reason for name, kernel, reason in found.removed})
    except ContractError:
        return plan  # the run ended there, and says so


def _swapped(outcome: Outcome) -> Mapping[tuple[str, str], int]:
    rows = outcome.report.rows if outcome.report else ()
    return Counter((row.name, row.kernel) for row in rows if row.status == "swapped" and row.kernel)


def _config(outcome: Outcome) -> tuple[str | None, Mapping[str, Any]]:
    """Return the composed configuration of the run as text, and its `model` node."""
    file = outcome.home / "config.yaml"
    if not file.is_file():
        return None, {}
    data = file.read_bytes()
    found = parse_bytes(data, Place("file", str(file))).plain().get("model")
    return data.decode("utf-8-sig"), found if isinstance(found, Mapping) else {}


def _title(outcome: Outcome, model: Mapping[str, Any]) -> str:
    name = next((str(model[key]) for key in ("pretrained", "architecture", "factory") if model.get(key)), "a model")
    target = outcome.plan.target if outcome.plan else None
    return f"{name} on {target.device}" if target else name


def _heading(outcome: Outcome, title: str) -> list[Child]:
    plan = outcome.plan
    said = words.heading(plan.digest, plan.target) if plan else "no plan was made"
    job = f"run {outcome.number}" + (f" of {outcome.total}" if outcome.total else "")
    facts = [said, job if outcome.sweep else None, _when(outcome.started)]
    return [
        element("p", "kerncfg run", class_="kicker"),
        element("h1", title, " ", _badge(outcome)),
        element("p", " · ".join(filter(None, facts)), class_="dim"),
        element("p", element("code", " ".join(outcome.swept or outcome.overrides) or "no overrides"), class_="said"),
    ]


def _when(started: str | None) -> str | None:
    return started and started.replace("T", " ").replace("+00:00", " UTC")


def _badge(outcome: Outcome) -> Markup:
    word, kind = ("passed", "good") if outcome.passed else ("failed", "bad")
    return element("span", word, class_=f"badge {kind}")


def _contents(links: list[tuple[str, str]]) -> Markup:
    items = [element("li", element("a", word, href=f"#{name}")) for name, word in links]
    return element("nav", element("ul", items), aria_label="Sections")


def _error(outcome: Outcome) -> Markup | None:
    """Return why the run came no further."""
    error = outcome.error
    if error is None:
        return None
    hint = element("p", f"hint: {error.hint}") if error.hint else None
    return element("div", element("h2", type(error).__name__), element("pre", error.message), hint, class_="error")


def _cards(outcome: Outcome, known: Colours) -> Markup:
    cards = [_sites_card(outcome), _same_card(outcome), _speed_card(outcome), _plan_card(outcome)]
    return element("section", cards, class_="cards", aria_label="Summary")


def _card(title: str, large: Child, *lines: Child) -> Markup:
    below = [element("p", line) for line in lines if line]
    return element("div", element("h2", title), element("p", large, class_="large"), below, class_="card")


def _sites_card(outcome: Outcome) -> Markup | None:
    if outcome.report is None:
        return None
    counts = outcome.report.counts
    total = sum(counts.values())
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != "swapped")
    kernels = {row.kernel for row in outcome.report.rows if row.status == "swapped"}
    used = f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}"
    return _card("Swapped", [element("b", str(counts["swapped"])), f" of {total} sites"], f"{others}; {used}")


def _same_card(outcome: Outcome) -> Markup | None:
    found = outcome.verification
    if found is None:
        return None
    if not found.rows and not found.model:
        return _card("Same result", NONE, "nothing is swapped")
    passed = sum(row.passed for row in found.rows)
    model = ["the model's output ", verdict(found.model.passed)] if found.model else None
    count = len(found.removed)
    gone = element("span", f"{count} kernel{'' if count == 1 else 's'} taken off", class_="bad") if count else None
    return _card("Same result", [element("b", f"{passed} of {len(found.rows)}"), " passed"], model, gone)


def _speed_card(outcome: Outcome) -> Markup | None:
    found = outcome.measurement
    if found is None:
        return None
    if found.model is None:
        return _card("Speed of the model", NONE, "nothing is swapped")
    training = found.model.training
    spread = None if found.model.spread is None else f"{found.model.mode}, spread {found.model.spread:.2f}"
    also = ["training ", speedup(training)] if training else None
    spoken = [[f"{name} ", speedup(one)] for name, one in rates(found.generation)] if found.generation else []
    return _card("Speed of the model", speedup(found.model), found.model.reason or spread, also, *spoken)


def _plan_card(outcome: Outcome) -> Markup | None:
    plan = outcome.plan
    if plan is None:
        return None
    target = plan.target
    where = [
        f"{target.cpu} {target.os}",
        f"torch {target.torch}",
        target.capability and f"capability {target.capability}",
    ]
    digest = element("code", plan.digest[:12], title=plan.digest)
    return _card("Target", element("b", target.device), ", ".join(filter(None, where)), ["plan ", digest])


def _notes(outcome: Outcome) -> Markup | None:
    """Return what was ignored or left out on the way."""
    parts = (outcome.plan, outcome.report)
    notes = [note for part in parts if part for note in part.notes]
    idle = outcome.report.idle if outcome.report else {}
    notes += [f"nothing swapped: {row}: {why}" for row, why in idle.items() if f"{row}: {why}" not in notes]
    if not notes:
        return None
    head = element("h2", "Notes", id="notes-title")
    return element("section", head, noted(notes), id="notes", aria_labelledby="notes-title")


def _again(outcome: Outcome, config: str | None) -> Markup:
    """Return how to do it again: the command, the environment, the stages and the whole configuration."""
    command = shlex.join(outcome.command or ["kerncfg", "run", *outcome.overrides])
    button = element("button", "Copy", type="button", id="copy", hidden=True)
    text = element("pre", element("code", command, id="command"), tabindex="0")
    pairs = [*_environment(outcome), ("stages", _stages(outcome)), ("folder", str(outcome.home))]
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in pairs if value]
    summary = element("summary", "The whole configuration, each value with where it was said")
    return element(
        "section",
        element("h2", "Do it again", id="again-title"),
        element("div", text, button, class_="command"),
        element("dl", facts),
        element("details", summary, element("pre", element("code", config), tabindex="0")) if config else None,
        id="again",
        aria_labelledby="again-title",
    )


def _environment(outcome: Outcome) -> list[tuple[str, str]]:
    found = outcome.environment
    if found is None:
        return []
    return [
        ("system", found.system + (f", {found.processors} processors" if found.processors else "")),
        (
            "versions",
            ", ".join([f"Python {found.python}", *(f"{name} {said}" for name, said in sorted(found.packages.items()))]),
        ),
        ("variables", " ".join(f"{name}={value}" for name, value in sorted(found.variables.items()))),
    ]


def _stages(outcome: Outcome) -> str:
    return ", ".join(f"{stage} {taken:.3g} s" for stage in STAGES if (taken := outcome.seconds.get(stage)) is not None)
