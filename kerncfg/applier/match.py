"""Which row takes which module."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kerncfg.documents.plan import Step
from kerncfg.errors import ConflictError

if TYPE_CHECKING:
    from kerncfg.applier.adapters import LayerClass, Site, Sites
    from kerncfg.documents.config import Match

__all__ = [
    "Claim",
    "claims",
    "class_fits",
    "excluded",
    "glob",
    "is_called",
    "offered",
    "origin",
    "path_fits",
    "placed",
    "row",
]

# The step that takes a module, or would have taken it but for the `exclude` glob beside it. Modules share it: naming
# its fields, or one for each of 10,000 modules, would cost as much as walking over them.
Claim = tuple[Step, str | None]


def row(step: Step) -> str:
    """Return how the user says a step: the key of its row."""
    return step.key


def origin(step: Step) -> str | None:
    """Return where the first kernel of a step was said."""
    for found in step.modes.values():
        said = [choice.origin for choice in found.choices]
        said += [rejection.origin for rejection in (*found.rejected, *found.unreached)]
        if first := next(filter(None, said), None):
            return first
    return None


def placed(step: Step) -> str:
    """Return how the user says a step, and where."""
    said = origin(step)
    return f"{row(step)} ({said})" if said else row(step)


def claims(sites: Sites, steps: Sequence[Step]) -> list[Claim | None]:
    """Return for every place which step takes or excludes the site there, if any; a `match` beats a name.

    Raises:
        ConflictError: Two rows take one module by `match`.
    """
    steps = [step for step in steps if step.node == "kernels"]
    rows = {layer: _Rows.of(layer, steps) for layer in set(sites.layers) if layer is not None}
    found: list[Claim | None] = [None if layer is None else rows[layer].all for layer in sites.layers]
    if any(of.varies for of in rows.values()):
        for place, layer in enumerate(sites.layers):
            if layer is not None and rows[layer].varies:
                found[place] = rows[layer].claim(sites[place])
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that may take a class's modules: by `match`, as far as the class decides it, and by name."""

    matching: tuple[Step, ...]
    named: Step | None
    varies: bool  # whether the path decides
    all: Claim | None  # where it does not

    @classmethod
    def of(cls, layer: LayerClass, steps: Sequence[Step]) -> _Rows:
        matches = [step for step in steps if step.match is not None and step.match.function is None]
        matching = tuple(step for step in matches if step.match is not None and _layer_fits(step.match, layer))
        named = next((step for step in steps if step.match is None and step.name == layer.name), None)
        rows = [*matching, *([named] if named else [])]
        varies = len(rows) > 1 or any(step.exclude or (step.match and step.match.path is not None) for step in rows)
        return cls(matching, named, varies, (rows[0], None) if rows and not varies else None)

    def claim(self, site: Site) -> Claim | None:
        taking = [step for step in self.matching if path_fits(step.match, site)]
        if self.named is not None:
            taking.append(self.named)
        verdicts = [(step, excluded(step, site)) for step in taking]
        free = [claim for claim in verdicts if claim[1] is None]
        matching = [step for step, _ in free if step.match is not None]
        if len(matching) > 1:
            raise ConflictError(
                f"{site.path or 'the model itself'} ({site.layer.cls.__qualname__}) is taken by "
                f"{' and '.join(map(placed, matching))}, each through its match",
                hint="narrow one match, or name the module in the other row's exclude",
            )
        return next(iter([*free, *verdicts]), None)


def class_fits(match: Match, layer: LayerClass) -> bool:
    """Whether a match may mean the modules of a class, by `class` and `type`."""
    if match.class_ is not None and not any(fnmatchcase(base.__name__, match.class_) for base in layer.classes):
        return False
    return match.type is None or any(is_called(base, match.type) for base in layer.classes)


def _layer_fits(match: Match, layer: LayerClass) -> bool:
    if not class_fits(match, layer):
        return False
    if match.name is None:
        return True
    # A base's name counts for a class with its own forward only where the row says the class too.
    return match.name == layer.name or (match.class_ is not None and match.name == layer.inherited)


def is_called(cls: Any, name: str) -> bool:
    """Whether a class, or a function, has this qualified name, or one under which another imported module offers it."""
    if name == f"{cls.__module__}.{cls.__qualname__}":
        return True
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:end]))
        if found is not None:
            for part in parts[end:]:
                # A lazy module imports what it is asked for; the class itself is imported already.
                found = vars(found).get(part) or (getattr(found, part, None) if part == cls.__name__ else None)
                if not hasattr(found, "__dict__"):
                    return False
            return found is cls
    return False


def offered(cls: type) -> str:
    """Return the shortest name under which an imported module offers a class: `torch.nn.RMSNorm`."""
    parts = cls.__module__.split(".")
    packages = (".".join(parts[:end]) for end in range(1, len(parts)))
    found = (name for name in packages if name in sys.modules and vars(sys.modules[name]).get(cls.__qualname__) is cls)
    return f"{next(found, cls.__module__)}.{cls.__qualname__}"


def path_fits(match: Match | None, site: Site) -> bool:
    """Whether a match means the module at a site, by `path`."""
    if match is None or match.path is None:
        return True
    return any(map(glob(match.path).fullmatch, _dotted(site)))


def excluded(step: Step, site: Site) -> str | None:
    """Return the glob of a step that leaves a site out, if one does."""
    return next((text for text in step.exclude if any(map(glob(text).fullmatch, _dotted(site)))), None)


def _dotted(site: Site) -> list[str]:
    return [f"{path}." if path else "" for path in (site.path, *site.others)]


@lru_cache(maxsize=1024)
def glob(text: str) -> re.Pattern[str]:
    """Return a glob over module paths as a pattern for a path with a dot after every segment.

    `*` is exactly one segment, or part of one; `**` any number of segments, none included; all else is literal.
    """
    pattern = ""
    for segment in text.split(".") if text else ():
        if segment == "**":
            pattern += r"(?:[^.]+\.)*" if not pattern.endswith(")*") else ""
        elif segment == "*":
            pattern += r"[^.]+\."
        else:
            pattern += r"[^.]*".join(map(re.escape, segment.split("*"))) + r"\."
    return re.compile(pattern)
