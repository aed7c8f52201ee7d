"""What readers of reservations note when several of them ask for the same one at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.sim.attempts import Holds
from penstock.sim.history import History
from penstock.sim.world import World


def leased(value: bytes, position: int) -> Any:
    grant = SimpleNamespace(grant=1)
    return SimpleNamespace(value=value, shard=0, position=position, _granted=grant, deliveries=1)


def test_a_reservation_that_was_read_is_known_whoever_found_nothing_before() -> None:
    """Two ask and find nothing; before the second is told so, a third has made and read it."""
    history = History()
    holds = Holds(history, World(1), "q", "synced")
    first, second = holds.asked(6), holds.asked(6)
    holds.found_nothing(first)
    holds.read(holds.asked(6), [leased(b"a", 1), leased(b"b", 2)])
    holds.found_nothing(second)
    holds.read(holds.asked(6), [leased(b"a", 1), leased(b"b", 2)])
    assert [delivery.value for delivery in history.deliveries] == [b"a", b"b"]
    assert holds.next == 7


def test_one_that_nobody_read_is_forgotten() -> None:
    history = History()
    holds = Holds(history, World(1), "q", "synced")
    holds.found_nothing(holds.asked(6))
    assert not history.holds
