"""The history of the topic: every message that was acknowledged is read once, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.cli.faulting import ledgers
from penstock.cli.faulting.ledgers import ACCEPTED, Rows
from penstock.cli.faulting.topic_work import KEYS, PARTITIONS, key_of


@dataclass
class TopicVerdict:
    """What came out; `lost`, `doubled`, `unsent` and `out_of_order` have to be zero."""

    acknowledged: int = 0
    unknown_publishes: int = 0
    read: int = 0
    lost: int = 0
    doubled: int = 0  # stored or handed out twice
    unsent: int = 0
    out_of_order: int = 0  # offsets that do not follow each other, numbers that go back in a key


def check_topic(folder: Path) -> TopicVerdict:
    """Reads all ledgers of the topic, some rows at a time; there is one publisher, one reader."""
    found = TopicVerdict()
    known = _published(folder)
    found.acknowledged = int(np.count_nonzero(known))
    found.unknown_publishes = len(known) - found.acknowledged
    seen = np.zeros(len(known), np.uint8)
    offsets = np.full(PARTITIONS, -1, np.int64)
    last = np.full(KEYS, -1, np.int64)
    for path in ledgers.named(folder, "seen"):
        for rows in ledgers.chunks(path):
            pushed = rows["number"] < len(known)
            np.add.at(seen, rows["number"][pushed], 1)
            found.read += len(rows)
            found.unsent += int(np.count_nonzero(~pushed))
            partition, offset, number = rows["partition"], rows["offset"], rows["number"]
            found.out_of_order += _breaks(partition, offset, offsets, exact=True)
            found.out_of_order += _breaks(key_of(number), number, last, exact=False)
    found.lost = int(np.count_nonzero(known & (seen == 0)))
    found.doubled = int(np.count_nonzero(seen > 1))
    return found


def _published(folder: Path) -> NDArray[np.bool_]:
    """For every number that was used: whether it is known to be stored."""
    parts = [
        np.repeat(rows["verdict"] == ACCEPTED, rows["count"])
        for path in ledgers.named(folder, "published")
        for rows in ledgers.chunks(path)
    ]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def _breaks(
    groups: NDArray[np.integer], values: Rows, last: NDArray[np.int64], exact: bool
) -> int:
    """How often a value does not come after the one before it in its group; `exact`: by one. `last`
    has the values before these, and gets the last of them."""
    broken = 0
    for group in np.unique(groups):
        own = values[groups == group].astype(np.int64)
        steps = np.diff(own, prepend=last[group])
        broken += int(np.count_nonzero(steps != 1 if exact else steps <= 0))
        last[group] = own[-1]
    return broken
