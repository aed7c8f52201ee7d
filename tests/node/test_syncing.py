"""Syncs that begin while the loop goes on, and what leaves after them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.node import syncing
from penstock.node.early import Known
from penstock.node.files import FileDisk, Handle
from penstock.node.syncing import Syncing, may_begin
from penstock.node.worker import Worker
from penstock.store.disk import DiskError
from penstock.store.memory import MemoryDisk
from penstock.wire.entry import Entry
from penstock.wire.frames import Flag, Verb, frame

compiled = pytest.mark.skipif(not syncing.COMPILED, reason="there is no such thread")
NAME, WAIT_S = "j-00000001", 20.0
RECEIPT = 1, frame(Verb.PUSH, 1, Flag.RESPONSE, b"receipt")
DELIVERY = 2, frame(Verb.DELIVER, 1, 0, b"delivery")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path)
    disk.create(NAME, 4096)
    yield disk
    disk.close()


@pytest.fixture
def not_a_file() -> Iterator[int]:
    """What cannot be synced."""
    ends = os.pipe()
    yield ends[1]
    for end in ends:
        os.close(end)


def synced(disk: FileDisk, times: int = 1) -> list[tuple[str, BaseException | None]]:
    """What is heard of syncs one after the other, in order."""
    heard: list[tuple[str, BaseException | None]] = []

    async def main() -> None:
        worker = Worker(asyncio.get_running_loop(), "test")
        thread = Syncing(worker)
        for _ in range(times):
            reported = asyncio.Event()

            def report(error: BaseException | None, event: asyncio.Event = reported) -> None:
                heard.append(("report", error))
                event.set()

            thread.begin(disk, NAME, report, lambda: heard.append(("then", None)))
            await asyncio.wait_for(reported.wait(), WAIT_S)
        thread.stop()
        worker.stop()

    asyncio.run(main())
    return heard


@compiled
def test_what_follows_a_sync_comes_before_the_loop_hears_of_it(disk: FileDisk) -> None:
    assert synced(disk, 3) == [("then", None), ("report", None)] * 3
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-sync"]


@compiled
def test_a_sync_that_fails_is_reported_and_nothing_follows(
    disk: FileDisk, not_a_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(disk, "begin", lambda _: Handle(not_a_file))
    monkeypatch.setattr(disk, "end", ended.append)
    ((what, error),) = synced(disk)
    assert what == "report"
    assert isinstance(error, DiskError)
    assert NAME in str(error)
    assert len(ended) == 1, "the file may be closed"


@compiled
def test_it_needs_nothing_of_whoever_runs_python(not_a_file: int) -> None:
    """This thread never gives the interpreter's lock away, and sees a sync come to its end."""
    syncer = pytest.importorskip("penstock.node._syncing").Syncer()
    served = threading.Thread(target=syncer.serve)
    before = sys.getswitchinterval()
    end_s = time.monotonic() + WAIT_S
    served.start()
    try:
        sys.setswitchinterval(1000.0)
        assert syncer.ask(not_a_file)
        while not syncer.ask(not_a_file):  # not before the first is over
            assert time.monotonic() < end_s, "the thread waits for the lock"
    finally:
        sys.setswitchinterval(before)
        syncer.finish()
        served.join()
    assert not syncer.ask(not_a_file), "all is over"
    assert syncer.serve() is None


def test_only_files_are_synced_so(disk: FileDisk) -> None:
    assert may_begin(disk) == syncing.COMPILED
    assert not may_begin(MemoryDisk())


def known(sent: list[int], takes: int = 2) -> Known:
    def send(connection: int, _: bytes) -> bool:
        sent.append(connection)
        return len(sent) <= takes

    return Known((DELIVERY, RECEIPT), send, NAME, 1 << 32 | 64)


def entries() -> list[Entry]:
    return [Entry(0, 1, 1, 1, b"", reply=reply) for reply in (RECEIPT, DELIVERY)]


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_what_has_left_is_answered_and_the_rest_is_not(takes: int) -> None:
    sent: list[int] = []
    early = known(sent, takes)
    early.send()
    early.entries = waiting = entries()  # the core may be later than the disk
    early.end()
    assert sent == [2, 1][: takes + 1]
    assert [entry.answered for entry in waiting] == [takes > 1, takes > 0]
    assert early.sent == [(2, 0), (1, 1)][:takes]


def test_nothing_leaves_once_somebody_may_wait_no_more() -> None:
    sent: list[int] = []
    early = known(sent)
    early.entries = waiting = entries()
    early.end()
    early.send()
    assert sent == []
    assert not any(entry.answered for entry in waiting)
