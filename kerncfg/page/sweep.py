"""The page of a comparison: one line for each run, and how fast each was, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kerncfg.errors import KerncfgError
from kerncfg.outcome import STAGES, WRONG, blaming, check_documents
from kerncfg.page.charts import Scale, Strip, chart, dot, line, ratio_scale, spread_of
from kerncfg.page.colours import Colours, colours, swatch
from kerncfg.page.comparison import Rate, compared, gather
from kerncfg.page.markup import NONE, TIMES, Child, Markup, document, element, table
from kerncfg.page.report import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kerncfg.outcome import Outcome
    from kerncfg.page.comparison import Compared, Comparison, Job, Speed

__all__ = ["compare", "page"]

_WORDS = {"faster": "faster", "slower": "slower"}
_BRIEF = 60  # characters of overrides beside a plot
_LEGEND = "How many times as fast as the original: the median, and how far readings spread. Right of 1 is faster."


def compare(*folders: str | Path, output: str | Path | None = None) -> Comparison:
    """Compare runs: the folder of a sweep, which stands for all runs below it, or the folders of several runs.

    A run that failed, or whose files cannot be read, is a line with its error: the others are not lost. With `output`
    the page about them is written there.

    Raises:
        ConfigError: There is no run in a folder.
        SourceError: The page cannot be written.
    """
    outcomes = gather([Path(folder) for folder in folders])
    try:
        found, text = _shown(outcomes)
    except WRONG:  # the values of one run are wrong: find which, as each file is valid JSON
        found, text = _shown([_tried(outcome) for outcome in outcomes])
    if output:
        write(text, Path(output))
    return found


def _shown(outcomes: Sequence[Outcome]) -> tuple[Comparison, Markup]:
    """Return a comparison of which the table, the data and the page could be made."""
    found = compared(outcomes)
    str(found)
    return found, page(found)


def _tried(outcome: Outcome) -> Outcome:
    """Return an outcome, or what remains of it where its files hold what cannot be shown, with that as its error."""
    try:
        if any(getattr(outcome, stage) for stage in STAGES):
            check_documents(outcome.home)
        with blaming(outcome.home):
            _shown([outcome])
    except KerncfgError as error:
        return replace(outcome, report=None, verification=None, measurement=None, error=error)
    return outcome


def page(found: Comparison) -> Markup:
    """Return the page of several runs."""
    known = colours(found.outcomes)
    count = len(found.jobs)
    ended = sum(job.passed for job in found.jobs)
    title = f"{count} run{'' if count == 1 else 's'} compared"
    badge = element("span", f"{ended} of {count} passed", class_=f"badge {'good' if found.passed else 'bad'}")
    shared = element("p", "all: ", element("code", " ".join(found.shared)), class_="dim") if found.shared else None
    return document(
        f"{title} - kerncfg",
        element("header", element("p", "kerncfg compare", class_="kicker"), element("h1", title, " ", badge), shared),
        element(
            "main",
            _runs(found, known),
            _models(found),
            _spoken(found),
            _kernels(found, known),
            _faults(found),
            id="content",
        ),
        element("footer", element("p", "Made by kerncfg. This page holds everything it shows and asks no network.")),
    )


def _section(name: str, title: str, *body: Child) -> Markup:
    head = element("h2", title, id=f"{name}-title")
    return element("section", head, *body, id=name, aria_labelledby=f"{name}-title")


def _words(job: Job) -> str:
    return " ".join(job.differs) or " ".join(job.overrides) or "no overrides"


def _brief(job: Job) -> Markup:
    """Return what a job is beside its number, in a line or two; the table has all of it."""
    words = _words(job)
    return element("code", words if len(words) <= _BRIEF else f"{words[:_BRIEF]}…")


def _runs(found: Comparison, known: Colours) -> Markup:
    spoken = list(dict.fromkeys(name for job in found.jobs for name in job.generation))
    heads = ("run", "overrides", "result", "model", "training", *spoken, "swapped", "kernels", "folder")
    rows = [
        (
            str(job.number),
            element("code", _words(job), class_="wrap"),
            _result(job),
            _speed(next((speed for mode, speed in job.model.items() if mode != "training"), None)),
            _speed(job.model.get("training")),
            *(_speed(job.generation.get(name)) for name in spoken),
            f"{job.counts['swapped']} of {sum(job.counts.values())}" if job.counts else NONE,
            [element("div", swatch(kernel, known), kernel) for kernel in dict.fromkeys(k.kernel for k in job.kernels)],
            element("code", job.folder),
        )
        for job in found.jobs
    ]
    return _section("runs", "Runs", table(heads, rows, caption="Runs"))


def _result(job: Job) -> Markup:
    word = "error" if job.error else "passed" if job.passed else "failed"
    return element("b", word, class_="good" if job.passed else "bad")


def _speed(speed: Speed | None) -> Child:
    if speed is None or speed.speedup is None:
        return NONE
    word = _WORDS.get(speed.verdict or "", "same")
    rate = speed.kernel_tokens_s if isinstance(speed, Rate) else None
    tokens = [", ", element("span", f"{rate:,.0f} tokens/s", class_="dim part")] if rate else None
    return [element("b", f"{speed.speedup:.2f}{TIMES}"), " ", element("span", word, class_=word), tokens]


def _scale(speeds: list[Speed]) -> Scale:
    ends = [end for speed in speeds for end in spread_of(speed.speedup or 1.0, min(speed.spread or 0.0, 3.0))]
    return ratio_scale(ends)


def _strip(name: Child, speed: Speed, scale: Scale) -> Strip:
    if speed.speedup is None:
        return Strip(label=name, drawing=None, figure=speed.reason or "not measured")
    low, high = spread_of(speed.speedup, speed.spread or 0.0)
    word = _WORDS.get(speed.verdict or "", "same")
    drawing = (line(scale.at(low), scale.at(high), f"{word} range"), dot(scale.at(speed.speedup), f"{word} mark"))
    return Strip(label=name, drawing=drawing, figure=_speed(speed))


def _models(found: Comparison) -> Markup | None:
    """Plot the whole model of each run on one scale."""
    said = [(job, mode, speed) for job in found.jobs for mode, speed in job.model.items()]
    figure = _plotted(said, "Speed of the whole model")
    return _section("models", "How fast is the model?", figure) if figure else None


def _spoken(found: Comparison) -> Markup | None:
    """Plot what each run reads and writes in a second, as far as it is of a language model."""
    said = [(job, name, rate) for job in found.jobs for name, rate in job.generation.items()]
    figure = _plotted(sorted(said, key=lambda one: one[1], reverse=True), "Tokens in a second")
    return _section("tokens", "How many tokens in a second?", figure) if figure else None


def _plotted(said: Sequence[tuple[Job, str, Speed]], what: str) -> Markup | None:
    if not said:
        return None
    scale = _scale([speed for *_, speed in said])
    strips = [
        _strip(
            [element("b", f"{job.number} "), _brief(job), element("span", f" {mode}", class_="way")],
            speed,
            scale,
        )
        for job, mode, speed in said
    ]
    return element("figure", element("figcaption", _LEGEND), chart(strips, scale, label=what, middle=1.0))


def _kernels(found: Comparison, known: Colours) -> Markup | None:
    """Plot each kernel at the site where it does worst, run by run."""
    said = [
        (job, each, mode, speed) for job in found.jobs for each in job.kernels for mode, speed in each.slowest.items()
    ]
    if not said:
        return None
    scale = _scale([speed for *_, speed in said])
    said.sort(key=lambda one: (one[1].name, one[1].kernel, one[2], one[0].number))
    strips = [_strip(_about(job, each, mode, known), speed, scale) for job, each, mode, speed in said]
    shown = chart(strips, scale, label="Speed of each kernel", middle=1.0)
    legend = "Each kernel where it gains least. " + _LEGEND
    return _section("kernels", "Which kernel is faster?", element("figure", element("figcaption", legend), shown))


def _about(job: Job, each: Compared, mode: str, known: Colours) -> list[Child]:
    failed = element("span", " failed verification", class_="bad") if each.passed is False else None
    return [
        swatch(each.kernel, known),
        element("b", each.name),
        element("span", f" {mode}", class_="way"),
        failed,
        element("span", f"run {job.number}, {each.kernel} {TIMES}{each.sites}", class_="dim"),
    ]


def _whys(job: Job) -> list[str]:
    removed = [f"{name} was taken off the model" for name in job.removed]
    return [f"{job.error['error']}: {job.error['message']}"] if job.error else [*job.failed, *removed]


def _faults(found: Comparison) -> Markup | None:
    items = [
        element("li", element("b", f"Run {job.number}"), " ", element("code", _words(job)), ": ", why)
        for job in found.jobs
        for why in _whys(job)
    ]
    return _section("faults", "What failed", element("ul", items, class_="faults")) if items else None
