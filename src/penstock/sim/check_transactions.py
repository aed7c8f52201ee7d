"""All or nothing."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import Delivery, History, Transaction


def check_transactions(history: History, ledger: Stream) -> list[str]:
    """Of every transaction all parts happened, or none."""
    if not history.drained:
        return []
    entries = history.final_tables[ledger.name].entries
    delivered = {each.value for each in history.deliveries}
    by_value: dict[bytes, list[Delivery]] = {}
    for each in history.deliveries:
        by_value.setdefault(each.value, []).append(each)
    return [
        problem
        for each in history.transactions
        for problem in _check_one(each, entries, delivered, by_value[each.acked.value])
    ]


def _check_one(
    each: Transaction,
    entries: dict[bytes, tuple[bytes, int]],
    delivered: set[bytes],
    deliveries: list[Delivery],
) -> Iterator[str]:
    count = sum(value in delivered for value in each.pushed)
    pushed = count > 0
    written = entries.get(each.written)
    if count not in (0, len(each.pushed)) or pushed != (written is not None):
        done = f"{count} of {len(each.pushed)} pushes, {'the' if written else 'no'} write"
        yield f"half a transaction: of {each.name} ({_outcome(each)}) there is {done}"
    if each.committed is True and not pushed:
        yield f"lost transaction: {each.name} was committed, and nothing of it is there"
    if each.committed is False and pushed:
        yield f"ghost transaction: {each.name} was refused, and its parts are there"
    if written is not None and written[0] != each.acked.value:
        yield f"transaction {each.name} wrote {written[0]!r} instead of {each.acked.value!r}"
    if pushed:
        others = [
            d for d in deliveries
            if d.grant != each.acked.grant
            and any(s.op == "ack" and s.accepted for s in d.settlements)
        ]  # fmt: skip
        if others:
            yield (
                f"acked twice: {each.acked.value!r} by transaction {each.name} under grant "
                f"{each.acked.grant} and under {others[0].grant}"
            )


def _outcome(each: Transaction) -> str:
    return {True: "committed", False: "refused", None: "outcome unknown"}[each.committed]
