"""What others rely on, written out in full: a change here is a change for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest

import kerncfg
from kerncfg import doctor, outcome
from kerncfg.applier.report import STATUSES
from kerncfg.cli import program
from kerncfg.compiler.schema import names, schema
from kerncfg.documents import difference, explanation
from kerncfg.documents import lock as locks
from kerncfg.documents import plan as plans
from kerncfg.documents.config import ANY
from kerncfg.documents.plan import Attend, Bind, Fuse, Keep
from kerncfg.documents.target import DEVICES, Mode
from kerncfg.evidence import rows
from kerncfg.page import comparison

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIASES = {alias for device in DEVICES.values() for alias in device.aliases}

OPTIONS = {
    "bench": ["--config-dir", "--json", "--lock", "--trust"],
    "compare": ["--json", "--output"],
    "completion": ["--json"],
    "diff": ["--json"],
    "doctor": ["--json"],
    "explain": ["--config-dir", "--json", "--lock", "--trust"],
    "fetch": ["--dry-run", "--json", "--trust"],
    "import": ["--json"],
    "lock": ["--check", "--config-dir", "--from", "--json", "--lock", "--trust", "--upgrade"],
    "plan": ["--all", "--config-dir", "--json", "--lock", "--output", "--trust"],
    "pull": ["--dry-run", "--force", "--json"],
    "push": ["--config-dir", "--dry-run", "--json", "--lock", "--name", "--private", "--trust", "--yes"],
    "report": ["--output"],
    "run": ["--config-dir", "--json", "--lock", "--multirun", "--trust"],
    "schema": ["--json"],
    "show": ["--config-dir", "--json"],
    "validate": ["--config-dir", "--json"],
    "verify": ["--config-dir", "--json", "--lock", "--trust"],
}


def test_the_public_names() -> None:
    assert kerncfg.__all__ == [
        "ApplyError",
        "Bindings",
        "ConfigError",
        "ConflictError",
        "ContractError",
        "IntegrityError",
        "Issue",
        "KerncfgError",
        "KerncfgWarning",
        "Lock",
        "LockError",
        "Mode",
        "Plan",
        "Report",
        "ResolutionError",
        "SourceError",
        "Translation",
        "TrustError",
        "apply",
        "bench",
        "compare",
        "fetch",
        "from_kernel_config",
        "from_liger",
        "kernel_layer",
        "kernelize",
        "load_plan",
        "lock",
        "plan",
        "pull",
        "push",
        "report",
        "revert",
        "to_kernel_config",
        "translate",
        "verify",
    ]


def test_the_commands_and_their_options() -> None:
    found = {name: _options(command) for name, command in program.commands.items()}
    assert found == OPTIONS


def _options(command: click.Command) -> list[str]:
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return sorted(word for option in options for word in option.opts if word.startswith("--"))


def _enums(node: Any) -> Iterator[set[Any]]:
    """Every closed set of words in a schema."""
    if isinstance(node, dict):
        if "enum" in node:
            yield set(node["enum"])
        for value in node.values():
            yield from _enums(value)
    elif isinstance(node, list):
        for value in node:
            yield from _enums(value)


@pytest.mark.parametrize("name", names())
def test_the_closed_sets_of_a_schema_are_those_of_the_code(name: str) -> None:
    for words in _enums(schema(name)):
        for known in ({*Mode}, {*STATUSES}, {Bind.kind, Fuse.kind, Attend.kind, Keep.kind}):
            assert not words & known or words == known
        if "cuda" in words:
            assert words - {"auto", *ALIASES} == {*DEVICES}


def test_the_severities_of_a_finding_are_those_of_the_code() -> None:
    assert schema("doctor")["$defs"]["finding"]["properties"]["severity"]["enum"] == [*doctor.SEVERITIES]


def test_a_row_has_a_key_for_every_device() -> None:
    keys = {*schema("kernels")["$defs"]["row_map"]["properties"]}
    assert keys >= {ANY, *DEVICES, *ALIASES}


def test_a_described_target_may_be_any_device() -> None:
    assert {*schema("target")["properties"]["device"]["enum"]} == {"auto", *DEVICES, *ALIASES}


def test_the_format_numbers_are_those_of_the_code() -> None:
    numbers = {name: schema(name)["properties"]["schema"]["const"] for name in names() if "schema" in _keys(name)}
    assert numbers == {
        "comparison": comparison.SCHEMA,
        "difference": difference.SCHEMA,
        "doctor": doctor.SCHEMA,
        "explanation": explanation.SCHEMA,
        "lock": locks.SCHEMA,
        "measurement": rows.SCHEMA,
        "outcome": outcome.SCHEMA,
        "plan": plans.SCHEMA,
        "verification": rows.SCHEMA,
    }


def _keys(name: str) -> set[str]:
    return {*schema(name).get("properties", {})}
