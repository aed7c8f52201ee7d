"""Merged batches: what goes in comes out, under a checksum that holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedError
from penstock.wire.batch import Batch, Origin
from penstock.wire.encode import encode_batch
from penstock.wire.merge import MERGE_BYTES, merge, one_row

ROWS = st.tuples(
    st.binary(max_size=40), st.none() | st.binary(max_size=20), st.integers(0, 2**50), st.booleans()
)


def single(value: bytes, key: bytes | None, time_us: int, column: bool) -> bytearray:
    """A batch of one; with `column`, keys and times are in columns although they need not be."""
    keys = [key] if key is not None or column else None
    times = [time_us] if column else None
    return encode_batch(
        [value], timestamp_us=1 if column else time_us, keys=keys, timestamps_us=times
    )


@given(st.lists(ROWS, min_size=1, max_size=30), st.booleans())
def test_a_merged_batch_holds_the_messages_of_all(rows: list[Any], owned: bool) -> None:
    taken = [one_row(single(*row)) for row in rows]
    found = [row for row in taken if row is not None]
    assert len(found) == len(rows)
    owners = [number % 3 for number in range(len(rows))] if owned else None
    batch = Batch.parse(merge(found, 0 if owned else 70, owners))
    batch.check()
    assert batch.values == [row[0] for row in rows]
    assert batch.keys == [row[1] for row in rows]
    assert batch.timestamps.tolist() == [row[2] for row in rows]
    assert batch.headers == [{}] * len(rows)
    wanted = owners if owners is not None else list(range(70, 70 + len(rows)))
    assert batch.offsets.tolist() == wanted


def test_the_checksum_of_a_merged_batch_covers_its_rows_and_owners() -> None:
    row = one_row(single(b"v", None, 1, False))
    assert row is not None
    whole = merge([row] * 9, 0, list(range(9)))
    for at in (41, 100, len(whole) - 8):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(DamagedError):
            Batch.parse(damaged)


@pytest.mark.parametrize(
    "terms",
    [
        {"values": [b"a", b"b"]},
        {"headers": [{"n": b"1"}]},
        {"compression": "lz4", "values": [b"x" * 1000]},
        {"origin": Origin(1, 2, 3)},
        {"values": [bytes(MERGE_BYTES)]},
    ],
    ids=["two rows", "headers", "compressed", "origin", "large"],
)
def test_batches_that_stay_as_they_are(terms: dict[str, Any]) -> None:
    assert one_row(encode_batch(**{"values": [b"v"], "timestamp_us": 1, **terms})) is None
