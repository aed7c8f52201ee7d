"""What is plain, in C: the same bytes and the same fields as the code for all cases, or None."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.wire import packing, plain
from penstock.wire.batch import HEADER_BYTES, Batch, Columns, checksum_of
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FRAME, PUSH, PushBody, Splitter
from penstock.wire.limits import MAX_BATCH_BYTES, MAX_PRIORITY

pytestmark = pytest.mark.skipif(
    not plain.COMPILED, reason="the compiled module was not built, or PENSTOCK_PURE is set"
)
NUMBERS = st.integers(0, (1 << 64) - 1) | st.integers(0, 3)
TIMES = st.integers(0, (1 << 63) - 1)
INSTANCES = st.integers(0, (1 << 32) - 1)
SMALL = st.binary(max_size=300)


def body_of(batch: bytes | bytearray, extra: int = 0, durability: int = 0) -> memoryview:
    """The body of a push, somewhere in a larger buffer, as a frame is received."""
    head = PUSH.pack(7, 0, 200, durability, extra)
    return memoryview(b"front" + head + bytes(batch))[5:]


def resealed(batch: bytearray) -> bytearray:
    """With a checksum that holds, whatever else is wrong."""
    struct.pack_into("<Q", batch, 32, checksum_of(batch))
    return batch


def as_the_others_read_it(body: memoryview) -> tuple[PushBody, Batch] | None:
    """Head and batch by the code for all cases; None if it refuses them."""
    head = PushBody(*PUSH.unpack_from(body))
    try:
        batch = Batch.parse(body[PUSH.size + head.extra :])
        batch.check()
    except PenstockError:
        return None
    return head, batch


@given(SMALL, TIMES, NUMBERS, NUMBERS, INSTANCES)
def test_a_value_becomes_the_batch_that_encoding_makes_of_it(
    value: bytes, time_us: int, producer: int, sequence: int, instance: int
) -> None:
    assert plain.one_value(value, time_us, producer, sequence, instance) == encode_batch(
        [value], timestamp_us=time_us, producer=producer, sequence=sequence, instance=instance
    )


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4096, 16 << 10])
def test_of_every_size_that_is_small(size: int) -> None:
    value = os.urandom(size)
    assert plain.one_value(value, 5, 1, 2, 3) == encode_batch(
        [value], timestamp_us=5, producer=1, sequence=2, instance=3
    )


class Named(bytes):
    """Bytes that lie about their length."""

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "given",
    [
        (bytearray(b"x"), 0, 1, 0, 0), ("x", 0, 1, 0, 0), (Named(b"named"), 0, 1, 0, 0),
        (bytes((16 << 10) + 1), 0, 1, 0, 0), (b"x", -1, 1, 0, 0), (b"x", 1 << 63, 1, 0, 0),
        (b"x", 0, -1, 0, 0), (b"x", 0, 1 << 64, 0, 0), (b"x", 0, 1, 1 << 64, 0),
        (b"x", 0, 1, 0, 1 << 32), (b"x", 1.5, 1, 0, 0), (b"x", None, 1, 0, 0),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_plain_is_left_to_others(given: tuple[Any, ...]) -> None:
    assert plain.one_value(*given) is None


@given(st.lists(SMALL, min_size=1, max_size=20), NUMBERS, NUMBERS, INSTANCES, st.integers(0, 3))
def test_a_plain_push_is_read_as_by_others(
    values: list[bytes], producer: int, sequence: int, instance: int, durability: int
) -> None:
    batch = encode_batch(
        values, timestamp_us=1, producer=producer, sequence=sequence, instance=instance,
        due_us=-5, ttl_ms=9, generation=3,
    )  # fmt: skip
    body = body_of(batch, durability=durability)
    read, others = plain.read_push(body), as_the_others_read_it(body)
    assert read is not None
    assert others is not None
    assert read[0] == others[0]
    assert read[1].header == others[1].header
    assert type(read[1].header) is type(others[1].header)
    assert read[1].header.due_us == -5
    assert plain.read_batch(batch).header == others[1].header
    assert read[1].values == values


@given(
    st.lists(SMALL, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
)
def test_what_others_refuse_is_never_read(
    values: list[bytes], changes: list[tuple[int, int]], seal: bool
) -> None:
    batch = encode_batch(values, timestamp_us=1, producer=1)
    for at, byte in changes:
        batch[at % len(batch)] = byte
    body = body_of(resealed(batch) if seal else batch)
    read = plain.read_push(body)
    with suppress(PenstockError):
        assert plain.read_batch(batch).header == Batch.parse(batch).header
    if read is not None:
        others = as_the_others_read_it(body)
        assert others is not None
        assert (read[0], read[1].header, read[1].values) == (
            others[0], others[1].header, others[1].values,
        )  # fmt: skip


@pytest.mark.parametrize("over", [0, 8])
def test_a_batch_may_be_as_large_as_others_take_it(over: int) -> None:
    length = MAX_BATCH_BYTES + over
    batch = bytearray(length)
    small = encode_batch([b""], timestamp_us=1, producer=1)
    batch[: len(small)] = small
    struct.pack_into("<I", batch, 4, length)
    struct.pack_into("<i", batch, HEADER_BYTES + 4, length - HEADER_BYTES - 8)
    body = body_of(resealed(batch))
    assert (as_the_others_read_it(body) is None) == bool(over)
    assert (plain.read_push(body) is None) == bool(over)


@given(st.binary(max_size=200))
def test_anything_may_come(body: bytes) -> None:
    assert plain.read_push(memoryview(body)) is None


@pytest.mark.parametrize("at", range(96 + 24))
def test_a_body_that_is_cut_is_not_read(at: int) -> None:
    body = body_of(encode_batch([b"value"], timestamp_us=1))
    assert plain.read_push(body[:at]) is None


def test_pushes_that_say_more_are_left_to_others() -> None:
    others = {
        "keys": encode_batch([b"v"], timestamp_us=1, keys=[b"k"]),
        "compressed": encode_batch([bytes(500)], timestamp_us=1, compression="lz4"),
        "urgent": encode_batch([b"v"], timestamp_us=1, priority=1),
        "times": encode_batch([b"v"], timestamp_us=1, timestamps_us=[2]),
    }
    for what, batch in others.items():
        assert plain.read_push(body_of(batch)) is None, what
        assert as_the_others_read_it(body_of(batch)) is not None, what
    assert plain.read_push(body_of(encode_batch([b"v"], timestamp_us=1), extra=8)) is None
    assert Columns.KEYS == 1


def test_offsets_that_lie_are_not_read() -> None:
    for row, offset in [(0, 1), (1, 9), (2, 3), (2, 1 << 31), (2, 0xFFFFFFFF), (2, 17)]:
        batch = encode_batch([b"12345678", b"12345678"], timestamp_us=1)
        struct.pack_into("<I", batch, 96 + 4 * row, offset)
        body = body_of(resealed(batch))
        assert (plain.read_push(body) is None) == (as_the_others_read_it(body) is None), row


@given(
    st.lists(SMALL, min_size=1, max_size=40), st.data(), st.integers(0, (1 << 62) - 41),
    st.integers(0, MAX_PRIORITY), NUMBERS,
)  # fmt: skip
def test_a_part_is_what_others_cut_out(
    values: list[bytes], data: st.DataObject, base: int, priority: int, producer: int
) -> None:
    batch = Batch.parse(
        encode_batch(
            values, timestamp_us=1, producer=producer, priority=priority, due_us=-5, ttl_ms=9
        )
    )
    batch.stamp(base, 3, 77)
    first = data.draw(st.integers(0, len(values) - 1))
    count = data.draw(st.integers(1, len(values) - first))
    part = plain.part_of(memoryview(batch.buffer), base + first, count)
    assert part == batch.span(first, count)
    assert part is not None
    assert Batch.parse(part).values == values[first : first + count]


@pytest.mark.parametrize(
    ("position", "count"),
    [(9, 1), (9, 3), (13, 1), (12, 2), (10, 4), (10, 0), (10, -1), (-1, 1), (1 << 64, 1)],
)
def test_there_is_no_part_of_what_is_not_there(position: int, count: int) -> None:
    batch = Batch.parse(encode_batch([b"a", b"b", b"c"], timestamp_us=1))
    batch.stamp(10, 1, 1)
    assert plain.part_of(batch.buffer, position, count) is None
    assert plain.part_of(batch.buffer, 10, 3) == batch.buffer


@pytest.mark.parametrize("over", [0, 1])
def test_a_part_is_as_urgent_as_others_take_it(over: int) -> None:
    batch = encode_batch([b"a", b"b"], timestamp_us=1, priority=MAX_PRIORITY)
    batch[42] += over
    assert (plain.part_of(batch, 0, 1) is None) == bool(over)


def test_parts_of_batches_that_say_more_are_left_to_others() -> None:
    said: list[dict[str, Any]] = [
        {"keys": [b"k", b"k"]}, {"timestamps_us": [1, 2]}, {"compression": "lz4"},
    ]  # fmt: skip
    for more in said:
        batch = encode_batch([bytes(500), b"b"], timestamp_us=1, **more)
        assert plain.part_of(batch, 0, 1) is None, more


@given(
    st.lists(SMALL, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 3), st.integers(0, 4),
)  # fmt: skip
def test_a_part_of_nonsense_is_a_batch_or_none(
    values: list[bytes], changes: list[tuple[int, int]], position: int, count: int
) -> None:
    batch = encode_batch(values, timestamp_us=1)
    for at, byte in changes:
        batch[at % len(batch)] = byte
    part = plain.part_of(batch, position, count)
    if part is not None:
        read = Batch.parse(part)
        read.check()
        assert read.count == count


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.integers(0, 80))
def test_frames_are_cut_alike(bodies: list[bytes], cut: int) -> None:
    """One by one, or several together, or in pieces: compiled and not."""
    stream = b"".join(FRAME.pack(16 + len(body), 2, 0, 0, 1) + body for body in bodies)
    found: list[list[bytes]] = []
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "COMPILED", compiled)
            splitter, frames = Splitter(), list[bytes]()
            for piece in (stream[:cut], stream[cut:]):
                rest = memoryview(piece)
                if (buffer := splitter.buffer()) is not None:
                    size = min(len(buffer), len(rest))
                    buffer[:size] = rest[:size]
                    whole = splitter.filled(size)
                    frames += [] if whole is None else [bytes(whole)]
                    rest = rest[size:]
                if len(rest):
                    frames += map(bytes, splitter.feed(rest))
            found.append(frames)
    assert found[0] == found[1]
    assert b"".join(found[0]) == stream


@pytest.mark.parametrize(
    "call",
    [
        lambda module: module.read_header(b""),
        lambda module: module.read_header("", hash),
        lambda module: module.read_push(b""),
        lambda module: module.read_push("", hash),
        lambda module: module.one_value(b""),
        lambda module: module.one_value(b"", 1, 1, 1, 1, None),
        lambda module: module.part_of(b"", 0, 1),
        lambda module: module.part_of("", 0, 1, hash),
    ],
)
def test_wrong_calls_raise(call: Any) -> None:
    module = pytest.importorskip("penstock.wire._plain")
    with pytest.raises(TypeError):
        call(module)


@pytest.mark.parametrize("answer", [-1, 1 << 64, "text"])
def test_a_digest_that_is_none_raises(answer: Any) -> None:
    module = pytest.importorskip("penstock.wire._plain")
    body = body_of(encode_batch([b"value"], timestamp_us=1))
    with pytest.raises((TypeError, OverflowError)):
        module.read_push(body, lambda _: answer)
    with pytest.raises((TypeError, OverflowError)):
        module.read_header(body[PUSH.size :], lambda _: answer)
    with pytest.raises((TypeError, OverflowError)):
        module.one_value(b"", 1, 1, 1, 1, lambda _: answer)
    with pytest.raises((TypeError, OverflowError)):
        module.part_of(body[PUSH.size :], 0, 1, lambda _: answer)


def test_the_environment_chooses() -> None:
    code = "from penstock.wire import plain; print(plain.COMPILED)"
    environment = {**os.environ, "PENSTOCK_PURE": "1"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
