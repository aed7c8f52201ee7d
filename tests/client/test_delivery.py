"""Reading deliveries, honest and hostile ones."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.blocking_messages import Delivery, Message
from penstock.client.consume import ConsumeState
from penstock.client.delivery import read_grants
from penstock.client.settle import Settler
from penstock.errors import DamagedError, ProtocolError
from penstock.wire.batch import Batch, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import COUNT, FRAME_BYTES, GRANT, Flag, Verb, frame
from penstock.wire.merge import merge, one_row


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
        GRANT.pack(grant, first, count, 3, 1, len(batch), 0)
        for grant, first, count, batch in grants
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


def test_a_delivery_as_arrow_has_the_granted_rows():
    pytest.importorskip("pyarrow")
    whole = delivery((7, 102, 3, batch_of(10, 100, keyed=True)), (8, 50, 2, batch_of(2, 50)))
    table = Delivery(read_grants(whole, Settler(1))).to_arrow()
    assert table.column_names == ["value", "key", "timestamp", "headers"]
    assert table["value"].to_pylist() == [b"v102", b"v103", b"v104", b"v50", b"v51"]
    assert table["key"].to_pylist() == [b"k2", b"k3", b"k4", None, None]
    table.validate(full=True)


def test_who_wants_fewer_messages_than_came_gives_the_others_back():
    """Several nodes may deliver more than one part that is not wanted any more."""
    state = ConsumeState(Settler(1), Message, None, None, max_messages=3)
    parts = [(grant, 10 * grant, 2, batch_of(2, 10 * grant)) for grant in (1, 2, 3, 4)]
    state.subscription.inbox += [delivery(*parts[:3]), delivery(parts[3])]
    state.open()
    seen = []
    while (messages := state.messages()) is not None:
        seen += [message.value for message in messages]
    assert seen == [b"v10", b"v11", b"v20"]
    assert state.finished
    back = [(item.grant, item.position, item.count) for item in state.unhanded()]
    assert back == [(2, 21, 1), (3, 30, 2), (4, 40, 2)]


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


def merged(
    owners: list[int], *heads: tuple[int, int, int], base: int = 0, length: int = 0
) -> bytearray:
    """A delivery whose grants (grant, first position, count) share a batch with these owners."""
    row = one_row(encode_batch([b"v"], timestamp_us=5))
    assert row is not None
    batch = merge([row] * len(owners), base, owners)
    sizes = [(len(batch), len(heads)), *[(length, 0)] * (len(heads) - 1)]
    packed = b"".join(
        GRANT.pack(grant, first, count, 3, 1, *size)
        for (grant, first, count), size in zip(heads, sizes, strict=True)
    )
    body = COUNT.pack(len(heads), len(owners)) + packed + batch
    return bytearray(frame(Verb.POP, 1, Flag.RESPONSE, body))


def test_grants_that_share_a_batch_have_their_own_rows():
    whole = merged([0, 1, 0, 1, 1], (7, 100, 2), (9, 500, 3))
    found = Message.all_of(read_grants(whole, Settler(1)))
    assert [(one.position, one._granted.grant) for one in found] == [
        (100, 7), (500, 9), (101, 7), (501, 9), (502, 9),
    ]  # fmt: skip
    assert [one._granted.row(one.position) for one in found] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "hostile",
    [
        merged([0, 1, 0], (7, 100, 1), (9, 500, 2)),
        merged([0, 2, 0], (7, 100, 2), (9, 500, 1)),
        merged([0, -1, 0], (7, 100, 2), (9, 500, 1)),
        merged([0, 1, 0], (7, 100, 2), (9, 1 << 63, 1)),
        merged([0, 1, 0], (7, 100, 2), (9, 500, 1), base=5),
        merged([0, 1, 0], (7, 100, 2), (9, 500, 1), length=8),
        merged([0, 0, 0], (7, 100, 3), (9, 500, 0)),
    ],
)
def test_merged_batches_that_make_no_sense_are_refused(hostile):
    with pytest.raises(ProtocolError):
        read_grants(hostile, Settler(1))


def test_a_merged_batch_without_all_its_grants_is_refused():
    whole = merged([0, 0, 0], (7, 100, 3))
    whole[FRAME_BYTES + COUNT.size + GRANT.size - 4] = 3  # it says that two more grants follow
    with pytest.raises(ProtocolError):
        read_grants(whole, Settler(1))


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
