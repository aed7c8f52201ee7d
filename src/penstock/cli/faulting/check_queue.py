"""The history of the queue against what is promised: nothing lost, nothing acked twice, nothing
delivered again without a cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.cli.faulting import ledgers
from penstock.cli.faulting.ledgers import ACCEPTED, REFUSED, UNKNOWN, Rows

Period = tuple[int, int]
"""Of a fault: when it began, and when the cluster was whole again."""

NEWS_NS = 2_000_000_000  # so long after that clients may still find out what has changed


@dataclass
class QueueVerdict:
    """What came out; `lost`, `acked_twice`, `without_cause` and `unsent` have to be zero."""

    acknowledged: int = 0
    unknown_pushes: int = 0  # nobody knows whether they were stored
    consumed: int = 0
    lost: int = 0
    acked_twice: int = 0
    without_cause: int = 0
    unsent: int = 0  # delivered, but pushed by nobody
    delivered_again: int = 0
    prompt: int = 0  # first deliveries within half a lease of the push: there the check is sharp
    refused_acks: int = 0
    unknown_acks: int = 0


class _Producer:
    """What is known of the messages of one producer: a few bytes for each."""

    def __init__(self, path: Path) -> None:
        pushes = np.concatenate([*ledgers.chunks(path), np.zeros(0, ledgers.PUSHED)])
        pushes = pushes[np.argsort(pushes["first"], kind="stable")]
        counts = pushes["count"]
        self.known: NDArray[np.bool_] = np.repeat(pushes["verdict"] == ACCEPTED, counts)
        self.sent_ns: NDArray[np.int64] = np.repeat(pushes["started_ns"], counts)
        size = len(self.known)
        self.accepted = np.zeros(size, np.uint8)
        self.unknown = np.zeros(size, np.bool_)
        self.deliveries = np.zeros(size, np.uint8)
        self.again = np.zeros(size, np.bool_)  # a delivery said that it is not the first

    def prompt(self, rows: Rows, within_ns: int) -> int:
        """How many of these are first deliveries so soon after the push."""
        first = rows[(rows["delivery"] == 1) & (rows["number"] < len(self.known))]
        ages = first["received_ns"] - self.sent_ns[first["number"]]
        return int(np.count_nonzero(ages < within_ns))

    def enter(self, rows: Rows) -> int:
        """Counts deliveries; how many of them were never pushed."""
        pushed = rows["number"] < len(self.known)
        rows = rows[pushed]
        numbers, verdict = rows["number"], rows["verdict"]
        np.add.at(self.accepted, numbers[verdict == ACCEPTED], 1)
        self.unknown[numbers[verdict == UNKNOWN]] = True
        np.add.at(self.deliveries, numbers, 1)
        self.again[numbers[rows["delivery"] > 1]] = True
        return int(np.count_nonzero(~pushed))


def check_queue(folder: Path, lease: float, faults: Sequence[Period]) -> QueueVerdict:
    """Reads all ledgers of the queue, some rows at a time."""
    producers = {_number(path): _Producer(path) for path in ledgers.named(folder, "pushed")}
    found = QueueVerdict()
    for rows in _consumed(folder):
        known = np.isin(rows["producer"], list(producers))
        found.unsent += int(np.count_nonzero(~known))
        found.refused_acks += int(np.count_nonzero(rows["verdict"] == REFUSED))
        found.unknown_acks += int(np.count_nonzero(rows["verdict"] == UNKNOWN))
        for number, producer in producers.items():
            own = rows[rows["producer"] == number]
            found.unsent += producer.enter(own)
            found.prompt += producer.prompt(own, int(lease * 1e9) // 2)
    for producer in producers.values():
        gone = producer.accepted.astype(np.bool_) | producer.unknown
        found.acknowledged += int(np.count_nonzero(producer.known))
        found.unknown_pushes += int(np.count_nonzero(~producer.known))
        found.consumed += int(np.count_nonzero(producer.accepted))
        found.lost += int(np.count_nonzero(producer.known & ~gone))
        found.acked_twice += int(np.count_nonzero(producer.accepted > 1))
    _check_again(folder, producers, Causes(lease, faults, _left(folder)), found)
    return found


def _left(folder: Path) -> list[Period]:
    """When consumers left their loops, and so gave back what they had not seen yet."""
    return [
        (int(row["started_ns"]), int(row["ended_ns"]))
        for path in ledgers.named(folder, "left")
        for rows in ledgers.chunks(path)
        for row in rows
    ]


def _consumed(folder: Path) -> Iterable[Rows]:
    return (rows for path in ledgers.named(folder, "consumed") for rows in ledgers.chunks(path))


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _check_again(
    folder: Path, producers: dict[int, _Producer], causes: Causes, found: QueueVerdict
) -> None:
    """Looks at every message that was delivered more than once, or may have been."""
    kept: dict[tuple[int, int], list[Rows]] = {}
    for rows in _consumed(folder):
        for number, producer in producers.items():
            own = rows[(rows["producer"] == number) & (rows["number"] < len(producer.known))]
            odd = (producer.deliveries > 1) | producer.again
            for row in own[odd[own["number"]]]:
                kept.setdefault((number, int(row["number"])), []).append(row)
    for (number, message), deliveries in kept.items():
        found.delivered_again += sum(int(row["delivery"]) > 1 for row in deliveries)
        sent_ns = int(producers[number].sent_ns[message])
        found.without_cause += causes.missing(deliveries, sent_ns)


class Causes:
    """Why a message may be delivered again: its lease ran out; or nobody has seen it, because an
    answer got lost in a fault or a consumer gave back what it had not looked at.

    A consumer may see a message long after its lease began: answers wait in a network that is cut,
    or behind others that are worked on first. What is certain is that no lease began before the
    push, and that those of deliveries that were seen ran one after the other: none is given back.
    """

    def __init__(
        self, lease: float, faults: Sequence[Period], returns: Sequence[Period] = ()
    ) -> None:
        self._lease_ns = int(lease * 1e9)
        self._unseen = [*((begun, over + NEWS_NS) for begun, over in faults), *returns]

    def missing(self, deliveries: Sequence[Rows], sent_ns: int) -> int:
        """How many of the deliveries of one message should not have been."""
        wrong = 0
        ordered = sorted(deliveries, key=lambda row: (row["delivery"], row["received_ns"]))
        for seen, row in enumerate(ordered):
            before = ordered[seen - 1] if seen else None
            wrong += not self._has_cause(row, before, seen, sent_ns)
        return wrong

    def _has_cause(self, row: Rows, before: Rows | None, seen: int, sent_ns: int) -> bool:
        received_ns = int(row["received_ns"])
        if before is not None:
            if before["delivery"] == row["delivery"] or before["verdict"] == ACCEPTED:
                return False
            return received_ns - sent_ns >= seen * self._lease_ns
        # No consumer has seen the deliveries before this one, if there were any.
        ran_out = received_ns - sent_ns >= self._lease_ns
        explained = _overlap(self._unseen, sent_ns, received_ns)
        return int(row["delivery"]) == 1 or ran_out or explained


def _overlap(periods: Sequence[Period], start_ns: int, end_ns: int) -> bool:
    return any(start_ns <= over and begun <= end_ns for begun, over in periods)
