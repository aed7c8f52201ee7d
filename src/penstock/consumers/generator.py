"""Click fragments of many sessions from a seed, and the sessions that they must give.

The answer is known from how the fragments are made; nothing is assembled to get it. Sessions are
made in blocks: each has its own stretch of event time and its own keys, which a later block
uses again once no session of the earlier one can reach that far. A few blocks are in memory at a
time, whatever the number of fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.consumers.fragments import Fragments
from penstock.consumers.sessions import SessionRecord, text
from penstock.wire.columns import Longs

CLOSING_KEY = b"~closing"
_SESSIONS_OF_A_KEY = 3  # at most, in one block
_KEY_GROUPS = 4  # blocks take turns with the keys
_SHORT_GAPS = 8  # most gaps are up to this part of the timeout
_FULL_GAP_SHARE = 0.02  # of the gaps are exactly the timeout: the longest that joins

Rows = tuple[list[bytes], list[bytes], Longs]


class _Session(NamedTuple):
    key: bytes
    name: str
    times_us: list[int]
    ended: bool

    def values(self) -> list[bytes]:
        last = len(self.times_us) - 1
        return [
            f"{self.name}:{n}:{'END' if self.ended and n == last else 'click'}".encode()
            for n in range(last + 1)
        ]


class _Late(NamedTuple):
    """A fragment that comes as soon as a fragment of `after_us` has come."""

    after_us: int
    key: bytes
    value: bytes
    time_us: int


@dataclass(frozen=True, slots=True)
class Clicks:
    """What to make. Shares are of 1. `chains`: keys of a block, each with up to three sessions.

    Fragments come less than `delay` seconds behind the latest one, in time order if that is 0.
    `without_end` of the sessions end by silence. `duplicates` of the fragments come twice. `late`
    of the sessions that have an end get one more fragment after they are over, which is not in
    the answer. The last fragment of all is far later, of a key of its own: all sessions are over.
    """

    seed: int
    blocks: int = 4
    chains: int = 500
    mean_fragments: int = 8
    timeout: float = 1800.0
    delay: float = 60.0
    without_end: float = 0.2
    duplicates: float = 0.02
    late: float = 0.0
    base_us: int = 1_700_000_000_000_000

    @property
    def timeout_us(self) -> int:
        """The longest silence within a session."""
        return round(self.timeout * 1_000_000)

    @property
    def delay_us(self) -> int:
        """How far behind fragments come."""
        return round(self.delay * 1_000_000)

    @property
    def _block_us(self) -> int:
        """So long that the keys of a block are free again when their next turn comes."""
        longest = _SESSIONS_OF_A_KEY * (4 * self.mean_fragments + 2) * self.timeout_us
        return (longest + self.timeout_us) // (_KEY_GROUPS - 1) + 1

    # --- what comes out --------------------------------------------------------------------

    def fragments(self) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, time) in the order of arrival."""
        for keys, values, times_us in self.columns():
            yield from zip(keys, values, times_us.tolist(), strict=True)

    def batches(self, size: int) -> Iterator[Fragments]:
        """The same in columns of at most `size` fragments, with offsets from 0 on."""
        offset = 0
        for keys, values, times_us in self.columns():
            for start, stop in pairwise([*range(0, len(keys), size), len(keys)]):
                times = times_us[start:stop]
                offsets = np.arange(offset, offset + stop - start, dtype=np.int64)
                yield Fragments(keys[start:stop], values[start:stop], times, offsets, times)
                offset += stop - start

    def answer(self) -> Iterator[SessionRecord]:
        """The sessions, without the closing fragment's; sort by `session_order` to compare."""
        for block in range(self.blocks):
            for session in self._sessions(block):
                named = zip(session.times_us, map(text, session.values()), strict=True)
                yield SessionRecord(
                    text(session.key),
                    session.times_us[0],
                    session.times_us[-1],
                    len(session.times_us),
                    "end" if session.ended else "timeout",
                    list(named),
                )

    def columns(self) -> Iterator[Rows]:
        """The same in columns of thousands, in the order of arrival."""
        left: tuple[list[bytes], list[bytes], Longs, Longs] = ([], [], _longs(), _longs())
        late: list[_Late] = []
        high_us = 0
        for block in range(self.blocks + 1):
            border_us = self.base_us + (block + 1) * self._block_us
            if block == self.blocks:
                border_us += 1 << 60
            else:
                late += self._late_of(block)
                left = self._with_block(block, left)
            come, left = _parted(left, border_us)
            late.sort()
            rows, late, high_us = _with_late(come, late, high_us)
            yield rows
        closing_us = high_us + self.timeout_us + 2 * self.delay_us + 2
        yield [CLOSING_KEY], [b"closing"], np.array([closing_us], np.int64)

    # --- one block -------------------------------------------------------------------------

    def _sessions(self, block: int) -> Iterator[_Session]:
        chance = np.random.default_rng([self.seed, block])
        most = 4 * self.mean_fragments
        start_us = self.base_us + block * self._block_us
        starts = chance.integers(start_us, start_us + self._block_us, self.chains)
        per_chain = chance.integers(1, _SESSIONS_OF_A_KEY + 1, self.chains).tolist()
        group = block % _KEY_GROUPS
        for chain, (at_us, sessions) in enumerate(zip(starts.tolist(), per_chain, strict=True)):
            key = b"user-%d-%d" % (group, chain)
            for number in range(sessions):
                count = min(most, int(chance.geometric(1 / self.mean_fragments)))
                gaps = chance.integers(1, self.timeout_us // _SHORT_GAPS + 1, count)
                gaps[chance.random(count) < _FULL_GAP_SHARE] = self.timeout_us
                gaps[0] = 0
                times_us = (at_us + np.cumsum(gaps)).tolist()
                ended = bool(chance.random() >= self.without_end)
                yield _Session(key, f"{block}.{chain}.{number}", times_us, ended)
                silence_us = 0 if ended else self.timeout_us
                at_us = times_us[-1] + silence_us + int(chance.integers(1, self.timeout_us))

    def _with_block(
        self, block: int, left: tuple[list[bytes], list[bytes], Longs, Longs]
    ) -> tuple[list[bytes], list[bytes], Longs, Longs]:
        """Adds the fragments of a block to those that have not come yet; with arrival times."""
        keys, values, times, arrivals = left
        chance = np.random.default_rng([self.seed, block, 1])
        fresh: list[int] = []
        for session in self._sessions(block):
            keys += [session.key] * len(session.times_us)
            values += session.values()
            fresh += session.times_us
        new = np.array(fresh, np.int64)
        repeated = chance.random(len(new)) < self.duplicates
        if not self.delay_us:  # in order, a repeated end would be a session of its own
            ends = [value.endswith(b":END") for value in values[len(times) :]]
            repeated &= ~np.array(ends, np.bool_)
        again = np.flatnonzero(repeated)
        at = (again + len(times)).tolist()
        keys += [keys[row] for row in at]
        values += [values[row] for row in at]
        new = np.concatenate((new, new[again]))
        waits = chance.integers(0, max(1, self.delay_us), len(new))
        return keys, values, np.concatenate((times, new)), np.concatenate((arrivals, new + waits))

    def _late_of(self, block: int) -> Iterator[_Late]:
        chance = np.random.default_rng([self.seed, block, 2])
        for session in self._sessions(block):
            if session.ended and chance.random() < self.late:
                time_us = int(chance.integers(session.times_us[0], session.times_us[-1] + 1))
                over_us = session.times_us[-1] + max(1, self.delay_us)
                yield _Late(over_us, session.key, f"{session.name}:late".encode(), time_us)


def is_end(value: bytes) -> bool:
    """Whether a fragment's value says that its session ends."""
    return value.endswith(b":END")


def _longs() -> Longs:
    return np.empty(0, np.int64)


def _parted(
    rows: tuple[list[bytes], list[bytes], Longs, Longs], border_us: int
) -> tuple[Rows, tuple[list[bytes], list[bytes], Longs, Longs]]:
    """What comes before a time, in the order of arrival, and the rest."""
    keys, values, times, arrivals = rows
    order = np.lexsort((times, arrivals))
    count = int(np.count_nonzero(arrivals < border_us))
    now, later = order[:count].tolist(), order[count:].tolist()
    come = [keys[row] for row in now], [values[row] for row in now], times[order[:count]]
    rest = [keys[row] for row in later], [values[row] for row in later]
    return come, (*rest, times[order[count:]], arrivals[order[count:]])


def _with_late(come: Rows, late: list[_Late], high_us: int) -> tuple[Rows, list[_Late], int]:
    """Puts late fragments in where they are surely late; those whose time has not come stay."""
    keys, values, times = come
    if not len(times):
        return come, late, high_us
    highest = np.maximum(np.maximum.accumulate(times), high_us)
    now = [each for each in late if each.after_us <= highest[-1]]
    # Behind the fragment that moved the highest time so far that the session is over.
    places = np.searchsorted(highest, [each.after_us for each in now]) + 1
    for each, place in reversed(list(zip(now, places.tolist(), strict=True))):
        keys.insert(place, each.key)
        values.insert(place, each.value)
    times = np.insert(times, places, [each.time_us for each in now]) if now else times
    return (keys, values, times), late[len(now) :], int(highest[-1])
