"""Sequences of a producer."""

from __future__ import annotations

import xxhash

from penstock.client.producer import (
    Lane,
    Producer,
    Verdict,
    shard_of,
    unsequenced,
)
from penstock.errors import ForgottenError, InvalidError, LimitError, StorageError
from penstock.wire.growth import Layout


def test_hashes_are_those_of_the_contract():
    digest = xxhash.xxh3_64_intdigest(b"key")
    assert shard_of(b"key", 256) == digest % 256
    assert Layout(12, []).partition_of(b"key") == (digest >> 32) * 12 >> 32


def take(lane: Lane, count: int) -> int:
    first = lane.next
    lane.next += count
    return first


def test_numbers_of_a_refused_push_are_used_again():
    lane = Lane(5)
    take(lane, 10)
    refused = take(lane, 3)
    assert lane.refused(refused, 3, LimitError("full"), False) is Verdict.FINAL
    assert lane.mend()
    assert lane.next == 10


def test_a_push_behind_a_refused_one_is_displaced():
    lane = Lane(5)
    first, second = take(lane, 10), take(lane, 5)
    third = take(lane, 1)
    assert lane.refused(first, 10, LimitError("full"), False) is Verdict.FINAL
    gap, unknown = InvalidError("leaves a gap"), ForgottenError("starts at 15 instead of 0")
    assert lane.refused(second, 5, gap, True) is Verdict.DISPLACED
    assert lane.refused(third, 1, unknown, True) is Verdict.DISPLACED
    assert lane.mend()
    assert lane.next == 0
    assert lane.refused(take(lane, 1), 1, gap, False) is Verdict.SUSPECT


def test_a_push_to_a_node_that_lost_its_count_may_be_sent_under_another_identity():
    for error in (InvalidError("leaves a gap"), ForgottenError("who?")):
        lane = Lane(5)
        take(lane, 10)
        assert lane.refused(take(lane, 1), 1, error, False) is Verdict.SUSPECT
        assert not lane.mend()


def test_a_push_that_was_forgotten_after_it_was_sent_may_be_stored():
    lane = Lane(5)
    assert lane.refused(take(lane, 1), 1, ForgottenError("who?"), True) is Verdict.FINAL
    assert not lane.mend()


def test_a_hole_below_numbers_in_use_ends_the_lane():
    lane = Lane(5)
    first = take(lane, 10)
    take(lane, 5)
    lane.refused(first, 10, LimitError("full"), False)
    assert not lane.mend()


def test_numbers_of_unknown_outcome_are_not_used_again():
    lane = Lane(5)
    assert lane.refused(take(lane, 1), 1, StorageError("disk"), False) is Verdict.FINAL
    assert not lane.mend()


def test_a_producer_leaves_a_lane_with_a_hole():
    producer = Producer(5, 16, 1)
    lane = producer.lane(3)
    assert producer.lane(3) is lane
    assert lane.producer == 5
    lane.refused(take(lane, 1), 1, StorageError("disk"), False)
    fresh = producer.lane(3)
    assert (fresh.next, fresh.producer != 5, fresh.producer != 0) == (0, True, True)
    assert producer.lane(4).producer == 5


def test_a_lane_that_was_idle_is_left_before_the_node_forgets_it():
    now_s = 1000.0
    producer = Producer(5, 16, 1, lambda: now_s)
    lane = producer.lane(3)
    now_s += 200
    assert producer.lane(3) is lane
    now_s += 299
    assert producer.lane(3) is lane
    now_s += 301
    assert producer.lane(3).producer != 5


def test_a_stream_of_its_own_has_another_identity():
    producer = Producer(5, 16, 1)
    assert producer.own().lane(0).producer not in (0, 5)


def test_pushes_with_an_id_have_no_sequence():
    lane = unsequenced(3)
    assert (lane.producer, lane.next) == (0, 0)
    assert unsequenced(3) is not lane


def test_a_free_lane_is_for_one_request_at_a_time():
    producer = Producer(1, 4, seed=3)
    first, second = producer.free_lane(2), producer.free_lane(2)
    assert len({1, first.producer, second.producer}) == 3
    producer.give_back(2, first)
    assert producer.free_lane(2) is first
    assert producer.free_lane(3) is not second


def test_a_free_lane_takes_a_refused_number_back_and_ends_after_an_unknown_outcome():
    producer = Producer(1, 4, seed=3)
    lane = producer.free_lane(0)
    lane.next += 1
    lane.refused(0, 1, LimitError(""), False)
    producer.give_back(0, lane)
    assert producer.free_lane(0) is lane
    assert lane.next == 0
    lane.next += 1
    lane.refused(0, 1, StorageError(""), False)
    producer.give_back(0, lane)
    assert producer.free_lane(0).producer != lane.producer


def test_a_free_lane_that_was_idle_for_long_is_not_used_again():
    now = [0.0]
    producer = Producer(1, 4, seed=3, now_s=lambda: now[0])
    lane = producer.free_lane(0)
    producer.give_back(0, lane)
    now[0] = 301.0
    assert producer.free_lane(0) is not lane
