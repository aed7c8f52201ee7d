"""The compiled packing and its twin: the same columns, the same values, the same refusals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.wire import packing
from penstock.wire.batch import HEADER_BYTES, Batch
from penstock.wire.encode import encode_batch

needs_compiled = pytest.mark.skipif(
    not packing.COMPILED, reason="the compiled packing was not built, or PENSTOCK_PURE is set"
)
OFFSETS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 40)
EDGES = [-(1 << 62), -(1 << 31), -1, 0, 1, 3, 8, (1 << 29) - 1, 1 << 31, 1 << 62, (1 << 63) - 1]


class Named(bytes):
    """Bytes that lie about their length."""

    def __len__(self) -> int:
        return 3


class Tagged(list[bytes]):
    """A list, but not exactly one."""


VALUES = st.binary(max_size=20)
ODD_ITEMS: list[Any] = [
    "text", 7, None, 1.5, bytearray(b"array"), memoryview(b"view"), Named(b"named"), [b"list"],
    memoryview(struct.pack("<3i", 1, 2, 3)).cast("i"), np.arange(3, dtype=np.uint8),
]  # fmt: skip
ODD = st.integers(0, len(ODD_ITEMS) - 1).map(ODD_ITEMS.__getitem__)
SHAPES: list[Callable[[list[Any]], Any]] = [list, tuple, Tagged, dict.fromkeys, iter]


@st.composite
def many(draw: Any, items: st.SearchStrategy[Any]) -> list[Any]:
    """Up to 3,000 values, made of a few; or up to 40, some of them large."""
    few = draw(st.lists(items, min_size=1, max_size=6))
    large = draw(st.sampled_from([False] * 9 + [True]))
    if large:
        few.append(bytes(draw(st.integers(60_000, 70_000))))
    count = draw(st.integers(0, 40) if large else st.integers(0, 40) | st.integers(0, 3000))
    chosen = np.random.default_rng(draw(st.integers(0, 9))).integers(0, len(few), count)
    return [few[row] for row in chosen]


def outcome(compiled: bool, call: Callable[..., Any], *args: Any) -> Any:
    """What a call returns or raises in one of the versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "COMPILED", compiled)
        try:
            result = call(*args)
        except Exception as error:
            return type(error), str(error)
    return result.tolist() if isinstance(result, np.ndarray) else result


def assert_same(call: Callable[..., Any], *args: Any) -> Any:
    compiled, twin = (outcome(version, call, *args) for version in (True, False))
    assert type(compiled) is type(twin)
    assert compiled == twin
    return compiled


def column(values: Sequence[bytes]) -> bytes:
    """By hand, from the documented layout."""
    ends = np.cumsum([0, *map(len, values)]).tolist()
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    data = b"".join(values)
    return offsets + bytes(-len(offsets) % 8) + data + bytes(-len(data) % 8)


def bitmap(values: Sequence[bytes | None]) -> bytes:
    bits = sum((value is not None) << row for row, value in enumerate(values))
    size = (len(values) + 7) // 8
    return bits.to_bytes(size + -size % 8, "little")


# --- each version --------------------------------------------------------------------------


@given(values=many(VALUES), front=st.integers(0, 200))
def test_values_are_packed_and_sliced(version: str, values: list[bytes], front: int) -> None:
    packed = packing.pack_values(values, front)
    assert packed == bytes(front) + column(values)
    assert packing.pack_values(tuple(values), front) == packed
    assert packing.lengths_of(values).tolist() == list(map(len, values))
    assert packing.total_of(values) == sum(map(len, values))
    assert packing.data_length(packed, front, len(values)) == sum(map(len, values))
    for body in (packed, bytes(packed), memoryview(packed)):
        assert packing.slice_values(body, front, len(values)) == values


@given(
    values=many(VALUES), start=st.integers(0, 50), most=st.integers(1, 3000),
    limit=st.integers(0, 1 << 17),
)  # fmt: skip
def test_a_part_is_packed_as_far_as_it_fits(
    version: str, values: list[bytes], start: int, most: int, limit: int
) -> None:
    packed, count = packing.pack_part(values, start, most, limit, 80)
    part = values[start : start + most]
    assert packed == bytes(80) + column(part[:count])
    assert count >= min(len(part), 1)
    assert count <= 1 or sum(map(len, part[:count])) <= limit
    assert count == len(part) or sum(map(len, part[: count + 1])) > limit


@given(size=st.integers(0, 1 << 20))
def test_a_buffer_to_be_filled_has_its_size(version: str, size: int) -> None:
    buffer = packing.unfilled(size)
    assert type(buffer) is bytearray
    assert len(buffer) == size
    buffer[:] = bytes(size)
    buffer.append(1)
    assert buffer == bytes(size) + b"\1"


@given(values=many(VALUES | st.none()))
def test_nulls_are_packed_and_sliced(version: str, values: list[bytes | None]) -> None:
    packed = packing.pack_nullable(values)
    assert packed == bitmap(values) + column([value or b"" for value in values])
    assert packing.slice_nullable(packed, 0, len(values)) == values
    keys, nullable = packing.pack_keys(values)
    assert nullable == (None in values)
    assert keys == (packed if nullable else packing.pack_values(values))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab"), Named(b"abc")])
def test_what_is_like_bytes_is_taken(version: str, value: Any) -> None:
    for values in ([value], [b"x", value, b""]):
        buffer = encode_batch(values, keys=values, timestamp_us=0)
        batch = Batch.parse(buffer)
        assert batch.values == batch.keys == list(map(bytes, values))


@given(offsets=st.lists(OFFSETS, min_size=1, max_size=12), room=st.integers(0, 40))
def test_hostile_offsets_are_refused(version: str, offsets: list[int], room: int) -> None:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    body = packed + bytes(-len(packed) % 8) + bytes(room)
    fits = offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= room
    try:
        length = packing.data_length(body, 0, len(offsets) - 1)
        values = packing.slice_values(body, 0, len(offsets) - 1)
    except ProtocolError:
        assert not fits
    else:
        assert fits
        assert length == sum(map(len, values)) == offsets[-1]


@pytest.mark.parametrize(
    "offsets",
    [
        [0, -1], [1, 1], [-1, 0], [0, 5, 4], [0, 65], [0, 64, 65], [0, 0x7FFFFFFF],
        [0, 0x7FFFFFFF, -0x80000000, 64], [0, -0x80000000], [0x7FFFFFFF, 0x7FFFFFFF],
        [-0x80000000, 0x7FFFFFFF], [0, 1, 2, 3, 4, 5, 6, 7, 6, 9],
    ],
)  # fmt: skip
def test_offsets_that_leave_the_data(version: str, offsets: list[int]) -> None:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    body = packed + bytes(-len(packed) % 8 + 64)
    valid = b"\xff" * 8 + body
    for call, given_body in (
        (packing.data_length, body), (packing.slice_values, body), (packing.slice_nullable, valid),
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            call(given_body, 0, len(offsets) - 1)


# --- the compiled one against its twin -----------------------------------------------------


@needs_compiled
@given(values=many(VALUES | ODD), shape=st.sampled_from(SHAPES))
def test_odd_lists_are_treated_alike(values: list[Any], shape: Callable[[list[Any]], Any]) -> None:
    for call in (
        packing.total_of, packing.pack_values, packing.pack_nullable, packing.pack_keys,
    ):  # fmt: skip
        assert_same(lambda call=call: call(shape(values)))
    for most, limit in ((10, 100), (4000, 30), (4000, 1 << 30)):
        assert_same(packing.pack_part, values, 3, most, limit, 8)


@needs_compiled
@given(values=many(VALUES), row=st.integers(0, 2999), odd=ODD)
def test_a_list_that_turns_wrong(values: list[Any], row: int, odd: Any) -> None:
    assert_same(lambda: encode_batch(values, timestamp_us=0))
    if values:
        values[row % len(values)] = odd
        assert_same(lambda: encode_batch(values, timestamp_us=0))


@needs_compiled
@given(body=st.binary(max_size=80), at=st.integers(-9, 90), count=st.integers(0, 20))
def test_any_bytes_are_read_alike(body: bytes, at: int, count: int) -> None:
    assert_same(packing.data_length, body, at, count)
    assert_same(packing.slice_values, body, at, count)
    if at >= 0:
        assert_same(packing.slice_nullable, body, at, count)


@needs_compiled
@pytest.mark.parametrize("size", [-(1 << 63), -1])
def test_impossible_sizes_are_refused_alike(size: int) -> None:
    assert_same(lambda: packing.unfilled(size))


@pytest.fixture
def compiled() -> Any:
    """The compiled module itself, without its twin behind it."""
    return pytest.importorskip("penstock.wire._packing", reason="it was not built")


@pytest.mark.parametrize("call", ["data_length", "slice_values", "slice_nullable"])
@pytest.mark.parametrize("at", EDGES)
def test_positions_and_counts_outside_are_not_read(compiled: Any, call: str, at: int) -> None:
    function = getattr(compiled, call)
    for count in EDGES:
        if not (0 <= at <= 8 and 0 <= count <= 8):
            assert function(bytes(64), at, count) is None
    for wrong in ((b"", 0), (b"", 0, 0, 0), (b"", "0", 0), (b"", 0, 1 << 64), ("text", 0, 0)):
        with pytest.raises((TypeError, OverflowError)):
            function(*wrong)


def test_what_is_not_plain_is_left_to_the_twin(compiled: Any) -> None:
    for values in ([b"a", bytearray(b"b")], [Named(b"")], Tagged([b"a"]), {b"a": 1}, b"ab", None):
        assert compiled.pack_values(values, 0) is None
        assert compiled.pack_nullable(values) is None
        assert compiled.total_of(values) is None
    for front in (-1, 1 << 40):
        assert compiled.pack_values([b"a"], front) is None
        assert compiled.pack_part([b"a"], 0, 1, 1, front) is None
    parts: list[Any] = [([b"a"], 0, 1, 1), ([b"a"], "0", 1, 1, 0), ([b"a"], 0, 1 << 64, 1, 0)]
    for wrong_part in parts:
        with pytest.raises((TypeError, OverflowError)):
            compiled.pack_part(*wrong_part)
    for wrong in (([b"a"],), ([b"a"], "0"), ([b"a"], 1 << 64)):
        with pytest.raises((TypeError, OverflowError)):
            compiled.pack_values(*wrong)


def test_nothing_is_kept(compiled: Any) -> None:
    """No reference to an item and no hold on a buffer, whether it went well or not."""
    value = bytes(range(100))
    before = sys.getrefcount(value)
    body = compiled.pack_values([value, value], HEADER_BYTES)
    compiled.pack_values([value, value, "x"], 0)
    compiled.pack_part([value, value, "x"], 0, 2, 1000, 0)
    compiled.pack_nullable([value, None, value])
    compiled.total_of((value, value))
    assert sys.getrefcount(value) == before
    first, second = compiled.slice_values(body, HEADER_BYTES, 2)
    assert sys.getrefcount(first) == sys.getrefcount(second) == 2  # the name and the call
    for count in (2, 3, 1000):
        compiled.slice_values(body, HEADER_BYTES, count)
        compiled.slice_nullable(body, HEADER_BYTES, count)
        compiled.data_length(body, HEADER_BYTES, count)
    body.append(0)  # BufferError if anything still looks at it


# --- the choice ----------------------------------------------------------------------------


@pytest.mark.parametrize(("pure", "compiled"), [("1", False), ("", packing.COMPILED)])
def test_the_environment_can_force_the_twin(pure: str, compiled: bool) -> None:
    if not pure and os.environ.get("PENSTOCK_PURE"):
        pytest.skip("PENSTOCK_PURE is set: what was built is not known")
    code = "from penstock.wire import packing; print(packing.COMPILED)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PENSTOCK_PURE": pure},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == str(compiled)
