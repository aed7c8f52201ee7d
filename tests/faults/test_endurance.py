"""What a long run says of a node's needs, and a short one does not."""

from __future__ import annotations

import pytest

from penstock.cli.soaking.endurance import LEAST_SECONDS, SLACK, Endurance

MIB = 1 << 20


def seen(seconds: float, memory: list[float]) -> Endurance:
    flat = {name: [1.0] * len(memory) for name in SLACK}
    return Endurance(seconds, samples={**flat, "memory": memory})


@pytest.mark.parametrize(
    ("memory", "growing"),
    [
        ([100.0 * MIB] * 100, []),
        ([100.0 * MIB + step * MIB for step in range(100)], ["memory"]),
        ([5.0 * MIB] * 20 + [100.0 * MIB] * 80, []),  # it has to get warm
        ([10.0 * MIB] * 50 + [20.0 * MIB] * 50, []),  # that is not much
    ],
)
def test_a_long_run_tells_what_grows(memory: list[float], growing: list[str]) -> None:
    assert seen(LEAST_SECONDS, memory).growing == growing


def test_a_short_run_tells_nothing() -> None:
    run = seen(LEAST_SECONDS - 1, [100.0 * MIB + step * MIB for step in range(100)])
    assert not run.tells
    assert run.growing == []
