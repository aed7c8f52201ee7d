"""The proof that `make spark-proof` runs: in small, and whether it would see what is wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytest.importorskip("pyspark")

from penstock.cli.sparking.moments import KINDS, QUEUE_KINDS, Kill, Seen, kinds_of
from penstock.cli.sparking.report import as_json, figures
from penstock.cli.sparking.run import ROWS, Outcome, Plan, Proof, compared


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sessions", "queue"])
def test_every_record_is_there_once(url, tmp_path, kind) -> None:
    outcome = Proof(url, tmp_path / kind, Plan(kind, kills=2, seed=7, failing=0.3)).perform()
    assert outcome.correct, as_json(outcome)
    assert outcome.expected > 500
    assert outcome.failures > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sink_that_forgets_who_it_is_is_caught(url, tmp_path) -> None:
    plan = Plan("queue", kills=1, seed=8, failing=0, careless=True)
    outcome = Proof(url, tmp_path, plan).perform()
    assert outcome.kills[0].unnoted
    assert not outcome.correct
    assert (outcome.doubled, outcome.missing, outcome.wrong) == (ROWS, 0, 0)


def outcome_of(expected: list[bytes], found: list[bytes], left: int = 0) -> Outcome:
    counts = compared(Counter(expected), Counter(found))
    kill = Kill("published", 1.0, Seen(3, 2, 3, 0))
    plan = Plan("queue", 1, 7)
    return Outcome(plan, len(expected), len(found), *counts, left, [kill], 5, 20, 9.0)


def test_what_is_wrong_is_seen() -> None:
    assert outcome_of([b"a", b"b"], [b"b", b"a"]).correct
    for found, missing, doubled, wrong in [
        ([b"a"], 1, 0, 0),
        ([b"a", b"b", b"b", b"b"], 0, 2, 0),
        ([b"a", b"b", b"c", b"c"], 0, 0, 2),
        ([b"a", b"a", b"c"], 1, 1, 1),
    ]:
        outcome = outcome_of([b"a", b"b"], found)
        assert not outcome.correct
        assert (outcome.missing, outcome.doubled, outcome.wrong) == (missing, doubled, wrong)
    assert not outcome_of([b"a"], [b"a"], left=1).correct


def test_fewer_kills_than_planned_prove_nothing() -> None:
    outcome = outcome_of([b"a"], [b"a"])
    outcome.kills.clear()
    assert not outcome.correct


def test_reports() -> None:
    outcome = outcome_of([b"a"], [b"a"])
    assert figures(outcome)["of them after a publication that was not noted"] == 1
    assert as_json(outcome)["kills"][0]["seen"]["published"] == 3


def test_kinds_of_kills_take_turns() -> None:
    found = kinds_of(9, KINDS, random.Random(1))
    assert set(found) == set(KINDS)
    assert max(Counter(found).values()) == 3
    assert found == kinds_of(9, KINDS, random.Random(1))
    assert set(kinds_of(5, QUEUE_KINDS, random.Random(1))) == {*KINDS, "reserved"}
