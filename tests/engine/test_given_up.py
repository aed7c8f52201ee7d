"""A sync that the journal has given up, as a write failed meanwhile: its end does not matter."""

from __future__ import annotations

import pytest
from tests.engine.machine import PRODUCER, Machine

from penstock.store.disk import DiskError
from penstock.store.flush import Flush
from penstock.wire.frames import Flag, Verb


@pytest.mark.parametrize("ends", ["late", "at once"])
@pytest.mark.parametrize("error", [None, DiskError("the device is gone")], ids=["well", "badly"])
def test_however_a_sync_ends_that_was_given_up_pushes_are_taken(
    ends: str, error: DiskError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(False)
    engine = machine.engine
    queue = machine.open("q")
    machine.push(queue, [b"a"], producer=9, sequence=0)
    with monkeypatch.context() as patch:  # the sync of the next one takes its time
        begun = []
        patch.setattr(engine, "next_sync", lambda now_us: begun.append(now_us))
        machine.push(queue, [b"b"], producer=9, sequence=1)
    sync = engine.next_sync(machine.now_us)
    assert sync is not None
    with monkeypatch.context() as patch:

        def refuse(_: Flush) -> None:
            raise DiskError("no room", full=True)

        patch.setattr(Flush, "run", refuse)
        machine.push(queue, [b"c"], producer=9, sequence=2)
    if ends == "at once":
        engine.end_sync(sync, error, machine.now_us)
    machine.tick(2_000_000)
    if ends == "late":
        engine.end_sync(sync, error, machine.now_us)
    assert engine.fabric.kernel.refusing is None
    machine.push(queue, [b"d"], producer=9, sequence=3)
    answers = [data[5] for data in machine.told(PRODUCER) if data[4] == Verb.PUSH]
    assert answers[-1] == Flag.RESPONSE
    assert engine.fabric.stream_figures(queue)["messages"] == 4
