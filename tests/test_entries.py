"""What Hydra says of an entry of a defaults list, in our words."""

from __future__ import annotations

from kerncfg.compiler.entries import sentence


def test_an_entry_behind_an_override_is_told_to_stand_before_it() -> None:
    message, hint = sentence("In config: Overrides must be at the end of the defaults list", {"kernels": "mine"}, [])
    assert "override" in message + hint
