"""A valid document to a `Config`: shorthand, inheriting and fallback become plain rows here.

What is said replaces what is inherited, per name, device and mode. A value without a mode says all four, one
without a device says every device, and `inherited` in a list is what was there without that line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.flash import expanded
from kerncfg.compiler.saying import Reader, Said, laid
from kerncfg.documents.config import AttentionRow, Config, Fusion, Policy, Row, Trust
from kerncfg.errors import ConfigError, Issue

if TYPE_CHECKING:
    from kerncfg.compiler.tree import Origins

__all__ = ["ROWS", "normalise", "unreadable"]

ROWS = ("kernels", "inherited", "fusions", "attention")  # the nodes that hold rows


def normalise(document: Mapping[str, Any], *, origins: Origins | None = None, base: Path | None = None) -> Config:
    """Return the config that a valid document means.

    `base` is the folder from which relative kernel folders said by override or argument start, by default the
    working directory; those in a file start at the file's folder. Without `origins` the document is taken as
    canonical data whose trust counts.

    Raises:
        ConfigError: References, versions or ranges that cannot be read; it holds every one of them.
    """
    reader = _Reader(origins, (base or Path.cwd()).absolute())
    reader.losses()
    own = reader.rows(document["kernels"], "kernels")
    inherited = reader.rows(document["inherited"], "inherited")
    policy = reader.policy(document["policy"])
    inherit = document["kernels"].get("inherit_mapping") is not False
    names = sorted({*own, *inherited})
    rows = {name: _merge(name, own.get(name), inherited.get(name), policy, inherit) for name in names}
    fusions = {name: _fusion(name, said, policy) for name, said in _sorted(reader, document, "fusions")}
    attention = {name: _attention(name, said, policy) for name, said in _sorted(reader, document, "attention")}
    trust = reader.trust(document["trust"])
    if reader.issues:
        raise ConfigError(reader.issues)
    rows = {name: row for name, row in rows.items() if row.own or row.cells}
    found = Config(
        enabled=document["enabled"],
        rows=rows,
        fusions=fusions,
        attention=attention,
        trust=trust,
        policy=policy,
        notes=tuple(reader.notes),
    )
    named = {candidate.ref.place for row in found.every() for candidate in row.candidates()}
    return replace(found, trust=replace(trust, local=frozenset(reader.local & named)))


def unreadable(
    nodes: Mapping[str, Any], *, origins: Origins | None = None, base: Path | None = None, whole: bool = True
) -> list[Issue]:
    """Return every fault of the rows of some nodes; if they are not the `whole`, what others may add is not missed."""
    reader = _Reader(origins, (base or Path.cwd()).absolute(), whole=whole)
    for node in ROWS:
        reader.rows(nodes.get(node) or {}, node)
    return reader.issues


def _sorted(reader: Reader, document: Mapping[str, Any], node: str) -> list[tuple[str, Said]]:
    """Return the rows of a node that a document may lack, by name; nothing is inherited there."""
    return sorted(reader.rows(document.get(node) or {}, node).items())


def _fusion(name: str, said: Said, policy: Policy) -> Fusion:
    return Fusion(
        name=name,
        cells=laid(Said(), said),
        members=said.members,
        fallback=said.fallback or policy.fallback,
        own=True,
        origin=said.origin,
    )


def _attention(name: str, said: Said, policy: Policy) -> AttentionRow:
    return AttentionRow(
        name=name,
        cells=expanded(laid(Said(), said)),
        path=said.path,
        mask=said.mask,
        fallback=said.fallback or policy.fallback,
        own=True,
        origin=said.origin,
    )


def _merge(name: str, own: Said | None, inherited: Said | None, policy: Policy, inherit: bool) -> Row:
    said = own or Said()
    base = inherited if inherited is not None and said.inherit and inherit else Said()
    exclude = base.exclude if said.exclude is None else said.exclude
    return Row(
        name=name,
        cells=laid(base, said),
        below=laid(inherited, Said()) if own and inherited else {},
        match=said.match or base.match,
        exclude=exclude or (),
        fallback=said.fallback or base.fallback or policy.fallback,
        own=own is not None,
        origin=said.origin or base.origin,
    )


class _Reader(Reader):
    """Reads the nodes of one document."""

    def policy(self, node: Mapping[str, Any]) -> Policy:
        """Read the `policy` node."""
        return Policy(
            fallback=node["fallback"],
            strict=node["strict"],
            require_pin=node["require_pin"],
            deterministic=node.get("deterministic", False),
            seed=node.get("seed"),
            verify=node["verify"],
        )

    def trust(self, node: Mapping[str, Any]) -> Trust:
        """Read the `trust` node; what was not said by the person running kerncfg is ignored, and noted."""
        return Trust(
            publishers=frozenset(self.names(node, "publishers")),
            repositories=frozenset(self.names(node, "repositories")),
            allow_all_kernels=bool(node["allow_all_kernels"]) and self.granted(("trust", "allow_all_kernels")),
        )

    def names(self, node: Mapping[str, Any], key: str) -> Iterator[str]:
        """Yield the trusted names of one map."""
        for name, said in (node.get(key) or {}).items():
            if said and self.granted(("trust", key, name)):
                yield name
