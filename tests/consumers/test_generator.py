"""The generator keeps its word, and its answer is that of a plain model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice, pairwise

import numpy as np
import pytest

from penstock.consumers.generator import CLOSING_KEY, Clicks, is_end
from penstock.consumers.sessions import SessionRecord, session_order, text

SMALL = Clicks(seed=3, blocks=6, chains=40)
VARIANTS = [
    SMALL,
    Clicks(seed=4, blocks=6, chains=40, delay=0.0),
    Clicks(seed=5, blocks=6, chains=40, late=0.3, duplicates=0.2),
    Clicks(seed=6, blocks=3, chains=60, delay=3600.0, timeout=60.0, without_end=0.6),
]


def sessions_of(rows: Iterable[tuple[bytes, bytes, int]], timeout_us: int) -> list[SessionRecord]:
    """Sort by time, split after ends and at gaps; knows nothing of how fragments are made."""
    by_key: dict[bytes, set[tuple[int, bytes]]] = defaultdict(set)
    for key, value, time_us in rows:
        by_key[key].add((time_us, value))
    found = []
    for key, pieces in by_key.items():
        group: list[tuple[int, bytes]] = []
        for time_us, value in sorted(pieces):
            if group and (is_end(group[-1][1]) or time_us - group[-1][0] > timeout_us):
                found.append(record(key, group))
                group = []
            group.append((time_us, value))
        found.append(record(key, group))
    return sorted(found, key=session_order)


def record(key: bytes, group: list[tuple[int, bytes]]) -> SessionRecord:
    reason = "end" if is_end(group[-1][1]) else "timeout"
    pieces = [(time_us, text(value)) for time_us, value in group]
    return SessionRecord(text(key), group[0][0], group[-1][0], len(group), reason, pieces)


@pytest.mark.parametrize("clicks", VARIANTS, ids=lambda each: f"seed-{each.seed}")
def test_the_answer_is_that_of_the_model(clicks):
    rows = [
        row
        for row in clicks.fragments()
        if row[0] != CLOSING_KEY and not row[1].endswith(b":late")
    ]
    assert sessions_of(rows, clicks.timeout_us) == sorted(clicks.answer(), key=session_order)


@pytest.mark.parametrize("clicks", VARIANTS, ids=lambda each: f"seed-{each.seed}")
def test_fragments_come_within_the_delay_and_late_ones_far_beyond(clicks):
    rows = list(clicks.fragments())
    times = np.array([time_us for _, _, time_us in rows])
    late = np.array([value.endswith(b":late") for _, value, _ in rows])
    behind = np.maximum.accumulate(times) - times
    assert behind[~late].max() < max(1, clicks.delay_us)
    assert late.any() == bool(clicks.late)
    assert (behind[late] >= max(1, clicks.delay_us)).all()
    if clicks.delay:
        assert (behind[~late] > 0).any()


def test_all_that_is_promised_is_there():
    clicks = VARIANTS[2]
    answer = list(clicks.answer())
    rows = list(clicks.fragments())
    assert {each.reason for each in answer} == {"end", "timeout"}
    assert max(Counter(each.key for each in answer).values()) > 3  # keys return, also much later
    assert max(Counter(value for _, value, _ in rows).values()) == 2
    gaps = {b - a for each in answer for (a, _), (b, _) in pairwise(each.fragments)}
    assert clicks.timeout_us in gaps
    assert rows[-1][0] == CLOSING_KEY


def test_a_seed_says_all():
    assert list(SMALL.fragments()) == list(SMALL.fragments())
    assert list(SMALL.answer()) == list(SMALL.answer())
    other = Clicks(seed=99, blocks=6, chains=40)
    assert list(other.answer()) != list(SMALL.answer())


def test_batches_are_the_same_fragments_with_offsets():
    batches = list(SMALL.batches(100))
    rows = [
        row
        for batch in batches
        for row in zip(batch.keys, batch.values, batch.times_us.tolist(), strict=True)
    ]
    assert rows == list(SMALL.fragments())
    offsets = np.concatenate([batch.offsets for batch in batches])
    assert offsets.tolist() == list(range(len(rows)))
    assert max(map(len, batches)) <= 100


def test_ten_million_fragments_begin_at_once():
    clicks = Clicks(seed=1, blocks=10_000, chains=65)
    assert len(list(islice(clicks.fragments(), 1_000))) == 1_000
