"""Parts of files that are read without a copy, and what becomes of the files meanwhile."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator, Sequence
from mmap import PAGESIZE
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.node.test_cluster import wait_for

from penstock import Fabric
from penstock.node import mapping
from penstock.node.files import FileDisk
from penstock.node.mapping import LEAST_BYTES, MAX_HELD, MAX_MAPPED
from penstock.store.disk import DiskError
from penstock.store.flush import Recycling
from penstock.store.locations import JOURNAL, file_name
from penstock.wire.batch import Batch
from penstock.wire.frames import (
    COUNT,
    FRAME,
    FRAME_BYTES,
    GRANT,
    POP,
    PROTOCOL_VERSION,
    Flag,
    Verb,
    frame,
)
from penstock.wire.messages import Hello, pack

SIZE = 4 * LEAST_BYTES
pytestmark = pytest.mark.skipif(mapping._in_memory is None, reason="this system cannot do it")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    real = FileDisk(tmp_path / "data")
    yield real
    real.close()


def filled(disk: FileDisk, name: str = "a", size: int = SIZE) -> bytes:
    """Makes a file of bytes that are all over the place."""
    content = bytes(at * 2654435761 >> 13 & 255 for at in range(size))
    disk.create(name, size)
    disk.write(name, 0, [content])
    return content


def test_what_is_large_is_not_copied_and_what_is_small_is(disk: FileDisk) -> None:
    content = filled(disk)
    last = SIZE - LEAST_BYTES
    for offset, length in ((0, SIZE), (PAGESIZE - 1, LEAST_BYTES), (last, LEAST_BYTES)):
        large = disk.read_now("a", offset, length)
        assert isinstance(large, memoryview)
        assert large.readonly
        assert large == content[offset : offset + length]
    small = disk.read_now("a", 1, LEAST_BYTES - 1)
    assert not isinstance(small, memoryview)
    assert small in (content[1:LEAST_BYTES], None)


def test_what_is_not_in_memory_is_not_waited_for(disk: FileDisk, tmp_path: Path) -> None:
    content = filled(disk)
    disk.sync("a")
    file = os.open(tmp_path / "data" / "a", os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    found = disk.read_now("a", 0, SIZE)
    assert found is None or found == content  # not every file system drops what it is told to
    assert disk.read("a", 0, SIZE) == content
    assert disk.read_now("a", 0, SIZE) == content


def test_a_page_that_is_missing_is_noticed(disk: FileDisk, monkeypatch) -> None:
    filled(disk)
    asked: list[int] = []

    def missing(address: int, pages: int) -> bool:
        assert not address % PAGESIZE
        asked.append(pages)
        return False

    monkeypatch.setattr(mapping, "_in_memory", missing)
    assert not isinstance(disk.read_now("a", PAGESIZE - 1, LEAST_BYTES + 2), memoryview)
    assert asked == [LEAST_BYTES // PAGESIZE + 2]


def test_a_view_outlives_its_file_and_its_disk(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "data")
    content = filled(disk)
    held = disk.read_now("a", 0, SIZE)
    disk.delete("a")
    filled(disk, "b", 2 * SIZE)
    disk.close()
    assert held == content


def test_a_file_is_let_go_when_nobody_has_a_part_of_it(disk: FileDisk) -> None:
    filled(disk)
    held = disk.read_now("a", 0, SIZE)
    assert isinstance(held, memoryview)
    part = held[100:200]
    assert not disk.let_go("a")
    del held
    assert not disk.let_go("a")
    del part
    assert disk.let_go("a")
    assert not isinstance(disk.read_now("a", 0, SIZE), memoryview)  # it may be another file by now


def test_a_file_that_cannot_be_deleted_is_still_in_use(disk: FileDisk, monkeypatch) -> None:
    filled(disk)
    held = disk.read_now("a", 0, SIZE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", refuse)
        with pytest.raises(DiskError):
            disk.delete("a")
    assert not disk.let_go("a")
    del held
    assert disk.let_go("a")


def test_deleted_files_that_are_in_use_are_few(disk: FileDisk) -> None:
    held = []
    for number in range(2 * MAX_HELD):
        content = filled(disk, f"f{number}")
        held.append(disk.read_now(f"f{number}", 0, SIZE))
        assert held[-1] == content
        disk.delete(f"f{number}")
    assert sum(isinstance(each, memoryview) for each in held) == MAX_HELD
    assert len(disk._mappings._deleted) == MAX_HELD
    held.clear()
    filled(disk, "more")
    disk.delete("more")
    assert not disk._mappings._deleted
    filled(disk, "last")
    assert isinstance(disk.read_now("last", 0, SIZE), memoryview)


def test_who_is_in_use_is_remembered_beyond_the_limit(disk: FileDisk) -> None:
    names = [f"f{number}" for number in range(MAX_HELD)]
    for name in names:
        filled(disk, name)
    held = [disk.read_now(name, 0, SIZE) for name in names]
    assert not any(disk.let_go(name) for name in names)
    filled(disk, "last")
    assert not isinstance(disk.read_now("last", 0, SIZE), memoryview)
    held.clear()
    assert isinstance(disk.read_now("last", 0, SIZE), memoryview)
    assert len(disk._mappings._mapped) == MAX_MAPPED
    assert all(disk.let_go(name) for name in names)


def test_a_file_that_has_grown_is_mapped_anew(disk: FileDisk) -> None:
    content = filled(disk)
    held = disk.read_now("a", 0, SIZE)
    disk.write("a", SIZE, [content])
    assert disk.read_now("a", SIZE, SIZE) == content  # a copy, as part of it is in use
    del held
    grown = disk.read_now("a", 1, 2 * SIZE - 1)
    assert isinstance(grown, memoryview)
    assert grown == (content + content)[1:]
    assert disk.read_now("a", SIZE, SIZE + 1) is None  # there is no more of it


def test_a_segment_that_is_still_sent_is_not_written_anew(disk: FileDisk) -> None:
    name = file_name(JOURNAL, 1)
    content = filled(disk, name)
    held = disk.read_now(name, 0, SIZE)
    recycling = Recycling(disk, 1, SIZE)
    recycling.run()
    assert recycling.spare is None
    assert not disk.names()
    assert held == content


def test_a_segment_that_nobody_has_is_kept_for_another(disk: FileDisk) -> None:
    name = file_name(JOURNAL, 1)
    filled(disk, name)
    assert disk.read_now(name, 0, SIZE)
    recycling = Recycling(disk, 1, SIZE)
    recycling.run()
    assert disk.names() == [recycling.spare]


def test_a_segment_that_is_used_again_is_not_copied_either(disk: FileDisk) -> None:
    filled(disk, file_name(JOURNAL, 1))
    recycling = Recycling(disk, 1, SIZE)
    recycling.run()
    name = file_name(JOURNAL, 2)
    disk.create(name, SIZE, recycling.spare)
    assert isinstance(disk.read_now(name, 0, SIZE), memoryview)


MESSAGE = 100_000
POPS = 16
GRANTED = 20


def values_of(body: memoryview) -> list[bytes]:
    """Those of an answer to a pop; raises if a batch is not what its checksum says."""
    grants, _ = COUNT.unpack_from(body)
    lengths = [GRANT.unpack_from(body, COUNT.size + GRANT.size * n)[5] for n in range(grants)]
    at = COUNT.size + GRANT.size * grants
    values: list[bytes] = []
    for length in lengths:
        values += Batch.parse(body[at : at + length]).values
        at += length
    return values


def overwrite_all(fabric: Fabric) -> None:
    """Fills segments and lets them go, until each has been used several times."""
    queue = fabric.queue("others")
    for _ in range(12):
        queue.push_many([b"-" * MESSAGE] * 40, batch=4)
        left = 40
        while left > 0:
            messages = queue.pop_many(40, timeout=10)
            left -= len(messages)
            for message in messages:
                message.ack()
        queue.flush()


def maps_of(node: NodeProcess) -> str:
    assert node.process is not None
    return Path(f"/proc/{node.process.pid}/maps").read_text()


def hasty(node: NodeProcess) -> NodeProcess:
    """The same with small segments, many checkpoints, and nearly all of it in mapped files."""
    node.end()
    node.module = "penstock.cli.soaking.hasty_node"
    node.start()
    return node


def ask(node: NodeProcess, streams: Sequence[int], messages: int) -> socket.socket:
    """Somebody who asks for messages of each, and does not read the answers yet."""
    slow = socket.socket()
    slow.settimeout(10)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    slow.connect(node.address)
    bodies = [POP.pack(stream, messages, 1 << 22, 0, 60_000, 0) for stream in streams]
    asks = [frame(Verb.POP, number, 0, body) for number, body in enumerate(bodies, start=2)]
    slow.sendall(frame(Verb.HELLO, 1, 0, pack(Hello(PROTOCOL_VERSION))) + b"".join(asks))
    return slow


def answers_to(slow: socket.socket, pops: int) -> list[bytes]:
    """What was granted; raises if anything of it is not as it was pushed."""
    found: list[bytes] = []
    with slow, slow.makefile("rb") as answers:
        for _ in range(1 + pops):
            length, verb, flags, _, _ = FRAME.unpack(answers.read(FRAME_BYTES))
            answer = answers.read(length - FRAME_BYTES)
            if verb == Verb.POP and not flags & Flag.ERROR:
                found += values_of(memoryview(answer))
    return found


def test_a_reader_who_comes_late_finds_what_was_sent(node: NodeProcess) -> None:
    """What was granted and not taken yet is nobody's any more, and its segments are used again."""
    sent = [b"%08d" % number + b"x" * MESSAGE for number in range(400)]
    with hasty(node).connect() as fabric:
        before = fabric.queue("before", durability="written")
        before.push_many([b"-" * MESSAGE] * 40, batch=4)  # as much as the kernel takes
        queue = fabric.queue("large", durability="written")
        queue.push_many(sent, batch=4)
        slow = ask(node, [before.info.id] * 2 + [queue.info.id] * POPS, 20)
        wait_for(lambda: queue.stats()["leased"] >= GRANTED)
        queue.delete()
        others = fabric.queue("ticks")  # a node looks for dead segments when something is written
        wait_for(lambda: bool(others.push(b"-")) and "(deleted)" in maps_of(node))
        assert "/j-" in maps_of(node)  # of segments
        overwrite_all(fabric)
        found = answers_to(slow, 2 + POPS)[40:]
    assert len(found) >= GRANTED
    assert len(set(found)) == len(found)
    assert set(found) <= set(sent)


def made(number: int, size: int) -> bytes:
    return b"%08d" % number + random.Random(number).randbytes(size)


def test_all_that_is_read_is_what_was_sent(node: NodeProcess) -> None:
    """Messages of all sizes, given back and taken again, of queues that come and go; some are
    granted to readers who take them at the very end."""
    draw, number = random.Random(7), 0
    late: list[socket.socket] = []
    with hasty(node).connect() as fabric:
        for turn in range(40):
            queue = fabric.queue(f"q{turn % 3}", durability="written")
            sizes = [draw.choice((10, 3000, 30_000, 150_000)) for _ in range(20)]
            values = [made(number + at, size) for at, size in enumerate(sizes)]
            number += len(values)
            queue.push_many(values, batch=draw.choice((1, 3, 20)))
            if not turn % 6:
                late.append(ask(node, [queue.info.id] * 2, 8))
            for message in queue.pop_many(draw.randint(1, 30), timeout=0.1):
                value = message.value
                assert value == made(int(value[:8]), len(value) - 8)
                message.nack() if draw.random() < 0.2 else message.ack()
            if not turn % 7:
                queue.delete()
        found = [value for slow in late for value in answers_to(slow, 2)]
    assert found
    assert all(value == made(int(value[:8]), len(value) - 8) for value in found)
