"""How far interpolations lead, counted before any of them is resolved: how many values, through how many others.

OmegaConf resolves a text anew wherever it is referred to, so a few lines that refer to each other are more than time
or memory holds. Here every place is counted once, without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerncfg.compiler.tree import Fault, KeyPath, Node, Origins

__all__ = ["MAX_CHAIN", "MAX_EXPANDED", "endless"]

MAX_EXPANDED = 20_000  # values and texts on the way, in all; OmegaConf resolves some 3,000 a second
MAX_CHAIN = 50  # OmegaConf is at the end of Python's stack after some 70

_TOKEN = re.compile(r"(\\*)\$\{|\}")
_PART = re.compile(r"[^.\[\]]+")
_LONGEST = 1000  # characters of a value that stands inside a reference


@dataclass(slots=True)
class _Count:
    """What one place expands to, and which of the places it refers to is the furthest from an end."""

    values: int
    chain: int = 0
    through: KeyPath | None = None


@dataclass(slots=True)
class _Counts:
    """The counts of a document's places; `aims` are the places that a text refers to, each with the steps there."""

    root: Node
    found: dict[KeyPath, _Count] = field(default_factory=dict)
    aims: dict[KeyPath, list[tuple[KeyPath, int]]] = field(default_factory=dict)
    reading: int = 0  # texts that are being read, each for the sake of the one before it

    def count(self, path: KeyPath) -> _Count:
        """Count a place and all that it needs; a place inside itself counts nothing there."""
        stack, opened = [(path, False, 0)], dict[KeyPath, int]()
        while stack:
            place, inside, held = stack.pop()
            if place in self.found or (place in opened and not inside):
                continue
            aims = self.below(place)
            if inside:
                self.found[place] = self.joined(place, aims, opened)
                continue
            opened[place] = held = held + (place not in self.aims)
            stack.append((place, True, held))
            stack += [(aim, False, held) for aim, _ in reversed(aims)]
        return self.found[path]

    def joined(self, path: KeyPath, aims: list[tuple[KeyPath, int]], opened: Mapping[KeyPath, int]) -> _Count:
        """Add up what a place is made of; `opened` says how many maps and lists the way to each open place has."""
        made = _Count(1)
        for aim, steps in aims:
            below = self.found.get(aim)
            if below is None:  # a circle; OmegaConf tells those of texts alone from those that have no end
                by_way = opened[path] > opened[aim] or aim not in self.aims
                below = _Count(0, MAX_CHAIN + 1 if by_way else 0)
            made.values += steps + below.values
            if made.through is None or below.chain + steps > made.chain:
                made.chain, made.through = below.chain + steps, aim
        return made

    def below(self, path: KeyPath) -> list[tuple[KeyPath, int]]:
        """Return the places that a place is made of: those inside it, or those that its text refers to."""
        if path in self.aims:
            return self.aims[path]
        inside = _at(self.root, path)
        if isinstance(inside, dict | list):
            return [((*path, name), 0) for name in (inside if isinstance(inside, dict) else range(len(inside)))]
        if not isinstance(inside, str) or "${" not in inside:
            return []
        self.aims[path] = []  # what leads back here leads nowhere; OmegaConf says that it is a circle
        self.reading += 1
        self.aims[path] = list(self.references(path, inside))
        self.reading -= 1
        return self.aims[path]

    def references(self, path: KeyPath, text: str) -> Iterator[tuple[KeyPath, int]]:
        """Yield the places that a text refers to; a reference inside another is read by the value it stands for."""
        parts: list[list[str]] = [[]]
        end = 0
        for token in _TOKEN.finditer(text):
            parts[-1].append(text[end : token.start()])
            end = token.end()
            if token[0] != "}" and len(token[1]) % 2 == 0:
                parts.append([])
            elif token[0] == "}" and len(parts) > 1:
                said = "".join(parts.pop())
                for name in _names(said):
                    aim, steps = self.aim(path, name.strip(" '\""))
                    if aim is not None:
                        yield aim, steps
                        parts[-1].append(self.scalar(aim))

    def scalar(self, path: KeyPath) -> str:
        """Return the words of the scalar that a place stands for, none where that cannot be told."""
        for _ in range(MAX_CHAIN):
            value = _at(self.root, path)
            if not isinstance(value, str) or "${" not in value:
                return "" if isinstance(value, dict | list) else str(value)[:_LONGEST]
            through, _ = self.alone(path, value)
            if through is None:
                break
            path = through
        return ""

    def alone(self, path: KeyPath, text: str) -> tuple[KeyPath | None, int]:
        """Return the one place that the whole of a text stands for, and the steps there."""
        if path not in self.aims and self.reading > MAX_CHAIN:
            return path, MAX_CHAIN + 1
        aims = self.below(path)
        return aims[-1] if aims and text.strip().startswith("${") and text.strip().endswith("}") else (None, 0)

    def aim(self, path: KeyPath, name: str) -> tuple[KeyPath | None, int]:
        """Return the place that a name means for a text at `path`, and the steps there, one at least."""
        dots, parts = len(name) - len(name.lstrip(".")), _PART.findall(name)
        if dots > len(path) or not parts:
            return None, 0
        place, steps = path[: len(path) - dots] if dots else (), 1
        for part in parts:
            while isinstance(value := _at(self.root, place), str) and "${" in value:
                if steps > MAX_CHAIN:
                    return place, steps
                through, more = self.alone(place, value)
                if through is None:
                    return None, 0
                place, steps = through, steps + more
            if (found := _key(value, part)) is None:
                return None, 0
            place = (*place, found)
        return place, steps


def endless(root: Node, texts: Mapping[KeyPath, str]) -> list[Fault]:
    """Return what is wrong with texts that lead through too many others, or expand to too many values.

    There is one issue for each chain and one for all that expand, beside every text that cannot be resolved for it.
    """
    counts, origins = _Counts(root), Origins(root)
    found = {path: counts.count(path) for path in texts}
    faults = _long(texts, counts, origins)
    long = {path for path, _ in faults}
    return faults + _many({path: count for path, count in found.items() if path not in long}, origins)


def _long(texts: Mapping[KeyPath, str], counts: _Counts, origins: Origins) -> list[Fault]:
    """Return the texts that lead through too many others, those that have an end in common with one issue."""
    chains: dict[KeyPath, list[KeyPath]] = {}
    ends: dict[KeyPath, KeyPath] = {}
    for path in [path for path in texts if counts.found[path].chain > MAX_CHAIN]:
        chains.setdefault(_end(path, counts, ends), []).append(path)
    faults: list[Fault] = []
    for end, members in chains.items():
        head, hint = max(members, key=lambda path: counts.found[path].chain), "name the place of the value itself"
        others = min(counts.found[head].chain, len(texts))  # steps by way of one another's parts are told too often
        message = f"{texts[head]} leads through {others} others, needed {MAX_CHAIN} at most"
        if counts.found[end].through is not None:
            head = min(members, key=lambda path: counts.found[path].chain)  # others may lead to the circle only
            hint = "write a value in one of the places"
            message = f"{texts[head]} refers to itself"
        issue = origins.issue(head, message, hint=hint)
        faults += [(path, issue) for path in members]
    return faults


def _many(found: Mapping[KeyPath, _Count], origins: Origins) -> list[Fault]:
    """Return all texts with one issue, at the largest, where they expand to too many values.

    All, since what is resolved without one of them would be faulty for want of it.
    """
    total = sum(count.values for count in found.values())
    if total <= MAX_EXPANDED:
        return []
    largest = max(found, key=lambda path: found[path].values)
    message = f"interpolations expand to {total} values, needed {MAX_EXPANDED} at most"
    issue = origins.issue(largest, message, hint="refer to less in one place, or write the values out")
    return [(path, issue) for path in found]


def _end(path: KeyPath, counts: _Counts, ends: dict[KeyPath, KeyPath]) -> KeyPath:
    """Return the place where the longest way from a place ends; one that leads on is a circle's."""
    way: list[KeyPath] = []
    seen: set[KeyPath] = set()
    place = path
    while place not in ends and place not in seen and (through := counts.found[place].through) is not None:
        way.append(place)
        seen.add(place)
        place = through
    end = ends.get(place, place)
    ends.update(dict.fromkeys([*way, place], end))
    return end


def _names(said: str) -> list[str]:
    """Return the names of places in what stands between the braces; a resolver's are among its arguments."""
    resolver, colon, arguments = said.partition(":")
    if not colon:
        return [said]
    return [] if resolver.strip() == "oc.dict.keys" else arguments.split(",")


def _at(root: Node, path: KeyPath) -> Any:
    node = root
    for part in path:
        node = node.value[part]
    return node.value


def _key(value: Any, part: str) -> str | int | None:
    """Return the key or the index by which a part of a name is found in a value."""
    if isinstance(value, dict):
        return part if part in value else None
    if isinstance(value, list) and part.removeprefix("-").isdecimal():
        index = int(part)
        return index % len(value) if -len(value) <= index < len(value) else None
    return None
