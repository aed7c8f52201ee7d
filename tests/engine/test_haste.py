"""What is written and sent before the core works on it, compared with what the core makes of it."""

from __future__ import annotations

import pytest
from tests.engine.machine import CONSUMER, Machine

from penstock.engine import foresight
from penstock.engine.foresight import Foreseen
from penstock.engine.haste import Hasty, Send, UnforeseenError
from penstock.store.disk import DiskError
from penstock.store.flush import Flush, Opening, Piece
from penstock.store.memory import MemoryDisk
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Verb

NAME = "j0000000001"
RECEIPT, DELIVERY = (1, b"receipt"), (2, b"delivery")
FORESEEN = Foreseen(NAME, 1 << 32 | 64, b"both records", (RECEIPT, DELIVERY), synced=False)


def new_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.create(NAME, 1024)
    return disk


def hasty_on(disk: MemoryDisk, send: Send, foreseen: Foreseen = FORESEEN) -> Hasty:
    hasty = Hasty(foreseen, disk)
    hasty.write()
    hasty.send(send)
    return hasty


def flush_of(disk: MemoryDisk, *, name: str = NAME, offset: int = 64) -> Flush:
    """What the core makes of it if nothing has gone wrong."""
    entries = [
        Entry(0, 1, 1, 7, b"", level=Durability.WRITTEN, reply=RECEIPT),
        Entry(0, 2, 1, 8, b"", level=Durability.WRITTEN, reply=DELIVERY),
    ]
    piece = Piece(1, name, offset, None, [b"both ", b"records"])
    return Flush(disk, entries, [piece])


def test_it_is_written_then_sent_in_order_and_not_again() -> None:
    disk, sent = new_disk(), []

    def send(connection: int, data: bytes) -> bool:
        assert disk.read(NAME, 64, 12) == b"both records"
        sent.append((connection, data))
        return True

    hasty = hasty_on(disk, send)
    flush = flush_of(disk)
    assert hasty.end(flush) is None
    assert sent == hasty.sent == [RECEIPT, DELIVERY]
    assert [entry.answered for entry in flush.entries] == [True, True]


@pytest.mark.parametrize("takes", [0, 1])
def test_what_is_not_taken_is_sent_by_the_loop_and_so_is_all_after_it(takes: int) -> None:
    disk, offered = new_disk(), []

    def send(connection: int, data: bytes) -> bool:
        offered.append(connection)
        return len(offered) <= takes

    hasty = hasty_on(disk, send)
    flush = flush_of(disk)
    assert hasty.end(flush) is None
    assert len(offered) == takes + 1
    assert [entry.answered for entry in flush.entries] == [takes > 0, False]


def test_a_write_that_fails_is_what_a_run_would_have_raised() -> None:
    hasty = hasty_on(MemoryDisk(), lambda *_: pytest.fail("nothing is written"))
    flush = flush_of(new_disk())
    assert isinstance(hasty.end(flush), DiskError)
    assert not any(entry.answered for entry in flush.entries)


def test_what_waits_for_a_sync_is_written_and_not_sent() -> None:
    disk = new_disk()
    foreseen = FORESEEN._replace(synced=True)
    hasty = hasty_on(disk, lambda *_: pytest.fail("it is not synced"), foreseen)
    assert disk.read(NAME, 64, 12) == b"both records"
    flush = flush_of(disk)
    assert hasty.end(flush) is None
    assert not any(entry.answered for entry in flush.entries)


def other_bytes(flush: Flush) -> None:
    flush.pieces[0].parts.append(b"!")


def other_place(flush: Flush) -> None:
    flush.pieces[0].offset += 8


def other_file(flush: Flush) -> None:
    flush.pieces[0].name = "j0000000002"


def new_file(flush: Flush) -> None:
    flush.pieces[0].opening = Opening(b"", 0, 64, None, None)


def two_files(flush: Flush) -> None:
    flush.pieces.append(flush.pieces[0])


def synced(flush: Flush) -> None:
    flush.sync = True


def other_answer(flush: Flush) -> None:
    flush.entries[0].reply = (1, b"refused")


def to_another(flush: Flush) -> None:
    flush.entries[1].reply = (3, DELIVERY[1])


def nobody(flush: Flush) -> None:
    flush.entries[1].reply = None


def more(flush: Flush) -> None:
    flush.entries.append(flush.entries[1])


CHANGES = [
    other_bytes, other_place, other_file, new_file, two_files, synced, other_answer, to_another,
    nobody, more,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_any_difference_is_told(change) -> None:
    disk = new_disk()
    hasty = hasty_on(disk, lambda *_: True)
    flush = flush_of(disk)
    change(flush)
    with pytest.raises(UnforeseenError):
        hasty.end(flush)


@pytest.mark.skipif(not foresight.COMPILED, reason="nothing is foreseen")
def test_what_a_node_has_written_before_it_ends_is_a_log_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process is gone after the write: who pushed may have a receipt, so the message is there,
    and leased to whoever may have it."""
    machine = Machine(True)
    queue = machine.open("q", durability="written")
    for sequence in range(2):
        machine.push(queue, [b"%d" % sequence], producer=9, sequence=sequence)
    machine.pop(queue, 100, Verb.SUBSCRIBE)

    def gone(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine.engine, "receive", gone)
    with pytest.raises(KeyboardInterrupt):
        machine.push(queue, [b"2"], producer=9, sequence=2)
    assert len(machine.foreseen) == 1
    assert machine.sent[-1][0] == CONSUMER
    again = Machine(True, disk=machine.disk)
    figures = again.engine.fabric.stream_figures(queue)
    assert (figures["messages"], figures["leased"]) == (3, 3)
    again.push(queue, [b"2"], producer=9, sequence=2)
    assert again.engine.fabric.stream_figures(queue)["messages"] == 3, "a resend is harmless"
