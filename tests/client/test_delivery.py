"""Reading deliveries, honest and hostile ones."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.blocking_messages import Delivery, Message
from penstock.client.delivery import read_grants
from penstock.client.settle import Settler
from penstock.errors import DamagedError, ProtocolError
from penstock.wire.batch import Batch, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import COUNT, FRAME_BYTES, GRANT, Flag, Verb, frame


def batch_of(count: int, base: int, *, keyed: bool = False) -> bytearray:
    values = [b"v%d" % (base + row) for row in range(count)]
    keys = [b"k%d" % row for row in range(count)] if keyed else None
    headers = [{"n": b"%d" % row} for row in range(count)] if keyed else None
    buffer = encode_batch(values, keys=keys, headers=headers, timestamp_us=5)
    stamp(buffer, base, 0, 1)
    return buffer


def delivery(*grants: tuple[int, int, int, bytes | bytearray]) -> bytearray:
    """Of (grant, first position, count, batch)."""
    heads = b"".join(
        GRANT.pack(grant, first, count, 3, 1, len(batch)) for grant, first, count, batch in grants
    )
    body = COUNT.pack(len(grants), sum(grant[2] for grant in grants)) + heads
    whole = body + b"".join(grant[3] for grant in grants)
    return bytearray(frame(Verb.POP, 1, Flag.RESPONSE, whole))


def test_only_granted_rows_are_seen():
    whole = delivery((7, 102, 3, batch_of(10, 100, keyed=True)), (8, 50, 2, batch_of(2, 50)))
    messages = Message.all_of(read_grants(whole, Settler(1)))
    assert [message.value for message in messages] == [b"v102", b"v103", b"v104", b"v50", b"v51"]
    assert [message.position for message in messages] == [102, 103, 104, 50, 51]
    assert [message.key for message in messages] == [b"k2", b"k3", b"k4", None, None]
    assert messages[1].headers == {"n": b"3"}
    assert messages[1].timestamp.year == 1970
    assert (messages[1].deliveries, messages[1].shard) == (1, 3)


def test_a_cut_batch_keeps_the_positions_of_its_rows():
    cut = Batch.parse(batch_of(10, 100)).take(np.array([1, 4, 5, 9]))
    messages = Message.all_of(read_grants(delivery((7, 101, 8, cut)), Settler(1)))
    assert [(message.position, message.value) for message in messages] == [
        (101, b"v101"),
        (104, b"v104"),
        (105, b"v105"),
    ]


def test_columns_of_a_delivery_are_those_of_its_messages():
    whole = delivery((7, 102, 3, batch_of(10, 100, keyed=True)), (8, 50, 2, batch_of(2, 50)))
    columns = Delivery(read_grants(whole, Settler(1)))
    messages = list(columns)
    assert len(columns) == len(messages) == 5
    assert columns.values == [message.value for message in messages]
    assert columns.keys == [message.key for message in messages]
    assert columns.headers == [message.headers for message in messages]
    assert columns.timestamps.tolist() == [message.timestamp_us for message in messages]
    assert columns.deliveries == [1] * 5


def test_no_grants_are_no_messages():
    assert read_grants(delivery(), Settler(1)) == []


@pytest.mark.parametrize(
    "hostile",
    [
        delivery((7, 100, 11, batch_of(10, 100))),
        delivery((7, 99, 2, batch_of(10, 100))),
        delivery((7, 100, 0, batch_of(10, 100))),
        delivery((7, 500, 5, Batch.parse(batch_of(10, 100)).take(np.array([1, 4])))),
        bytearray(frame(Verb.POP, 1, 1, b"")),
        bytearray(frame(Verb.POP, 1, 1, COUNT.pack(1_000_000, 5))),
        bytearray(frame(Verb.POP, 1, 1, COUNT.pack(0, 0) + b"more")),
    ],
)
def test_deliveries_that_make_no_sense_are_refused(hostile):
    with pytest.raises(ProtocolError):
        read_grants(hostile, Settler(1))


def test_a_damaged_batch_is_not_handed_out():
    whole = delivery((7, 100, 10, batch_of(10, 100)))
    whole[-1] ^= 1
    with pytest.raises(DamagedError):
        read_grants(whole, Settler(1))


@given(st.integers(FRAME_BYTES, 400), st.binary(min_size=1, max_size=8), st.booleans())
def test_no_bytes_do_more_than_raise(at, junk, cut):
    whole = delivery((7, 100, 4, batch_of(4, 100)), (8, 50, 2, batch_of(2, 50)))
    if cut:
        del whole[at:]
    else:
        whole[at : at + len(junk)] = junk
    with suppress(ProtocolError, DamagedError):
        Message.all_of(read_grants(whole, Settler(1)))
