"""What travels for a gang, and what becomes of it after an attempt."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError, ProtocolError
from penstock.tasks.envelope import MAX_BACKOFF_MS, TaskCall
from penstock.tasks.gangs.envelope import (
    END,
    MAX_RESTARTS,
    RESTART,
    Decision,
    GangCall,
    Verdict,
    decide,
    pack_gang,
    read_gang,
)
from penstock.tasks.gangs.parts import Ending, EndKind

CALL = TaskCall("module:function", b"args", bytes(range(16)), retries=2, backoff_ms=1000)
DONE, FAILED, LOST = (Ending(kind) for kind in EndKind)


def test_a_gang_is_read_as_it_was_packed():
    gang = read_gang(pack_gang(CALL, END))
    assert gang == GangCall(CALL, END)
    assert gang.name == bytes(range(16)).hex()
    assert read_gang(pack_gang(CALL)).on_loss == RESTART
    with pytest.raises(InvalidError):
        pack_gang(CALL, "whatever")
    for strange in (b"", b"\xc1", b"\x93", b"hello"):
        with pytest.raises(ProtocolError):
            read_gang(strange)


AGAIN, GIVE_UP = Decision(Verdict.AGAIN), Decision(Verdict.GIVE_UP)


@pytest.mark.parametrize(
    ("on_loss", "attempt", "ending", "decision"),
    [
        (RESTART, 1, DONE, Decision(Verdict.FINISH)),
        (END, 99, DONE, Decision(Verdict.FINISH)),
        (RESTART, 1, LOST, AGAIN),
        (RESTART, 2 + MAX_RESTARTS, LOST, AGAIN),
        (RESTART, 3 + MAX_RESTARTS, LOST, GIVE_UP),
        (END, 1, LOST, GIVE_UP),
        (RESTART, 1, FAILED, Decision(Verdict.AGAIN, 1000)),
        (END, 2, FAILED, Decision(Verdict.AGAIN, 2000)),
        (RESTART, 3, FAILED, GIVE_UP),
    ],
)
def test_what_becomes_of_it(on_loss, attempt, ending, decision):
    assert decide(GangCall(CALL, on_loss), attempt, ending, 0.0) == decision


def test_the_pause_is_bounded_and_left_to_chance():
    call = TaskCall("f", b"", b"", retries=1000, backoff_ms=1000)
    longest = decide(GangCall(call), 900, FAILED, 0.0)
    assert longest.delay_ms == MAX_BACKOFF_MS
    assert decide(GangCall(call), 900, FAILED, 1.0).delay_ms == MAX_BACKOFF_MS // 2
