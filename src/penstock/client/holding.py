"""Messages that are held until entries of tables exist: what a caller passes, checked, packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.inputs import check_headers, id_bytes, key_bytes
from penstock.client.ops_push import terms_of
from penstock.client.push import now_us
from penstock.client.rows import Headers, Rows
from penstock.client.state import QueueState, TableState
from penstock.errors import InvalidError
from penstock.wire.holds import Mark, Policy
from penstock.wire.limits import MAX_TABLE_KEY_BYTES
from penstock.wire.messages import TxnHold, TxnPush, TxnWrite

if TYPE_CHECKING:
    from penstock.client.transaction import TransactionState

_POLICIES = {policy.name.lower(): policy for policy in Policy}
_MARKS = {mark.name.lower(): mark for mark in Mark}

Edge = tuple[TableState, bytes | str]


class Hold(NamedTuple):
    """A message that is held until all entries of `after` have existed.

    `on_failure` says what an entry with a mark other than `ok` does: with `fail` or `skip` the
    message is finished, and what was put, pushed and published in `fallback` (a transaction that is
    not committed) is carried out instead; with `run` the entry counts as any other. The same
    happens, whatever the policy, when its time-to-live ends before it is ready.
    """

    value: bytes
    id: bytes | str
    after: Sequence[Edge] = ()
    on_failure: str = "fail"
    fallback: TransactionState | None = None
    key: bytes | str | None = None
    headers: Headers | None = None
    ttl: float | None = None
    priority: int = 0


def part_of(queue: QueueState, hold: Hold) -> TxnHold:
    """The message as a part of a transaction; InvalidError says what is wrong with it."""
    policy = _POLICIES.get(hold.on_failure)
    if policy is None:
        raise InvalidError(f"on_failure is fail, skip or run, not {hold.on_failure!r}")
    check_headers(hold.headers)
    key, headers = hold.key, hold.headers
    rows = Rows(
        (hold.value,),
        None if key is None else (key_bytes(key),),
        None if headers is None else (headers,),
    )
    terms = terms_of(ttl=hold.ttl, priority=hold.priority)
    batch = bytes(rows.encode(now_us(), priority=terms.priority, ttl_ms=terms.ttl_ms))
    writes, pushes = _fallback_of(hold.fallback)
    after = _pairs(hold.after)
    return TxnHold(queue.info.id, id_bytes(hold.id), batch, after, policy, writes, pushes)


def _pairs(after: Iterable[Edge]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for edge in after:
        if not isinstance(edge, tuple) or len(edge) != 2 or not isinstance(edge[0], TableState):
            raise InvalidError(f"a message waits for pairs of a table and a key, not for {edge!r}")
        found.append((edge[0].info.id, key_bytes(edge[1], MAX_TABLE_KEY_BYTES)))
    return found


def _fallback_of(fallback: TransactionState | None) -> tuple[list[TxnWrite], list[TxnPush]]:
    """Takes what a transaction has collected; it cannot be committed any more."""
    if fallback is None:
        return [], []
    fallback._check_open()
    collected = fallback._transact
    if collected.acks or collected.commits or collected.holds:
        raise InvalidError("a message falls back to entries, pushes and publications only")
    fallback._done = True
    return collected.writes, collected.pushes


def mark_of(mark: str) -> int:
    """The number of a mark."""
    found = _MARKS.get(mark)
    if found is None:
        raise InvalidError(f"a mark is ok, failed or skipped, not {mark!r}")
    return found
