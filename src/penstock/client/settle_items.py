"""What is settled, in as few items as can be: runs of neighbours, and masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.client.messages import LeasedMessage
from penstock.wire.frames import Settle, SettleItem

if TYPE_CHECKING:
    from penstock.client.delivery import Granted

_MANY_RUNS = 3  # of one grant: a mask is shorter than so many items
_MASK_SPAN = 1 << 16

_ACK = int(Settle.ACK)


def join_runs(items: Iterable[SettleItem]) -> list[SettleItem]:
    """The same settlements in fewer items: neighbouring positions of a grant become one.

    Items must not overlap, and all have the same `op` and `arg`.
    """
    joined: list[SettleItem] = []
    for item in sorted(items, key=lambda each: (each.shard, each.grant, each.position)):
        if joined:
            last = joined[-1]
            follows = item.position == last.position + last.count
            if follows and item.grant == last.grant and item.shard == last.shard:
                joined[-1] = last._replace(count=last.count + item.count)
                continue
        joined.append(item)
    return joined if len(joined) < _MANY_RUNS else _masked(joined)


def _masked(runs: list[SettleItem]) -> list[SettleItem]:
    """Runs of the same grant with gaps between them become one item with a mask."""
    items: list[SettleItem] = []
    for (shard, grant), group in groupby(runs, key=lambda run: (run.shard, run.grant)):
        parts = list(group)
        first, last = parts[0], parts[-1]
        span = last.position + last.count - first.position
        if len(parts) < _MANY_RUNS or span > _MASK_SPAN:
            items += parts
            continue
        mask = 0
        for part in parts:
            mask |= ((1 << part.count) - 1) << part.position - first.position
        items.append(SettleItem(first.op, shard, span, grant, first.position, first.arg, mask))
    return items


def ack_items(messages: Sequence[LeasedMessage]) -> list[SettleItem]:
    """Acks of single messages; those in the order of delivery are found as runs in one pass, also
    if the messages of several grants take turns."""
    runs: list[SettleItem] = []
    begun: dict[Granted, tuple[int, int]] = {}  # the run of a grant: its first, and what follows
    granted: Granted | None = None
    first = following = -1
    for message in messages:
        position = message.position
        if message._granted is not granted:
            if granted is not None:
                begun[granted] = (first, following)
            granted = message._granted
            first, following = begun.get(granted, (position, position))
        if position != following:
            runs.append(granted.item(_ACK, first, following - first))
            first = position
        following = position + 1
    if granted is not None:
        begun[granted] = (first, following)
    runs += [each.item(_ACK, first, end - first) for each, (first, end) in begun.items()]
    return runs if len(runs) < 2 else join_runs(runs)
