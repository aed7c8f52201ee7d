"""Buckets give what one assembler gives, however the input is cut and wherever it goes on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments
from penstock.consumers.generator import CLOSING_KEY, Clicks, is_end
from penstock.consumers.sessions import Sessionizer, decode_session, session_order
from penstock.consumers.stateful import Completion, FunctionalStateful
from penstock.errors import InvalidError, ProtocolError
from penstock.spark import buckets
from penstock.spark.buckets import Bucket, token_of

SECOND = 1_000_000


def sessionizer(delay: float = 60.0, **more: object) -> Sessionizer:
    return Sessionizer(end=is_end, timeout=1800.0, delay=delay, **more)  # type: ignore[arg-type]


class Store:
    """What Spark keeps for a bucket; `open` is what a worker does that has nothing in memory."""

    def __init__(self, stateful: Sessionizer) -> None:
        self.stateful = stateful
        self.head: bytes | None = None
        self.chunks: list[bytes] = []
        self.rewrites = 0

    def open(self) -> Bucket:
        return Bucket(self.stateful, 0, self.head, self.chunks)

    def save(self, bucket: Bucket) -> None:
        saved = bucket.save()
        self.rewrites += saved.replaces
        self.head, self.chunks = saved.head, [*self.chunks * (not saved.replaces), saved.chunk]


def fed(store: Store, rows: Fragments, kept: Bucket | None) -> tuple[list[bytes], Bucket]:
    bucket = store.open() if kept is None else kept
    step = bucket.take(rows.keys, rows.values, rows.times_us)
    store.save(bucket)
    return [each.value for each in step.results], bucket


def by_one_assembler(rows: list[Fragments], stateful: Sessionizer) -> list[bytes]:
    assembler = Assembler(stateful)
    return [each.value for part in rows for each in assembler.take(part, 0).results]


def cut(rows: Fragments, sizes: list[int]) -> Iterator[Fragments]:
    at = 0
    for size in sizes:
        if at < len(rows):
            yield rows.cut(at, min(len(rows), at + size))
            at += size
    if at < len(rows):
        yield rows.cut(at, len(rows))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_clicks_give_their_answer(keeps: bool, delay: float) -> None:
    clicks = Clicks(seed=3, blocks=2, chains=100, delay=delay)
    store = Store(sessionizer(delay, fragment_id=bytes))
    found: list[bytes] = []
    bucket: Bucket | None = None
    for rows in clicks.batches(400):
        values, bucket = fed(store, rows, bucket if keeps else None)
        found += values
    records = sorted(map(decode_session, found), key=session_order)
    known = [each for each in records if each.key != CLOSING_KEY.decode()]
    assert known == sorted(clicks.answer(), key=session_order)


fragment = st.tuples(
    st.sampled_from([b"a", b"b", b"c"]),
    st.sampled_from([b"x", b"y", b"z:END"]),
    st.integers(0, 400).map(lambda seconds: seconds * 10 * SECOND),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(fragment, min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([0.0, 30.0, 2000.0]),
    st.sampled_from(["ignore", "side", "reopen"]),
)
def test_any_input_in_any_cuts_gives_the_same(rows, cuts, delay, late) -> None:
    whole = Fragments.of(rows)
    expected = by_one_assembler([whole], sessionizer(delay, late=late))
    store = Store(sessionizer(delay, late=late))
    found: list[bytes] = []
    kept: Bucket | None = None
    for part, (_, keeps) in zip(
        cut(whole, [size for size, _ in cuts]), [*cuts, (0, False)], strict=False
    ):
        values, bucket = fed(store, part, kept)
        kept = bucket if keeps else None
        found += values
    assert found == expected


def test_what_is_stored_follows_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "SMALL_LOG_BYTES", 2_000)
    store = Store(sessionizer())
    sizes = []
    for number in range(300):
        times = np.arange(20, dtype=np.int64) * SECOND + number * 20 * SECOND
        keys = [b"k%d" % (number * 20 + each) for each in range(20)]
        rows = Fragments(keys, [b"v:END"] * 20, times, times, times)
        fed(store, rows, None)
        sizes.append(sum(map(len, store.chunks)))
    assert store.rewrites > 10
    assert max(sizes[150:]) < 2 * max(sizes[:150])


def test_a_bucket_that_saved_another_time_is_told_apart() -> None:
    store = Store(sessionizer())
    _, bucket = fed(store, Fragments.of([(b"a", b"x", SECOND)]), None)
    assert store.head is not None
    assert token_of(store.head) == bucket.token
    bucket.save()
    assert token_of(store.head) != bucket.token


def test_silence_ends_sessions_by_the_clock_also_after_a_restart() -> None:
    store = Store(sessionizer(idle_after=10.0))
    bucket = store.open()
    bucket.take([b"a"], [b"x"], np.array([SECOND]), now_us=100 * SECOND)
    store.save(bucket)
    again = store.open()
    assert again.tick(105 * SECOND).results == []
    [result] = again.tick((100 + 1800 + 61) * SECOND).results
    assert decode_session(result.value).reason == "timeout"


def test_arrival_time_is_refused() -> None:
    stateful = FunctionalStateful(
        Completion(timeout=1.0, time="arrival"), bytes, lambda state, _: state, lambda state, _: []
    )
    with pytest.raises(InvalidError, match="when a row has arrived"):
        Bucket(stateful, 0)


def test_damaged_state_is_refused() -> None:
    with pytest.raises(ProtocolError, match="damaged"):
        Bucket(sessionizer(), 0, b"\x01\x02")
