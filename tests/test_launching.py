from __future__ import annotations

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from kerncfg.compiler.overrides import rewrite
from kerncfg.launching import as_typed, for_hydra


def jobs(*typed: str) -> list[list[str]]:
    """Return what the sweeper of Hydra itself gives each job of a sweep, as kerncfg shows it."""
    lines = OverridesParser.create().parse_overrides(for_hydra(rewrite(typed)))
    batches = BasicSweeper.split_arguments(lines, None)
    return [as_typed([*task], typed) for batch in batches for task in batch]


@pytest.mark.parametrize(
    ("typed", "chosen"),
    [
        (
            "kernels.norms.kernel=./a:Fast,./a:Wrong",
            ["kernels.norms.kernel=./a:Fast", "kernels.norms.kernel=./a:Wrong"],
        ),
        ("kernels.X.cpu=~/k:A,org/b@>=2.0,<3.0:N", ["kernels.X.cpu=~/k:A", "kernels.X.cpu=org/b@>=2.0,<3.0:N"]),
        ("kernels.X={cuda: ./a:B},{cpu: ./c:D}", ["kernels.X={cuda: ./a:B}", "kernels.X={cpu: ./c:D}"]),
        ("+kernels.X={cuda: ./a:B},{cpu: ./c:D}", ["+kernels.X={cuda: ./a:B}", "+kernels.X={cpu: ./c:D}"]),
        ("kernels.X.cpu=[./a:B, ./c:D],./e:F", ["kernels.X.cpu=[./a:B, ./c:D]", "kernels.X.cpu=./e:F"]),
        ("kernels.X.cpu=choice(./a:A,./b:B)", ["kernels.X.cpu=./a:A", "kernels.X.cpu=./b:B"]),
        ("kernels.X.cpu=sort(./b:B,./a:A)", ["kernels.X.cpu=./a:A", "kernels.X.cpu=./b:B"]),
        ("kernels.a/b=./x:Y,./x:Z", ["kernels.a/b=./x:Y", "kernels.a/b=./x:Z"]),
        ("kernels.X.version='1.10','1.2'", ["kernels.X.version='1.10'", "kernels.X.version='1.2'"]),
        ("model.config.theta=1.10,1e5", ["model.config.theta=1.10", "model.config.theta=1e5"]),
        ("policy.seed=range(0,2)", ["policy.seed=0", "policy.seed=1"]),
        ("policy.strict=true,1", ["policy.strict=true", "policy.strict=1"]),
    ],
)
def test_what_a_sweep_chose_for_a_job_is_said_as_it_was_typed(typed: str, chosen: list[str]) -> None:
    assert jobs("~kernels.Y", typed) == [["~kernels.Y", word] for word in chosen]
    for word in chosen:
        assert jobs(word) == [[word]]  # and typed again it is the same
