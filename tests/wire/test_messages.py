"""Cold requests: what is not used is not sent, so that older nodes can read the rest."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core import records
from penstock.errors import ProtocolError
from penstock.wire import messages as m

OLD = [
    (
        m.Commit(1, "g", [(0, 5, 2)]),
        {"type": "Commit", "stream": 1, "group": "g", "offsets": [[0, 5, 2]]},
    ),
    (
        m.Unclaim(1, 0, "g", 2),
        {"type": "Unclaim", "stream": 1, "partition": 0, "group": "g", "token": 2},
    ),
]


@pytest.mark.parametrize(("request_", "fields"), OLD)
def test_calls_of_groups_are_what_they_were_before_states(request_, fields):
    assert msgspec.msgpack.decode(m.pack(request_)) == fields
    assert m.read_request(msgspec.msgpack.encode(fields)) == request_


def test_a_field_that_is_not_known_is_an_error():
    with pytest.raises(ProtocolError):
        m.read_request(msgspec.msgpack.encode({"type": "Stats", "more": 1}))


def test_records_from_before_there_were_states_can_be_read():
    committed = records.read_note(msgspec.msgpack.encode(["Committed", 1, 0, "g", 5]))
    assert committed == records.Committed(1, 0, "g", 5, b"")
    claimed = records.read_note(msgspec.msgpack.encode(["Claimed", 1, 0, "g", "me", 2, 1000]))
    assert claimed == records.Claimed(1, 0, "g", "me", 2, 1000, "")
