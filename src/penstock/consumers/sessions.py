"""Sessions: fragments of a key between an end marker, a silence, and the next one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import msgspec
import numpy as np

from penstock.consumers.fragments import Fragment
from penstock.consumers.stateful import (
    About,
    BulkStateful,
    Completion,
    Flags,
    LatePolicy,
    Run,
    no_marks,
)

_TEXT = ("utf-8", "backslashreplace")

Piece = tuple[int, bytes]  # time and value of a fragment


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished session. Bytes are shown as text; what is not UTF-8 in them as `\\xNN`.

    `fragments` are (time, value), by time and then value, so that every engine that has the same
    fragments writes the same record; `folded` stands in their place where a fold was given.
    """

    key: str
    start_us: int
    end_us: int
    count: int
    reason: str
    fragments: list[tuple[int, str]] = []
    folded: Any = None


class SessionState(msgspec.Struct, gc=False):
    """An open session: its fragments, or what they were folded to, and the ids seen so far."""

    pieces: list[Piece]
    folded: Any
    seen: set[Any]


Encoder = Callable[[SessionRecord], bytes]
Fold = Callable[[Any, Fragment], Any]


class Sessionizer(BulkStateful[SessionState]):
    """Assembles sessions.

    `end(value)` tells the last fragment of a session; sessions without one end after `timeout`
    seconds of silence. Fragments may be up to `delay` seconds behind the latest. `fragment_id`:
    fragments of a session with the same id (text, bytes or a number) count once. With `fold`
    (and `initial`, the value to start from) only what it returns is kept of the fragments; its
    values must be encodable by msgspec.
    """

    state_type = SessionState

    def __init__(
        self,
        *,
        end: Callable[[bytes], bool] | None = None,
        timeout: float | None = None,
        delay: float = 0.0,
        idle_after: float | None = None,
        late: LatePolicy = "ignore",
        fragment_id: Callable[[bytes], Hashable] | None = None,
        fold: Fold | None = None,
        initial: Any = None,
        encoder: Encoder = msgspec.json.encode,
    ) -> None:
        self.completion = Completion(
            marker=None if end is None else lambda fragment: end(fragment.value),
            timeout=timeout,
            delay=delay,
            idle_after=idle_after,
            late=late,
        )
        self._end = end
        self.fragment_id = fragment_id
        self._fold = fold
        self._initial = initial
        self._encoder = encoder

    @property
    def is_plain(self) -> bool:
        """Whether its records are those of the fragments themselves, in JSON."""
        return self._fold is None and self._encoder is msgspec.json.encode

    def open(self, key: bytes) -> SessionState:
        return SessionState([], self._initial, set())

    def on_message(self, state: SessionState, fragment: Fragment) -> None:
        _, value, time_us, _ = fragment
        if self.fragment_id is not None:
            name = self.fragment_id(value)
            if name in state.seen:
                return
            state.seen.add(name)
        if self._fold is None:
            state.pieces.append((time_us, value))
        else:
            state.folded = self._fold(state.folded, fragment)

    def on_run(self, state: SessionState, run: Run) -> None:
        if self._fold is not None:
            rows = zip(run.values, run.times_us.tolist(), run.offsets.tolist(), strict=True)
            for value, time_us, offset in rows:
                self.on_message(state, Fragment(run.key, value, time_us, offset))
            return
        pieces: Iterable[Piece] = zip(run.times_us.tolist(), run.values, strict=True)
        if self.fragment_id is not None:
            fresh = self._fresh(state.seen, run.values)
            pieces = [piece for piece, is_fresh in zip(pieces, fresh, strict=True) if is_fresh]
        state.pieces.extend(pieces)

    def _fresh(self, seen: set[Any], values: list[bytes]) -> list[bool]:
        assert self.fragment_id is not None
        names = list(map(self.fragment_id, values))
        fresh = []
        for name in names:
            fresh.append(name not in seen)
            seen.add(name)
        return fresh

    def ends(self, values: list[bytes]) -> Flags:
        if self._end is None:
            return no_marks(values)
        return np.fromiter(map(self._end, values), np.bool_, len(values))

    def finish(self, state: SessionState, about: About) -> list[bytes]:
        record = SessionRecord(
            text(about.key),
            about.first_us,
            about.last_us,
            about.count if self.fragment_id is None else len(state.seen),
            about.reason,
            [(time_us, value.decode(*_TEXT)) for time_us, value in sorted(state.pieces)],
            state.folded,
        )
        return [self._encoder(record)]


def text(raw: bytes) -> str:
    """Bytes as text, whatever they are."""
    return raw.decode(*_TEXT)


def decode_session(packed: bytes) -> SessionRecord:
    """What the default encoder made."""
    return msgspec.json.decode(packed, type=SessionRecord)


def session_order(record: SessionRecord) -> tuple[str, int]:
    """Sorts the records of several partitions, or of several engines, alike."""
    return record.key, record.start_us
