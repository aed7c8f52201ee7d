"""Promises about whole queues: bounds, purges, dead letters, looks that take nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from penstock.sim.actors import Stream
from penstock.sim.history import Delivery, History, Peek, Push, Upkeep

FOREVER_US = 1 << 62


def check_upkeep(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with a queue as a whole."""
    by_value = history.by_value(queue.name)
    return [
        *_check_bound(history, queue, by_value),
        *_check_purges(history, queue, by_value),
        *_check_tries(history, queue, by_value),
        *_check_peeks(history, queue, by_value),
    ]


# --- bounds --------------------------------------------------------------------------------


def _check_bound(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A bounded queue never holds more than it may, and refuses nothing before it does."""
    most = queue.options.get("max_messages", 0)
    if not most:
        return
    surely: list[tuple[int, int]] = []  # when a message was certainly there, or maybe gone again
    for push in history.pushes_to(queue.name):
        acks = _acks(by_value.get(push.value, []))
        gone_us = min((sent_us for sent_us, _ in acks), default=FOREVER_US)
        if push.stored is True and not push.duplicate and gone_us > push.done_us:
            surely += [(push.done_us, 1), (gone_us, -1)]
    there = 0
    for at_us, change in sorted(surely):
        there += change
        if there > most:
            yield f"over its bound: {queue.name} held {there} messages at {at_us}"
            break
    for refusal in history.refusals:
        if refusal.queue == queue.name:
            room = most - _maybe_there(history, queue, by_value, refusal.sent_us, refusal.done_us)
            if room >= refusal.count:
                yield (
                    f"refused without a cause: {queue.name} had room for {room} messages at "
                    f"{refusal.sent_us}, and refused {refusal.count}"
                )


def _acks(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    """Acks that may have been accepted: sent, and known to be accepted (or never)."""
    return [
        (each.sent_us, each.done_us if each.accepted else FOREVER_US)
        for delivery in deliveries
        for each in delivery.settlements
        if each.op == "ack" and each.accepted is not False
    ]


def _maybe_there(
    history: History,
    queue: Stream,
    by_value: dict[bytes, list[Delivery]],
    start_us: int,
    end_us: int,
) -> int:
    """How many messages may have been in the queue at most, at a moment of this time."""
    count = 0
    for push in history.pushes_to(queue.name):
        acks = _acks(by_value.get(push.value, []))
        gone = any(done_us < start_us for _, done_us in acks)
        refused = push.stored is False and push.done_us < start_us
        count += push.sent_us <= end_us and not gone and not refused
    return count


# --- purges --------------------------------------------------------------------------------


def _check_purges(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """What waited when a purge was asked for is not delivered after it was acknowledged."""
    purges = _of(history, queue, "purge")
    for value, deliveries in by_value.items() if purges else ():
        push = history.pushes[value]
        before: Delivery | None = None
        for each in deliveries:
            since_us = _waiting_since(push, before, each)
            before = each
            if since_us is None:
                continue
            lost = history.trouble.may_lose_leases(queue.level, push.sent_us, each.got_us)
            for purge in purges:
                purged = since_us < purge.sent_us and purge.done_us < each.asked_us
                if purge.done_us and purged and not lost:
                    yield f"purged and back: {value!r} waited at {purge.sent_us}, and came"


def _waiting_since(push: Push, before: Delivery | None, each: Delivery) -> int | None:
    """Since when a message certainly waited before this delivery; None if it was leased maybe."""
    if push.held or push.stored is not True:
        return None
    if before is None:
        return push.done_us if each.count == 1 else None
    if each.count != before.count + 1:
        return None
    nacks = [s.done_us for s in before.settlements if s.op == "nack" and s.accepted]
    return min(nacks, default=None)


def _of(history: History, queue: Stream, op: str) -> list[Upkeep]:
    return [each for each in history.upkeep if each.queue == queue.name and each.op == op]


# --- dead letters --------------------------------------------------------------------------


def _check_tries(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """After so many deliveries a message is a dead letter, and comes back by a redrive only."""
    tries = queue.options.get("max_deliveries", 0)
    redrives, purges = _of(history, queue, "redrive"), _of(history, queue, "purge_dead")
    for value, deliveries in by_value.items() if tries else ():
        for each in deliveries:
            if each.count > tries:
                yield f"one delivery too many: {value!r} came with {each.count} of {tries}"
        for first, second in pairwise(deliveries):
            redriven = any(each.within(first.asked_us, second.got_us) for each in redrives)
            lost = history.trouble.may_lose_leases(queue.level, first.asked_us, second.got_us)
            if first.count >= tries and not redriven and not lost:
                yield f"dead and delivered: {value!r} came at {second.got_us} without a redrive"
    for peek in history.peeks:
        if peek.dead and peek.queue == queue.name:
            yield from _check_buried(peek, redrives, purges, by_value)


def _check_buried(
    peek: Peek, redrives: list[Upkeep], purges: list[Upkeep], by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """Dead letters that were there when they were purged are gone for good."""
    for purge in purges:
        if not purge.done_us or purge.sent_us < peek.done_us:
            continue
        if any(each.within(peek.sent_us, purge.done_us) for each in redrives):
            continue
        for value in peek.values:
            if any(each.asked_us > purge.done_us for each in by_value.get(value, [])):
                yield f"purged and back: the dead letter {value!r} was purged at {purge.sent_us}"


# --- looks ---------------------------------------------------------------------------------


def _check_peeks(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """A peek shows what a pop could get: nothing held, acked, not due or never stored."""
    for peek in history.peeks:
        if peek.queue != queue.name:
            continue
        for value in peek.values:
            push = history.pushes.get(value)
            if push is None or push.stream != queue.name or push.stored is False:
                yield f"ghost: a peek showed {value!r}, which was never stored in {queue.name}"
            elif (wrong := _hidden(history, push, peek, by_value.get(value, []))) is not None:
                yield f"peeked: {value!r} was shown at {peek.done_us}, and is {wrong}"


def _hidden(history: History, push: Push, peek: Peek, deliveries: list[Delivery]) -> str | None:
    """Why a peek must not show a message."""
    for sent_us, done_us in _acks(deliveries):
        lost = history.trouble.may_lose("written", sent_us, peek.done_us)
        if done_us < peek.sent_us and not lost:
            return "acked"
    if push.held and not peek.dead:
        sent = [each.sent_us for each in history.releases if each.id == push.id]
        if not any(sent_us < peek.done_us for sent_us in sent):
            return "held"
    since_us = 0 if push.scheduled else push.sent_us
    due_us = push.sent_us + push.delay_us - history.trouble.skew(since_us, peek.done_us)
    return "not due" if push.delay_us and peek.done_us < due_us else None
