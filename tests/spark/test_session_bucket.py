"""Buckets of sessions, in columns, give what the consumers' assembler gives, row by row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments
from penstock.consumers.generator import CLOSING_KEY, Clicks, is_end
from penstock.consumers.sessions import Sessionizer, decode_session, session_order
from penstock.errors import LimitError, ProtocolError
from penstock.spark import session_bucket
from penstock.spark.buckets import token_of
from penstock.spark.session_bucket import SessionBucket

SECOND = 1_000_000
Row = tuple[bytes, bytes, str, int, int, int]


def sessionizer(delay: float = 60.0, **more: Any) -> Sessionizer:
    return Sessionizer(**{"end": is_end, "timeout": 1800.0, "delay": delay, **more})


class Store:
    """What Spark keeps for a bucket; `open` is what a worker does that has nothing in memory."""

    def __init__(self, stateful: Sessionizer) -> None:
        self.stateful = stateful
        self.head: bytes | None = None
        self.chunks: list[bytes] = []
        self.rewrites = 0

    def open(self) -> SessionBucket:
        return SessionBucket(self.stateful, self.head, self.chunks)

    def save(self, bucket: SessionBucket) -> None:
        saved = bucket.save()
        self.rewrites += saved.replaces
        self.head, self.chunks = saved.head, [*self.chunks * (not saved.replaces), saved.chunk]


def rows_of(found: list[Any]) -> list[Row]:
    return [tuple(each.values()) for batch in found for each in batch.to_pylist()]


def taken(bucket: SessionBucket, rows: Fragments, now_us: int = 0) -> list[Row]:
    keys, values = (pa.array(each, pa.binary()) for each in (rows.keys, rows.values))
    return rows_of(bucket.take(keys, values, rows.times_us, now_us))


def by_assembler(parts: list[Fragments], stateful: Sessionizer) -> list[Row]:
    """The same with the consumers' own means, one fragment after the other."""
    assembler = Assembler(stateful, bulk=False)
    found: list[Row] = []
    for part in parts:
        step = assembler.take(part, 0)
        found += [
            (each.key, each.value, each.about.reason, each.about.count, each.about.first_us,
             each.about.last_us)
            for each in step.results
        ]  # fmt: skip
        found += [
            (late.key, late.value, "late", 1, late.time_us, late.time_us) for late, _ in step.late
        ]
    return found


def cut(rows: Fragments, sizes: list[int]) -> list[Fragments]:
    places = [0, *np.cumsum(sizes).tolist()]
    parts = [rows.cut(start, stop) for start, stop in pairwise(places)]
    return [part for part in [*parts, rows.cut(places[-1], len(rows))] if len(part)]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_clicks_give_their_answer(keeps: bool, delay: float) -> None:
    clicks = Clicks(seed=3, blocks=2, chains=100, delay=delay)
    store = Store(sessionizer(delay, fragment_id=bytes))
    found: list[Row] = []
    bucket: SessionBucket | None = None
    for rows in clicks.batches(400):
        bucket = bucket if bucket is not None and keeps else store.open()
        found += taken(bucket, rows)
        store.save(bucket)
    records = sorted((decode_session(value) for _, value, *_ in found), key=session_order)
    known = [each for each in records if each.key != CLOSING_KEY.decode()]
    assert known == sorted(clicks.answer(), key=session_order)


values = st.sampled_from(
    [b"x", b"y", b"y2", b"z:END", b'{"a": "\\"}', b"\xff\x00", "\u00e9\u2028".encode(), b"", b"\n"]
)
fragment = st.tuples(
    st.sampled_from([b"a", b"b", b'"c\xff', b""]),
    values,
    st.integers(0, 60).map(lambda steps: steps * 150 * SECOND),
)
cuts = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12)
kinds = st.fixed_dictionaries(
    {
        "delay": st.sampled_from([0.0, 0.0000001, 200.0, 2000.0]),
        "late": st.sampled_from(["ignore", "side", "reopen"]),
        "timeout": st.sampled_from([None, 300.0, 1800.0]),
        "fragment_id": st.sampled_from([None, bytes, lambda value: value[:1], len]),
        "end": st.sampled_from([is_end, is_end, None]),
    }
).filter(lambda kind: kind["timeout"] is not None or kind["end"] is not None)


@settings(max_examples=600, deadline=None)
@given(st.lists(fragment, min_size=1, max_size=60), cuts, kinds)
def test_any_input_in_any_cuts_gives_what_the_assembler_gives(rows, cuts, kind) -> None:
    whole = Fragments.of(rows)
    parts = cut(whole, [size for size, _ in cuts])
    store = Store(sessionizer(**kind))
    found: list[Row] = []
    kept: SessionBucket | None = None
    for number, part in enumerate(parts):
        bucket = kept or store.open()
        found += taken(bucket, part)
        store.save(bucket)
        kept = bucket if cuts[number % len(cuts)][1] else None
    assert sorted(found) == sorted(by_assembler([whole], sessionizer(**kind)))


@settings(max_examples=100, deadline=None)
@given(st.lists(fragment, min_size=1, max_size=40), kinds)
def test_input_that_has_an_end_is_followed_by_silence(rows, kind) -> None:
    whole = Fragments.of(rows)
    bucket = SessionBucket(sessionizer(**kind))
    assembler = Assembler(sessionizer(**kind))
    expected = [each.value for each in assembler.take(whole, 0).results]
    expected += [each.value for each in assembler.finish().results]
    found = taken(bucket, whole) + rows_of(bucket.flush())
    assert sorted(value for _, value, reason, *_ in found if reason != "late") == sorted(expected)


def test_a_log_is_written_anew_once_it_is_longer_than_its_base(monkeypatch) -> None:
    monkeypatch.setattr(session_bucket, "SMALL_LOG_BYTES", 2_000)
    store = Store(sessionizer())
    sizes = []
    for number in range(300):
        times = np.arange(20, dtype=np.int64) * SECOND + number * 20 * SECOND
        keys = [b"k%d" % (number * 20 + each) for each in range(20)]
        bucket = store.open()
        taken(bucket, Fragments(keys, [b"v:END"] * 20, times, times, times))
        store.save(bucket)
        sizes.append(sum(map(len, store.chunks)))
    assert store.rewrites > 10
    assert max(sizes[150:]) < 2 * max(sizes[:150])


def test_keys_that_have_nothing_open_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(session_bucket, "_FEW_SLOTS", 10)
    clicks = Clicks(seed=5, blocks=3, chains=200)
    kind: dict[str, Any] = {"timeout": clicks.timeout, "delay": clicks.delay, "fragment_id": bytes}
    bucket = SessionBucket(sessionizer(**kind))
    parts = list(clicks.batches(150))
    found: list[Row] = []
    for part in parts:
        found += taken(bucket, part)
        assert len(bucket._slots) <= 10 + 2 * bucket._open.count
    assert sorted(found) == sorted(by_assembler(parts, sessionizer(**kind)))


def test_many_sessions_that_end_at_once_come_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(session_bucket, "MOST_ROWS_AT_ONCE", 50)
    clicks = Clicks(seed=6, blocks=1, chains=50)
    kind: dict[str, Any] = {"timeout": clicks.timeout, "delay": clicks.delay}
    bucket = SessionBucket(sessionizer(**kind))
    whole = next(iter(clicks.batches(100_000)))
    keys, texts = (pa.array(each, pa.binary()) for each in (whole.keys, whole.values))
    found = bucket.take(keys, texts, whole.times_us)
    assert len(found) >= len(whole) // 50
    assert sorted(rows_of(found)) == sorted(by_assembler([whole], sessionizer(**kind)))


def test_ends_may_be_told_by_a_column() -> None:
    bucket = SessionBucket(sessionizer(0.0))
    keys, texts = pa.array([b"k"] * 3, pa.binary()), pa.array([b"a", b"b", b"c"], pa.binary())
    found = bucket.take(
        keys, texts, np.arange(3) * SECOND, ends=np.array([False, True, False])
    )
    assert [(row[2], row[3]) for row in rows_of(found)] == [("end", 2)]


def test_silence_ends_sessions_by_the_clock_also_after_a_restart() -> None:
    store = Store(sessionizer(idle_after=10.0))
    bucket = store.open()
    taken(bucket, Fragments.of([(b"a", b"x", SECOND)]), now_us=100 * SECOND)
    store.save(bucket)
    again = store.open()
    assert again.tick(105 * SECOND) == []
    [row] = rows_of(again.tick((100 + 1800 + 61) * SECOND))
    assert row[2] == "timeout"


def test_a_bucket_that_saved_another_time_is_told_apart() -> None:
    store = Store(sessionizer())
    bucket = store.open()
    taken(bucket, Fragments.of([(b"a", b"x", SECOND)]))
    store.save(bucket)
    assert store.head is not None
    assert token_of(store.head) == bucket.token
    bucket.save()
    assert token_of(store.head) != bucket.token


def test_what_is_open_has_a_bound(monkeypatch) -> None:
    monkeypatch.setattr(session_bucket, "MOST_ROWS", 5)
    bucket = SessionBucket(sessionizer())
    with pytest.raises(LimitError, match="6 fragments"):
        taken(bucket, Fragments.of([(b"a", b"x", SECOND)] * 6))


def test_damaged_state_is_refused() -> None:
    store = Store(sessionizer())
    bucket = store.open()
    taken(bucket, Fragments.of([(b"a", b"x", SECOND)]))
    store.save(bucket)
    with pytest.raises(ProtocolError, match="damaged"):
        SessionBucket(sessionizer(), b"\x01\x02")
    with pytest.raises(ProtocolError, match="damaged"):
        SessionBucket(sessionizer(), store.head, [store.chunks[0][:-20]])
    with pytest.raises(ProtocolError, match="of version 1"):
        SessionBucket(sessionizer(), msgspec.msgpack.encode([1, b"", 0, 0, 0, 0, 0, 0, 0]))
