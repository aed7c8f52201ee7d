"""Buffers that are used again: only when nobody has them, and never more than a few."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from penstock.wire.frames import Splitter, Verb, frame
from penstock.wire.spares import LEAST_BYTES, MOST_BYTES, Spares

SIZE = LEAST_BYTES + 1000


def test_a_buffer_is_used_again_when_nobody_has_it() -> None:
    spares = Spares()
    buffer = spares.take(SIZE)
    number = id(buffer)
    assert spares.take(SIZE) is not buffer
    del buffer
    again = [spares.take(SIZE - 900), spares.take(SIZE - 900)]
    assert number in map(id, again)
    assert [len(each) for each in again] == [SIZE - 900] * 2


def test_a_view_keeps_a_buffer() -> None:
    spares = Spares()
    buffer = spares.take(SIZE)
    buffer[:] = bytes(SIZE)
    view = memoryview(buffer)[8:16]
    del buffer
    others = [spares.take(SIZE) for _ in range(20)]
    for each in others:
        each[:] = b"x" * SIZE
    assert bytes(view) == bytes(8)


def test_lengths_change_in_place() -> None:
    spares = Spares()
    sizes = [SIZE, SIZE - 5, SIZE, LEAST_BYTES, SIZE - 1]
    numbers = set()
    for size in sizes:
        buffer = spares.take(size)
        assert type(buffer) is bytearray
        assert len(buffer) == size
        numbers.add(id(buffer))
        del buffer
    assert len(numbers) == 1


def test_small_and_very_large_ones_are_not_kept() -> None:
    spares = Spares()
    for size in (0, 100, LEAST_BYTES - 1, MOST_BYTES + 1):
        assert len(spares.take(size)) == size
    assert not spares._kept


def test_only_a_few_are_kept() -> None:
    spares = Spares(4 * (SIZE + 100))
    taken = [spares.take(SIZE) for _ in range(12)]
    assert len({id(each) for each in taken}) == 12
    assert len(spares._kept) == 4
    large = spares.take(3 * SIZE)
    assert [len(each) for each in spares._kept] == [SIZE, 3 * SIZE]
    assert spares._kept[-1] is large


def test_frames_in_buffers_that_are_used_again() -> None:
    splitter = Splitter(unfilled=Spares().take)
    for number in range(20):
        body = bytes([number]) * (SIZE + number * 100)
        sent = frame(Verb.DELIVER, number, 0, body)
        assert splitter.feed(memoryview(sent[:1000])) == []
        buffer = splitter.buffer()
        assert buffer is not None
        buffer[:] = sent[1000:]
        del buffer
        whole = splitter.filled(len(sent) - 1000)
        assert whole is not None
        assert bytes(whole) == sent
        del whole


VALUES_PROGRAM = """
import resource, sys
from penstock.wire.spares import settle_heap
if sys.argv[1] == "settled":
    settle_heap()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    values = [bytes(1024) for _ in range(8000)]
    del values
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_values(mode: str) -> int:
    argv = [sys.executable, "-c", VALUES_PROGRAM, mode]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the C library of Linux")
def test_memory_of_values_is_not_mapped_anew_for_every_batch() -> None:
    assert faults_of_values("settled") < faults_of_values("as it is") / 5
