"""The environment variables that are kerncfg's own, and what others of that prefix are told."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

__all__ = ["CACHE", "INSTEAD", "KNOWN", "PREFIX", "unread"]

PREFIX = "KERNCFG_"
CACHE = "KERNCFG_CACHE"

# What is read, each with what it is.
KNOWN: Mapping[str, str] = {CACHE: "the folder of what kerncfg keeps between runs"}
# What was read once, or is expected to be, each with what is to be said instead.
INSTEAD: Mapping[str, str] = {
    "KERNCFG_CONFIG_DIR": "say --config-dir DIR",
    "KERNCFG_DISABLE": "say enabled=false",
    "KERNCFG_ENABLED": "say enabled=true or enabled=false",
    "KERNCFG_ENDPOINT": "set HF_ENDPOINT",
    "KERNCFG_FALLBACK": "say policy.fallback=original or policy.fallback=error",
    "KERNCFG_LOCK": "say --lock FILE",
    "KERNCFG_OFFLINE": "set HF_HUB_OFFLINE=1",
    "KERNCFG_STRICT": "say policy=strict",
    "KERNCFG_TARGET": "say target=NAME",
    "KERNCFG_TRUST": "say --trust ORG, or trust.publishers.ORG=true",
}


def unread(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable with kerncfg's prefix that is set and not read, with what to do instead."""
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name in KNOWN or not environment[name]:
            continue
        near = difflib.get_close_matches(name.upper(), [*KNOWN, *INSTEAD], n=1, cutoff=0.85)
        if not near:
            yield name, "say it as an override, key=value"
        elif near[0] in KNOWN:
            yield name, f"did you mean {near[0]}?"
        else:
            yield name, INSTEAD[near[0]]
