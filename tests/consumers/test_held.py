"""The rows that wait for their time, against a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.consumers.fragments import Rows
from penstock.consumers.held import Held

PARTS = st.lists(
    st.tuples(st.lists(st.integers(0, 50), max_size=6), st.integers(0, 50)), max_size=25
)


def rows_at(times: list[int], offset: int) -> Rows:
    offsets = np.arange(offset, offset + len(times), dtype=np.int64)
    names = [b"%d" % number for number in offsets.tolist()]
    return Rows(names, names, np.array(times, np.int64), offsets, offsets * 10)


@given(PARTS)
def test_rows_leave_by_time_and_offset(parts):
    held, model, offset = Held(), [], 0
    for times, through in parts:
        held.add(rows_at(times, offset))
        model += [(time, offset + number) for number, time in enumerate(times)]
        offset += len(times)
        released = held.release(through)
        expected = sorted(row for row in model if row[0] <= through)
        model = [row for row in model if row[0] > through]
        assert (released is None) == (not expected)
        if released is not None:
            found = list(zip(released.times_us.tolist(), released.offsets.tolist(), strict=True))
            assert found == expected
            assert released.keys == released.values == [b"%d" % number for _, number in expected]
        assert held.count == len(model)
        assert held.bytes == sum(len(b"%d" % number) for _, number in model)
        lowest = min((number for _, number in model), default=None)
        assert held.oldest() == (None if lowest is None else (lowest, lowest * 10))
