"""Promises of queues, held against what producers and consumers saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from penstock.sim.actors import Stream
from penstock.sim.check_moves import Paths
from penstock.sim.check_terms import may_expire
from penstock.sim.history import Delivery, History, Push, Settlement

UNSYNCED_US = 5_000_000  # what is written and not synced is at risk for so long, at most
FOREVER_US = 1 << 62


def check_queue(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with one queue."""
    by_value, paths = history.by_value(queue.name), Paths(history, queue.name)
    found: list[str] = []
    for value, deliveries in by_value.items():
        push = history.pushes.get(value)
        deliveries.sort(key=paths.order)
        found += _check_origin(queue, value, push, deliveries, history, paths)
        found += _check_moves(value, push, deliveries, history, paths)
        found += _check_acks(value, deliveries, history)
        found += _check_causes(value, push, deliveries, history)
        found += _check_leases(value, deliveries, history)
    found += _check_lost(history, queue, by_value)
    if queue.ordered != "no":
        found += _check_order(history, queue, by_value)
        found += [f"moved out of order: {each}" for each in paths.moves]
    return found


def _check_origin(
    queue: Stream, value: bytes, push: Push | None, deliveries: list[Delivery], history: History,
    paths: Paths,
) -> Iterator[str]:  # fmt: skip
    if push is None:
        yield f"ghost: {value!r} was delivered from {queue.name} and never sent"
        return
    if push.stream != queue.name:
        yield f"ghost: {value!r} was sent to {push.stream} and delivered from {queue.name}"
    if push.stored is False:
        yield f"ghost: {value!r} was refused and delivered"
    places = {(each.shard, each.position) for each in deliveries}
    if push.place is not None:
        places.add(push.place)
    until_us = max(each.got_us for each in deliveries)
    lost = history.trouble.may_lose(queue.level, push.sent_us, until_us)  # and sent again
    if not paths.is_one(places) and not lost:
        yield f"stored twice: {value!r} is at {sorted(places)} (shard, position)"


def _check_moves(
    value: bytes, push: Push | None, deliveries: list[Delivery], history: History, paths: Paths
) -> Iterator[str]:
    """Who moves was given to nobody before, and is given to nobody at the old place after."""
    for each in deliveries:
        move = paths.leaves.get((each.shard, each.position))
        if move is None:
            continue
        given = f"{value!r}, under grant {each.grant:#x} of shard {each.shard} at {each.got_us}"
        begun_us = max(each.asked_us, 0 if push is None else push.sent_us)
        lost = history.trouble.may_lose_leases(each.level, begun_us, move.left_us)
        if each.grant > move.granted:
            yield f"delivered where it had left at {move.left_us}: {given}"
        elif not (lost or history.redriven(each.queue, begun_us, move.left_us)):
            yield f"moved at {move.left_us} though it was given: {given}"


def _accepted(deliveries: list[Delivery]) -> list[tuple[Delivery, Settlement]]:
    return [
        (each, settlement)
        for each in deliveries
        for settlement in each.settlements
        if settlement.op == "ack" and settlement.accepted
    ]


def _check_acks(value: bytes, deliveries: list[Delivery], history: History) -> Iterator[str]:
    accepted = sorted(_accepted(deliveries), key=lambda item: item[1].sent_us)
    for (first, ack), (second, other) in combinations(accepted, 2):
        mine = (first.consumer, first.grant), (second.consumer, second.grant)
        if mine[0] != mine[1] and not _at_risk(first, ack, other.done_us, history):
            yield f"acked twice: {value!r} by {mine[0]} and {mine[1]} (consumer, grant)"
    for acked, settlement in accepted:
        for each in deliveries:
            later = each is not acked and each.asked_us > settlement.done_us
            if later and not _at_risk(acked, settlement, each.got_us, history):
                yield (
                    f"acked and back: {value!r}, acked at {settlement.done_us} by "
                    f"{acked.consumer}, was delivered at {each.got_us} to {each.consumer}"
                )


def _at_risk(acked: Delivery, settlement: Settlement, until_us: int, history: History) -> bool:
    """Whether an ack may have been lost that was not safe."""
    return history.trouble.may_lose(acked.level, settlement.sent_us, until_us)


def _check_causes(
    value: bytes, push: Push | None, deliveries: list[Delivery], history: History
) -> Iterator[str]:
    """Of every two deliveries the later must have a cause, and a higher count."""
    for first, second in pairwise(deliveries):
        begun_us = max(first.asked_us, 0 if push is None else push.sent_us)
        lost = history.trouble.may_lose_leases(first.level, begun_us, second.got_us)
        redriven = history.redriven(first.queue, begun_us, second.got_us)
        if second.count <= first.count and not (lost or redriven):
            yield (
                f"delivery count: {value!r} came with {first.count} under grant {first.grant} and "
                f"with {second.count} under grant {second.grant}"
            )
        lease_us = first.lease_us - history.trouble.drifted(first.lease_us)
        expired = second.got_us >= begun_us + lease_us
        nacked = any(s.op == "nack" and s.sent_us <= second.got_us for s in first.settlements)
        between = second.count > first.count + 1  # there was one that nobody noted
        if not (expired or nacked or lost or redriven or between):
            yield (
                f"delivered again without a cause: {value!r} under grant {first.grant} at "
                f"{first.got_us} and under {second.grant} at {second.got_us}"
            )


def _check_leases(value: bytes, deliveries: list[Delivery], history: History) -> Iterator[str]:
    """A lease lasts as long as was asked for, at least; a nack's delay does, too."""
    trouble = history.trouble
    for each in deliveries:
        first = each.settlements[0] if each.settlements else None
        if first is not None and first.op == "ack" and first.accepted is False:
            lease_us = each.lease_us - trouble.drifted(each.lease_us)
            running = first.done_us < each.asked_us + lease_us
            lost = trouble.may_lose_leases(each.level, each.asked_us, first.done_us)
            if running and not lost and first.transaction is None:
                yield (
                    f"lease too short: {value!r}, asked for at {each.asked_us} and leased for "
                    f"{each.lease_us}, could not be acked at {first.done_us}"
                )
    for first_out, second in pairwise(deliveries):
        for nack in first_out.settlements:
            if nack.op != "nack" or not nack.accepted or nack.sent_us > second.got_us:
                continue
            due_us = nack.sent_us + nack.delay_us - trouble.skew(nack.sent_us, second.got_us)
            lost = trouble.may_lose(first_out.level, nack.sent_us, second.got_us)
            redriven = history.redriven(first_out.queue, nack.sent_us, second.got_us)
            if second.got_us < due_us and not (lost or redriven):
                yield f"too early: {value!r}, given back until {due_us}, came at {second.got_us}"


def _check_lost(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    if not history.drained:
        return
    for push in history.pushes_to(queue.name):
        if push.stored is not True or push.duplicate or push.value in history.dead:
            continue
        deliveries = by_value.get(push.value, [])
        if _may_be_gone(push, deliveries, history):
            continue
        if not deliveries:
            yield (
                f"lost: {push.value!r} was acknowledged ({push.level}) at {push.done_us} and "
                "never came"
            )
        settlements = [each for delivery in deliveries for each in delivery.settlements]
        settled = any(each.op == "ack" and each.accepted is not False for each in settlements)
        if deliveries and not settled:
            yield f"lost: {push.value!r} was delivered, not acknowledged, and is gone"


def _may_be_gone(push: Push, deliveries: list[Delivery], history: History) -> bool:
    """Lost as far as its level allows, purged, or past its time-to-live."""
    until_us = push.done_us + UNSYNCED_US if push.level == "written" else FOREVER_US
    if history.trouble.may_lose(push.level, push.sent_us, until_us):
        return True
    purges = (each for each in history.upkeep if each.op.startswith("purge"))
    if any(each.queue == push.stream and each.within(push.sent_us, FOREVER_US) for each in purges):
        return True
    return bool(push.ttl_us) and may_expire(push, deliveries, history)


def _check_order(
    history: History, queue: Stream, by_value: dict[bytes, list[Delivery]]
) -> Iterator[str]:
    """When a message is out, everything before it (in the queue or of its key) was acked."""
    lines: dict[bytes | None, list[Delivery]] = defaultdict(list)
    for value, deliveries in by_value.items():
        push = history.pushes.get(value)
        if push is not None:
            lines[push.key if queue.ordered == "key" else None] += deliveries
    for line in lines.values():
        yield from _check_line(line, history)


def _check_line(line: list[Delivery], history: History) -> Iterator[str]:
    firsts: dict[int, Delivery] = {}
    grants: dict[int, set[int]] = defaultdict(set)  # by position
    acked_us: dict[int, int] = {}  # by position: when an ack was first sent
    for each in line:
        grants[each.position].add(each.grant)
        known = firsts.get(each.position)
        if known is None or each.got_us < known.got_us:
            firsts[each.position] = each
        for settlement in each.settlements:
            if settlement.op == "ack" and settlement.accepted is not False:
                before = acked_us.get(each.position, settlement.sent_us)
                acked_us[each.position] = min(before, settlement.sent_us)
    ordered = sorted(firsts.items())
    for (position, first), (_, second) in pairwise(ordered):
        together = second.grant in grants[position]
        free_us = acked_us.get(position)
        if not together and (free_us is None or free_us > second.got_us):
            yield (
                f"out of order: {second.value!r} was delivered at {second.got_us} while "
                f"{first.value!r} before it was not done"
            )
    yield from _check_lines_of_producers(ordered, history)


def _check_lines_of_producers(
    ordered: list[tuple[int, Delivery]], history: History
) -> Iterator[str]:
    last: dict[str, int] = {}
    for _, each in ordered:
        push = history.pushes[each.value]
        if push.index < last.get(push.line, -1):
            yield f"out of order: {push.value!r} stands after message {last[push.line]} of its line"
        last[push.line] = max(push.index, last.get(push.line, -1))
