"""Groups: offsets with states, claims; the same everywhere, over all nodes of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import FencedError, InvalidError, TooLargeError
from penstock.wire.limits import MAX_STATE_BYTES, MAX_STATES

PARTITIONS = 7
EVERY = range(PARTITIONS)


@pytest.fixture
def topic(fabric: Any) -> Any:
    """Partition n has n messages."""
    made = fabric.topic("t", PARTITIONS)
    for partition in range(1, PARTITIONS):
        made.publish_many([b"x"] * partition, partition=partition)
    return made


def test_a_state_goes_with_its_offset(topic):
    states = {partition: b"at %d" % partition for partition in EVERY}
    topic.commit("g", {partition: partition for partition in EVERY}, states=states)
    found = topic.claims("g", states=True)
    assert {each: status.state for each, status in found.items()} == states
    assert {each: status.offset for each, status in found.items()} == topic.committed("g")
    assert all(status.lag == status.age_ms == 0 for status in found.values())
    topic.commit("g", {5: 3, 6: 3}, states={6: b"back"})
    found = topic.claims("g", [6, 5, 4], states=True)
    assert list(found) == [6, 5, 4]
    assert [(each.offset, each.state) for each in found.values()] == [
        (3, b"back"), (3, b""), (4, b"at 4"),
    ]  # fmt: skip
    assert topic.claims("g", [4])[4].state == b"", "only if it was asked for"
    assert [found[each].lag for each in (6, 5)] == [3, 2]


def test_states_that_cannot_be(topic):
    with pytest.raises(TooLargeError):
        topic.commit("g", {0: 0}, states={0: bytes(MAX_STATE_BYTES + 1)})
    with pytest.raises(InvalidError):
        topic.commit("g", {0: 0}, states={1: b"x"})
    with pytest.raises(InvalidError):
        topic.commit("g", {0: 0}, states={0: "text"})
    assert topic.committed("g") == {}
    topic.commit("g", {0: 0}, states={0: bytes(MAX_STATE_BYTES)})
    assert len(topic.claims("g", [0], states=True)[0].state) == MAX_STATE_BYTES


def test_states_of_many_partitions_are_read_in_parts(fabric):
    wide = fabric.topic("wide", MAX_STATES * 2 + 1)
    last = wide.partitions - 1
    wide.commit("g", {0: 0, last: 0}, states={0: b"first", last: b"last"})
    found = wide.claims("g", states=True)
    assert list(found) == list(range(wide.partitions))
    kept = {each: status.state for each, status in found.items() if status.state}
    assert kept == {0: b"first", last: b"last"}


def test_a_transaction_moves_offset_and_state_with_what_came_of_it(fabric, topic):
    results = fabric.queue("results")
    token = topic.claim(3, "g", "me", 30).token
    with fabric.transaction() as together:
        together.push(results, b"result")
        together.commit_offset(topic, "g", 3, 2, token, b"two")
    late = fabric.transaction()
    late.push(results, b"never")
    late.commit_offset(topic, "g", 3, 3, token + 1, b"three")
    with pytest.raises(FencedError):
        late.commit()
    status = topic.claims("g", [3], states=True)[3]
    assert (status.owner, status.offset, status.lag, status.state) == ("me", 2, 1, b"two")
    assert results.pop(timeout=10).value == b"result"
    assert results.pop() is None


def test_many_claims_are_renewed_at_once(topic):
    tokens = {each: topic.claim(each, "g", "me", 30).token for each in EVERY}
    other = topic.claim(2, "h", "you", 30)
    assert other.token == 1
    assert topic.renew("g", "me", tokens) == dict.fromkeys(EVERY, True)
    assert topic.renew("g", "you", tokens) == dict.fromkeys(EVERY, False)
    assert topic.renew("h", "you", {2: 1, 3: 1}, within=30) == {2: True, 3: False}
    assert topic.unclaim(4, "g", tokens[4])
    assert topic.renew("g", "me", {3: 1, 4: 1, 5: 2}) == {3: True, 4: False, 5: False}
    assert topic.renew("g", "me", {}) == {}
    found = topic.claims("g", within=30)
    assert [found[each].owner for each in EVERY] == ["me"] * 4 + [""] + ["me"] * 2
    assert all(0 < found[each].left_ms <= 30_000 for each in EVERY if each != 4)
    assert topic.stats()["groups"] == ["g", "h"]


def test_an_owner_that_asks_again_gets_the_same_token(topic):
    first = topic.claim(1, "g", "me", 30)
    assert topic.claim(1, "g", "me", 30) == first
    assert topic.claim(1, "g", "you", 30).token == 0


def test_what_is_given_up_for_one_is_nobody_elses(topic):
    mine = topic.claim(1, "g", "me", 30)
    topic.commit("g", {1: 1}, mine.token, {1: b"state"})
    assert topic.unclaim(1, "g", mine.token, to="you", reserve=30)
    refused = topic.claim(1, "g", "me", 30)
    assert (refused.owner, refused.token) == ("you", 0)
    status = topic.claims("g", [1])[1]
    assert (status.owner, status.reserved, status.token) == ("", "you", mine.token)
    yours = topic.claim(1, "g", "you", 30)
    assert yours.token == mine.token + 1
    assert topic.claims("g", [1], states=True)[1].state == b"state"
    with pytest.raises(FencedError):
        topic.commit("g", {1: 0}, mine.token)
    with pytest.raises(InvalidError):
        topic.unclaim(1, "g", yours.token, to="me", reserve=61)


def test_a_commit_of_many_partitions_has_a_token_for_each(topic):
    topic.claim(1, "g", "before", 30)
    topic.unclaim(1, "g", 1)
    tokens = {each: topic.claim(each, "g", "me", 30).token for each in (1, 2)}
    assert tokens == {1: 2, 2: 1}
    topic.commit("g", {1: 1, 2: 1}, tokens)
    assert topic.committed("g") == {1: 1, 2: 1}
    with pytest.raises(InvalidError):
        topic.commit("g", {1: 1, 2: 1}, {1: 2})
    with pytest.raises(FencedError):
        topic.commit("g", {2: 2}, tokens[1])
