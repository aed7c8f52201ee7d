"""What came out of the group against the known answer, and against what the guarantee allows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from penstock.cli.demonstration.settling import ACCEPTED
from penstock.cli.grouping.changes import Disruption
from penstock.cli.grouping.collecting import Collected, collected
from penstock.cli.grouping.load import Load, late_name, session_name
from penstock.consumers.sessions import decode_session

SLACK_SECONDS = 2.0  # of a busy machine, on top of the time between commits


@dataclass
class Verdict:
    """Counts of results. `wrong`: not in the answer, or not as there; `other_id`: made twice, under
    different ids; `acked_twice`: one message. `unexplained`: missing or doubled where nothing was
    disrupted. `longest_gap`: of missing ones, one after the other in a partition."""

    expected: int = 0
    delivered: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    other_id: int = 0
    acked_twice: int = 0
    unexplained: int = 0
    longest_gap: int = 0

    def broken(self, guarantee: str) -> int:
        """How often a promise did not hold."""
        always = self.wrong + self.other_id + self.acked_twice + self.unexplained
        if guarantee == "exactly-once":
            return always + self.missing + self.doubled
        return always + (self.missing if guarantee == "at-least-once" else self.doubled)


class Made(NamedTuple):
    """A message that was made of a session, or of a late fragment."""

    pushed_us: int
    id: str


@dataclass
class Found:
    """What was collected of one queue: distinct messages, by the name of what they were made of."""

    made: dict[str, list[Made]] = field(default_factory=dict)
    digests: dict[str, set[int]] = field(default_factory=dict)
    acked_twice: int = 0

    def enter(self, deliveries: Iterable[Collected], name_of: Callable[[Collected], str]) -> None:
        """Takes in deliveries; several of one message count as one."""
        accepted: dict[tuple[int, int], int] = {}
        for each in deliveries:
            place = each.shard, each.position
            if place not in accepted:
                name = name_of(each)
                self.made.setdefault(name, []).append(Made(each.pushed_us, each.id))
                self.digests.setdefault(name, set()).add(_digest(each.value.encode()))
            accepted[place] = accepted.get(place, 0) + (each.verdict == ACCEPTED)
        self.acked_twice += sum(count > 1 for count in accepted.values())


def _digest(value: bytes) -> int:
    return xxhash.xxh3_64_intdigest(value)


class Causes:
    """When each partition was disrupted."""

    def __init__(self, disruptions: Sequence[Disruption], commit_every: float) -> None:
        self._disruptions = disruptions
        self._slack_us = round((commit_every + SLACK_SECONDS) * 1e6)

    def explain(self, partition: int, from_us: int, until_us: int) -> bool:
        """Whether a partition was disrupted between two times, or less than the time between two
        commits, and some slack, before or after."""
        return any(
            partition in each.partitions
            and each.from_us <= until_us + self._slack_us
            and from_us <= each.until_us + self._slack_us
            for each in self._disruptions
        )


def check_sessions(folder: Path, load: Load, causes: Causes) -> Verdict:
    """Of the queue of results."""
    found = Found()
    found.enter(collected(folder, 1), _session_of)
    verdict = Verdict()
    for partition in range(load.partitions):
        ordered = sorted(load.answer(partition), key=lambda each: each.due_us)
        digests = {each.name: _digest(each.value) for each in ordered}
        _judge(verdict, partition, digests, found, causes)
    _judge_rest(verdict, found)
    return verdict


def check_late(folder: Path, load: Load, causes: Causes) -> Verdict:
    """Of the queue of late fragments."""
    found = Found()
    found.enter(collected(folder, 2), _late_of)
    verdict = Verdict()
    for partition in range(load.partitions):
        names = list(load.late(partition))
        digests = {name: _digest(name.rpartition(" ")[2].encode()) for name in names}
        _judge(verdict, partition, digests, found, causes)
    _judge_rest(verdict, found)
    return verdict


def _session_of(each: Collected) -> str:
    return session_name(decode_session(each.value.encode()))


def _late_of(each: Collected) -> str:
    return late_name(each.key.encode(), each.value.encode())


def _judge(
    verdict: Verdict, partition: int, answer: Mapping[str, int], found: Found, causes: Causes
) -> None:
    """One partition; its answer is in the order in which results are made. What is judged is taken
    out of what was found."""
    made = [found.made.pop(name, []) for name in answer]
    verdict.expected += len(answer)
    for name, copies in zip(answer, made, strict=True):
        verdict.delivered += bool(copies)
        verdict.missing += not copies
        verdict.wrong += bool(found.digests.pop(name, {answer[name]}) != {answer[name]})
        if len(copies) > 1:
            verdict.doubled += len(copies) - 1
            verdict.other_id += len({each.id for each in copies}) > 1
            first_us = min(each.pushed_us for each in copies)
            verdict.unexplained += not causes.explain(partition, first_us, first_us)
    _judge_missing(verdict, partition, made, causes)


def _judge_missing(
    verdict: Verdict, partition: int, made: Sequence[Sequence[Made]], causes: Causes
) -> None:
    """What is missing was made after the last one before it that is there, and before the next."""
    there = [at for at, copies in enumerate(made) if copies]
    for at, copies in enumerate(made):
        if copies:
            continue
        after = bisect_left(there, at)
        from_us = min(each.pushed_us for each in made[there[after - 1]]) if after else 0
        until_us = 1 << 62
        if after < len(there):
            until_us = max(each.pushed_us for each in made[there[after]])
        verdict.unexplained += not causes.explain(partition, from_us, until_us)
        first = there[after - 1] + 1 if after else 0
        end = there[after] if after < len(there) else len(made)
        verdict.longest_gap = max(verdict.longest_gap, end - first)


def _judge_rest(verdict: Verdict, found: Found) -> None:
    verdict.wrong += sum(map(len, found.made.values()))  # of what is in no answer
    verdict.acked_twice += found.acked_twice
