"""Promises of watches: every change, in order, or word that some were lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History, Resync, TableOp, Watch


def check_watches(history: History, table: Stream) -> list[str]:
    """Everything that is wrong with the watches of a table."""
    writes = [op for op in history.table if op.table == table.name and op.kind != "get"]
    found: list[str] = []
    for watch in history.watches:
        if watch.table == table.name:
            found += _check_order(watch)
            found += _check_complete(watch, writes)
            for resync in watch.resyncs:
                found += _check_resync(watch, resync, writes)
    return found


def _check_order(watch: Watch) -> Iterator[str]:
    """Of one key, versions only grow."""
    last: dict[bytes, int] = {}
    for each in watch.heard:
        if each.version:
            if each.version <= last.get(each.key, 0):
                yield (
                    f"watch out of order: {watch.watcher} heard of version {each.version} of "
                    f"{each.key!r} after {last[each.key]}"
                )
            last[each.key] = each.version


def _check_complete(watch: Watch, writes: list[TableOp]) -> Iterator[str]:
    """A watcher that hears of its own write has heard of all that were acknowledged before."""
    places = {(each.key, each.version): at for at, each in enumerate(watch.heard) if each.version}
    lost = [at for at, each in enumerate(watch.heard) if each.lost]
    # Whatever was lost is found when the watcher reads anew, also what was written meanwhile.
    read = list(zip(lost, watch.resyncs, strict=False))
    missed: dict[tuple[bytes, int], TableOp] = {}
    for probe in watch.probes:
        for op in writes:
            if not _is_change(op) or op.sent_us < watch.started_us or op.done_us >= probe.sent_us:
                continue
            at = places.get((op.key, op.outcome), len(watch.heard))
            told = any(
                place <= probe.heard and resync.done_us >= op.sent_us for place, resync in read
            )
            if at > probe.heard and not told:
                missed[op.key, op.outcome] = op
    for (key, version), op in missed.items():
        yield (
            f"watch missed a change: {watch.watcher} did not hear of version {version} of {key!r}, "
            f"written at {op.done_us}"
        )


def _is_change(op: TableOp) -> bool:
    """Whether a write is known to have changed its entry, and to which version."""
    return op.done_us > 0 and isinstance(op.outcome, int) and op.kind != "delete"


def _check_resync(watch: Watch, resync: Resync, writes: list[TableOp]) -> Iterator[str]:
    """Reading anew finds all that was acknowledged before."""
    newest: dict[bytes, TableOp] = {}
    deletes: dict[bytes, list[TableOp]] = defaultdict(list)
    for op in writes:
        if op.kind == "delete" and op.sent_us < resync.done_us:
            deletes[op.key].append(op)
        elif _is_change(op) and op.done_us < resync.sent_us:
            known = newest.get(op.key)
            newest[op.key] = op if known is None or known.outcome < op.outcome else known
    for key, op in newest.items():
        deleted = any(not each.done_us or each.done_us > op.sent_us for each in deletes[key])
        found = resync.versions.get(key, 0)
        if found < op.outcome and not (found == 0 and deleted):
            yield (
                f"watch missed a change: {watch.watcher} read {key!r} anew at version {found}, and "
                f"{op.outcome} was written at {op.done_us}"
            )
