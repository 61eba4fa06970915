"""Where each message is explained: the sections of `docs/troubleshooting.md`, each with the messages it is about.

In a message `…` stands for any words. The sections are asked in order, so what is particular stands before what is
general, and a message that holds another one leads to the section of the inner one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from kerncfg.anchors.applying import APPLYING
from kerncfg.anchors.hub import DEPENDENCIES, HUB, LOCKS
from kerncfg.anchors.language import IN_FILES, ON_THE_COMMAND_LINE, REFERENCES, VALUES
from kerncfg.anchors.planning import GENERAL, PLAN_FILES, REASONS
from kerncfg.anchors.sharing import SHARING
from kerncfg.anchors.tools import EVIDENCE, FROM_OTHER_TOOLS, MODELS, RUNS

__all__ = ["ANCHORS", "PAGE", "anchor_of"]

PAGE = "docs/troubleshooting.md"

_PARTS = (
    SHARING,
    FROM_OTHER_TOOLS,
    ON_THE_COMMAND_LINE,
    IN_FILES,
    VALUES,
    REFERENCES,
    PLAN_FILES,
    MODELS,
    RUNS,
    REASONS,
    LOCKS,
    HUB,
    APPLYING,
    EVIDENCE,
    DEPENDENCIES,
    GENERAL,
)
ANCHORS: Mapping[str, tuple[str, ...]] = {anchor: messages for part in _PARTS for anchor, messages in part.items()}


def anchor_of(message: str) -> str | None:
    """Return the section that explains a message or a reason, or `None`."""
    return next((anchor for anchor, pattern in _patterns() if pattern.search(message)), None)


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(anchor, re.compile("|".join(map(_pattern, said)), re.DOTALL)) for anchor, said in ANCHORS.items()]


def _pattern(message: str) -> str:
    """Return a message as a pattern; one that begins with words begins a sentence or stands behind a colon."""
    words = message.strip("…")
    start = "" if message.startswith("…") else r"(?<![\w`'])"
    end = r"(?!\w)" if message[-1].isalnum() else ""
    return start + ".*?".join(map(re.escape, words.split("…"))) + end
