"""Promises about single messages: held, with an id, with a time-to-live, a delay, a priority."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from penstock.sim.actors import Stream
from penstock.sim.history import Delivery, History, Push


def check_terms(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with what was asked for single messages of a queue."""
    by_value = history.by_value(queue.name)
    return [
        *_check_held(history, queue, by_value),
        *_check_ids(history, queue, by_value),
        *_check_ttl(history, queue, by_value),
        *_check_delay(history, queue, by_value),
        *_check_priority(history, queue, by_value),
    ]


def _check_held(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A held message is not delivered before its release, and a release finds it."""
    held = {push.id: push for push in history.pushes_to(queue.name) if push.held}
    first_us: dict[bytes, int] = {}
    released: dict[bytes, int] = defaultdict(int)
    for each in history.releases:
        push = held.get(each.id)
        if push is None or each.queue != queue.name:
            continue
        first_us[each.id] = min(each.sent_us, first_us.get(each.id, each.sent_us))
        released[each.id] += each.answer == "released"
        stored = push.stored is True and push.done_us < each.sent_us
        if each.answer == "unknown" and stored:
            yield f"held and lost: {push.value!r} is stored, and its release did not find it"
    for message_id, push in held.items():
        assert message_id is not None
        if released[message_id] > 1:
            yield f"released twice: {push.value!r}"
        for delivery in by_value.get(push.value, []):
            if message_id not in first_us or delivery.got_us < first_us[message_id]:
                yield f"held and delivered: {push.value!r} came at {delivery.got_us}"


def _check_ids(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """Of all pushes with the same id one is stored."""
    groups: dict[bytes, list[Push]] = defaultdict(list)
    for push in history.pushes_to(queue.name):
        if push.id is not None:
            groups[push.id].append(push)
    for message_id, pushes in groups.items():
        came = [push.value for push in pushes if push.value in by_value]
        first = [push for push in pushes if push.stored is True and not push.duplicate]
        if len(came) > 1 or len(first) > 1:
            yield f"id used twice: of {message_id!r} {came} came and {len(first)} were stored"
        known = any(push.stored is True for push in pushes)
        if history.drained and known and not came and queue.level == "synced":
            yield f"lost: {message_id!r} was acknowledged, and no message with this id came"


def may_expire(push: Push, deliveries: list[Delivery], history: History) -> bool:
    """Whether time may have taken a message. One that is leased when its time comes is kept."""
    if not push.ttl_us:
        return False
    for each in deliveries:
        # Also one that was refused: it may be the repetition of one whose answer was lost, and if
        # not, the message was not leased any more either.
        nacks = [s.sent_us for s in each.settlements if s.op == "nack"]
        ends_us = min([*nacks, each.asked_us + each.lease_us])
        skew_us = history.trouble.skew(push.sent_us, ends_us)
        first_us, last_us = push.sent_us + push.ttl_us, push.done_us + push.ttl_us
        whole = each.got_us < first_us - skew_us and last_us + skew_us < ends_us
        if whole and not history.trouble.may_lose_leases(each.level, each.asked_us, ends_us):
            return False
    return True


def _check_ttl(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A message that waited when its time-to-live was over is not delivered."""
    for push in history.pushes_to(queue.name):
        if not push.ttl_us or push.stored is not True:
            continue
        for each in by_value.get(push.value, [])[:1]:
            skew_us = history.trouble.skew(push.sent_us, each.got_us)
            over_us = push.done_us + push.ttl_us + skew_us
            lost = history.trouble.may_lose_leases(queue.level, push.sent_us, each.got_us)
            if each.count == 1 and each.asked_us > over_us and not lost:
                yield f"too old: {push.value!r} was over at {over_us} and came at {each.got_us}"


def _check_delay(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A delayed message is not delivered before its time, by the node's clock."""
    for push in history.pushes_to(queue.name):
        for each in by_value.get(push.value, []) if push.delay_us else ():
            since_us = 0 if push.scheduled else push.sent_us
            due_us = push.sent_us + push.delay_us - history.trouble.skew(since_us, each.got_us)
            if each.got_us < due_us:
                yield f"too early: {push.value!r} is due at {due_us} and came at {each.got_us}"


def _check_priority(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A pop gets nothing that is less urgent, or as urgent and younger, than what it leaves.

    Looked at are messages that were certainly ready all the time: stored before the pop was asked
    for, and delivered for the first time to a pop that was asked for after it. (After a redrive
    the count begins anew, also of deliveries that no consumer has seen.)
    """
    if queue.ordered != "no" or queue.options.get("gangs"):
        return  # of gangs, those that are too large are left
    ready: dict[int, list[First]] = defaultdict(list)
    for value, deliveries in by_value.items():
        push, first = history.pushes[value], deliveries[0]
        at_once = not (push.delay_us or push.held)
        anew = history.redriven(queue.name, push.sent_us, first.got_us)
        if push.stored is True and at_once and first.count == 1 and not anew:
            ready[push.priority].append((push, first))
    lines = {priority: _Line(firsts) for priority, firsts in ready.items()}
    for push, taken in (first for firsts in ready.values() for first in firsts):
        for priority, line in lines.items():
            if priority < push.priority:
                continue
            before_us = taken.asked_us if priority > push.priority else push.sent_us
            found = line.left(min(before_us, taken.asked_us), taken.got_us)
            if found is None or history.trouble.may_lose_leases(
                queue.level, found[0].sent_us, found[1].got_us
            ):
                continue
            yield (
                f"out of turn: {push.value!r} ({push.priority}) came at {taken.got_us}, and "
                f"{found[0].value!r} ({priority}), there since {found[0].done_us}, did not"
            )


First = tuple[Push, Delivery]


class _Line:
    """Messages in the order in which they were stored, with the one that was taken last so far."""

    def __init__(self, firsts: list[First]) -> None:
        ordered = sorted(firsts, key=lambda first: first[0].done_us)
        self._stored_us = [push.done_us for push, _ in ordered]
        self._last = list(accumulate(ordered, _later))

    def left(self, before_us: int, after_us: int) -> First | None:
        """One that was stored before a time and asked for after another."""
        at = bisect_left(self._stored_us, before_us)
        if at and self._last[at - 1][1].asked_us > after_us:
            return self._last[at - 1]
        return None


def _later(one: First, other: First) -> First:
    return max(one, other, key=lambda first: first[1].asked_us)
