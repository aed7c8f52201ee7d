"""The checker of `make groups` against made-up results: it passes what is right, only that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from penstock import ClaimStatus
from penstock.cli.demonstration.settling import ACCEPTED, UNKNOWN
from penstock.cli.grouping.changes import Disruption
from penstock.cli.grouping.check import SLACK_SECONDS, Causes, Verdict, check_late, check_sessions
from penstock.cli.grouping.collecting import Collected
from penstock.cli.grouping.load import Load
from penstock.cli.grouping.report import quantile, spread
from penstock.cli.grouping.settling import LULL_SECONDS, Work, is_even, shares_of

LOAD = Load(seed=5, partitions=2, rate=100, seconds=30.0)
COMMIT_SECONDS = 0.5
SECOND = 1_000_000
ANSWER = {
    partition: sorted(LOAD.answer(partition), key=lambda each: each.due_us)
    for partition in range(LOAD.partitions)
}
LATE = {partition: list(LOAD.late(partition)) for partition in range(LOAD.partitions)}
ALL = ("exactly-once", "at-least-once", "at-most-once")


class History:
    """What was collected: one result a second in each partition, in the order of the answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._position = 0
        self.sessions = [
            self.made(partition, number)
            for partition, expected in ANSWER.items()
            for number in range(len(expected))
        ]

    def made(self, partition: int, number: int, at: float | None = None) -> Collected:
        expected = ANSWER[partition][number]
        pushed_us = round((number if at is None else at) * SECOND)
        self._position += 1
        return Collected(
            0, self._position, ACCEPTED, pushed_us, "", f"{partition}-{number}-0",
            expected.value.decode(),
        )  # fmt: skip

    def late(self) -> list[Collected]:
        names = [name for names in LATE.values() for name in names]
        keys_and_values = [name.rpartition(" ") for name in names]
        return [
            Collected(1, at, ACCEPTED, 0, key, str(at), value)
            for at, (key, _, value) in enumerate(keys_and_values)
        ]

    def write(self, number: int, rows: Sequence[Collected]) -> None:
        path = self._folder / f"collected-{number}.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def judged(self, *disruptions: Disruption) -> Verdict:
        self.write(1, self.sessions)
        return check_sessions(self._folder, LOAD, Causes(disruptions, COMMIT_SECONDS))


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def killed(partition: int, at: float) -> Disruption:
    return Disruption(frozenset({partition}), round(at * SECOND), round(at * SECOND))


def broken(verdict: Verdict) -> list[bool]:
    return [bool(verdict.broken(guarantee)) for guarantee in ALL]


def test_the_answer_itself_is_right_for_every_guarantee(history: History) -> None:
    verdict = history.judged()
    assert broken(verdict) == [False, False, False]
    assert verdict.delivered == verdict.expected == sum(map(len, ANSWER.values())) > 50


def test_a_message_that_is_delivered_again_is_one_result(history: History) -> None:
    history.sessions.append(msgspec.structs.replace(history.sessions[3], verdict=UNKNOWN))
    assert broken(history.judged()) == [False, False, False]


def test_a_message_that_is_acked_twice_is_wrong(history: History) -> None:
    history.sessions.append(history.sessions[3])
    assert broken(history.judged()) == [True, True, True]


def test_what_is_missing_is_allowed_around_a_kill_and_at_most_once_only(history: History) -> None:
    del history.sessions[10:12]
    verdict = history.judged(killed(0, 11.0))
    assert broken(verdict) == [True, True, False]
    assert (verdict.missing, verdict.longest_gap) == (2, 2)


@pytest.mark.parametrize("disruptions", [(), (killed(1, 11.0),), (killed(0, 20.0),)])
def test_what_is_missing_elsewhere_is_never_allowed(
    history: History, disruptions: tuple[Disruption, ...]
) -> None:
    del history.sessions[10:12]
    assert broken(history.judged(*disruptions)) == [True, True, True]


def test_the_same_twice_is_allowed_around_a_kill_and_at_least_once_only(history: History) -> None:
    history.sessions.append(history.made(0, 10, at=16.0))
    assert broken(history.judged(killed(0, 10.2))) == [True, False, True]


FAR_SECONDS = COMMIT_SECONDS + SLACK_SECONDS + 0.5


@pytest.mark.parametrize("disruptions", [
    (), (killed(0, 10 - FAR_SECONDS),), (killed(0, 10 + FAR_SECONDS),), (killed(1, 10.2),),
])  # fmt: skip
def test_the_same_twice_without_a_kill_or_far_from_it_is_wrong(
    history: History, disruptions: tuple[Disruption, ...]
) -> None:
    history.sessions.append(history.made(0, 10, at=16.0))
    assert broken(history.judged(*disruptions)) == [True, True, True]


def test_what_is_made_again_must_be_the_same(history: History) -> None:
    again = msgspec.structs.replace(history.made(0, 10, at=10.5), id="0-99-0")
    history.sessions.append(again)
    assert broken(history.judged(killed(0, 10.2))) == [True, True, True]


def test_another_content_is_wrong(history: History) -> None:
    first = history.sessions[0]
    changed = first.value.replace(":END", ":END.", 1)
    history.sessions[0] = msgspec.structs.replace(first, value=changed)
    assert changed != first.value
    assert broken(history.judged(killed(0, 0.0))) == [True, True, True]


def test_a_session_that_is_not_in_the_answer_is_wrong(history: History) -> None:
    first = history.sessions[0]
    unknown = first.value.replace('"key":"0/', '"key":"9/', 1)
    added = msgspec.structs.replace(first, position=1 << 40, value=unknown)
    history.sessions.append(added)
    assert broken(history.judged(killed(0, 0.0))) == [True, True, True]


def test_late_fragments_are_known_too(history: History, tmp_path: Path) -> None:
    rows = history.late()
    assert rows

    def judged(kept: Sequence[Collected]) -> Verdict:
        history.write(2, kept)
        return check_late(tmp_path, LOAD, Causes((), COMMIT_SECONDS))

    assert broken(judged(rows)) == [False, False, False]
    assert broken(judged(rows[1:])) == [True, True, True]


def status(owner: str, left_ms: int = 1000) -> ClaimStatus:
    return ClaimStatus(owner, 1, left_ms, "", 0, 0, 0)


@pytest.mark.parametrize(
    ("owners", "even"),
    [
        (["a", "b", "a"], True),
        (["a", "a", "a"], False),
        (["a", "b", "gone"], False),
        (["a", "b", ""], False),
    ],
)
def test_shares_are_even_if_all_are_owned_and_differ_by_one(owners: list[str], even: bool) -> None:
    claims = {partition: status(owner) for partition, owner in enumerate(owners)}
    assert is_even(shares_of(claims, ["a", "b"])) is even


def test_a_lease_that_ran_out_is_no_share() -> None:
    assert shares_of({0: status("a"), 1: status("b", 0)}, ["a", "b"]) is None


def at(offset: int, lag: int = 0, token: int = 1) -> dict[int, ClaimStatus]:
    return {0: ClaimStatus("a", token, 1000, "", offset, lag, 0)}


def test_an_owner_works_once_it_has_committed_something_itself() -> None:
    work = Work()
    assert not work.of_all(at(10), 0.0)  # nothing is left: the owner before has read it
    assert not work.of_all(at(10, lag=5), LULL_SECONDS)
    assert work.of_all(at(11, lag=4), LULL_SECONDS)
    assert not work.of_all(at(11, token=2), LULL_SECONDS)  # another owner


def test_an_owner_that_had_nothing_to_read_for_a_while_counts_as_working() -> None:
    work = Work()
    assert not work.of_all(at(10), 0.0)
    assert not work.of_all(at(10), LULL_SECONDS / 2)
    assert work.of_all(at(10), LULL_SECONDS)


def test_quantiles_are_values_that_were_measured() -> None:
    assert [quantile([3.0, 1.0], part) for part in (0.0, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 3.0]
    assert quantile(range(1, 101), 0.9) == 90
    assert spread([]) == {"count": 0}
    assert spread([2.0, 1.0, 4.0]) == {"count": 3, "p50": 2.0, "p90": 4.0, "max": 4.0}
