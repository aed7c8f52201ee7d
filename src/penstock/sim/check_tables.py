"""Tables: is there an order of all calls on an entry that explains every answer?

For each key a depth-first search over the possible orders (after Wing and Gong, with the memory of
Lowe): a call may take effect between the moment it was sent and the moment its answer came; one
without an answer may take effect later, or never.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from penstock.sim.actors import Stream
from penstock.sim.history import History, TableOp

FOREVER_US = 1 << 62
MAX_STATES = 200_000


class State(NamedTuple):
    """An entry: its value (None: absent) and version; a version of None is not known yet."""

    value: bytes | None
    version: int | None
    highest: int  # version that was ever seen


_ABSENT = State(None, 0, 0)


def check_table(history: History, table: Stream) -> list[str]:
    """Keys whose history no order explains, with what is there at the end."""
    keys: dict[bytes, list[TableOp]] = defaultdict(list)
    for op in history.table:
        if op.table == table.name:
            keys[op.key].append(op)
    if (final := history.final_tables.get(table.name)) is not None:
        for key in keys | dict.fromkeys(final.entries):
            read = TableOp(key, "get", "last", final.sent_us, done_us=final.done_us)
            read.outcome = final.entries.get(key)
            keys[key].append(read)
    found: list[str] = []
    for key, ops in sorted(keys.items()):
        if not _Search(ops).explains():
            found.append(f"not linearizable: no order of {len(ops)} calls on {key!r} explains them")
    return found


class _Search:
    def __init__(self, ops: list[TableOp]) -> None:
        self._ops = [op for op in ops if op.done_us or op.kind != "get"]
        self._ends = [op.done_us or FOREVER_US for op in self._ops]
        self._seen: set[tuple[int, int, State]] = set()

    def explains(self) -> bool:
        """Whether all answered calls can be put in order. Gives up, and believes, at a bound."""
        stack: list[tuple[int, int, State]] = [(0, 0, _ABSENT)]
        while stack:
            first, later, state = stack.pop()
            if (first, later, state) in self._seen:
                continue
            if len(self._seen) > MAX_STATES:
                return True
            self._seen.add((first, later, state))
            while later & 1:
                first, later = first + 1, later >> 1
            if self._finished(first, later):
                return True
            stack += self._next(first, later, state)
        return False

    def _finished(self, first: int, later: int) -> bool:
        return all(
            later >> (at - first) & 1 or self._ends[at] == FOREVER_US
            for at in range(first, len(self._ops))
        )

    def _next(self, first: int, later: int, state: State) -> list[tuple[int, int, State]]:
        """All calls that may come next: sent before any other that is not placed has ended."""
        found: list[tuple[int, int, State]] = []
        bound = FOREVER_US
        for at in range(first, len(self._ops)):
            if later >> (at - first) & 1:
                continue
            if self._ops[at].sent_us > bound:
                break
            bound = min(bound, self._ends[at])
            after = apply(self._ops[at], state)
            if after is not None:
                found.append((first, later | 1 << (at - first), after))
        return found


def apply(op: TableOp, state: State) -> State | None:
    """The entry after a call, or None if the call cannot have had its answer here."""
    known = op.done_us > 0
    if op.kind == "get":
        return _get(op, state)
    if op.outcome == "conflict":
        return state if op.kind == "cas" and _differs(op, state) else None
    if op.kind == "cas" and not _may_match(op, state):
        return None if known else state
    if op.kind == "delete":
        if known and op.outcome != (state.value is not None):
            return None
        return State(None, 0, state.highest)
    value = op.value if op.kind != "append" or state.value is None else state.value + op.value
    if not known:
        return State(value, None, state.highest)
    version = op.outcome
    assert isinstance(version, int)
    return State(value, version, version) if version > state.highest else None


def _get(op: TableOp, state: State) -> State | None:
    if op.outcome is None:
        return state if state.value is None else None
    value, version = op.outcome
    if value != state.value:
        return None
    if state.version is None:
        return State(value, version, version) if version > state.highest else None
    return state if state.version == version else None


def _may_match(op: TableOp, state: State) -> bool:
    if op.if_version == 0:
        return state.value is None
    return state.value is not None and state.version in (None, op.if_version)


def _differs(op: TableOp, state: State) -> bool:
    if op.if_version == 0:
        return state.value is not None
    return state.value is None or state.version is None or state.version != op.if_version
