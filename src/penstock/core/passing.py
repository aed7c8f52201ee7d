"""Batches that were placed before their topic grew, and arrive after it: rows go on to children.

Only parts of transactions do. A push is refused, and its producer places it anew; a transaction has
been answered by then, and what it said must happen.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.wire import codec
from penstock.wire import messages as m
from penstock.wire.batch import Batch, Columns
from penstock.wire.encode import encode_rows
from penstock.wire.growth import Layout
from penstock.wire.limits import MAX_FRAME_BYTES

_MAX_BYTES = MAX_FRAME_BYTES - (256 << 10)  # other nodes get the record in one frame
_CODECS = {number: name for name, number in codec.NAMES.items()}


def passed_on(
    info: m.StreamInfo, layout: Layout, push: m.TxnPush, batch: Batch
) -> list[m.TxnPush] | None:
    """What becomes of a push to a partition: one for itself, if it keeps any rows, and one for each
    child that has got some of the keys. None if all of it belongs where it is, or cannot be told
    apart.

    A child is the next in line, not the last: it was opened by the same outbox, before this.
    """
    header = batch.header
    if header.generation >= layout.generation or not header.columns & Columns.KEYS:
        return None
    number, rows = push.partition, dict[int, list[int]]()
    try:
        for row, key in enumerate(batch.keys):
            to = number if key is None else layout.next_of(number, key)
            rows.setdefault(to, []).append(row)
        if set(rows) == {number}:
            return None
        made = [_part(info, layout, batch, number, to, chosen) for to, chosen in rows.items()]
        return made if sum(len(each.batch) for each in made) <= _MAX_BYTES else None
    except PenstockError:  # it cannot be opened, or its parts are too large: better here than lost
        return None


def _part(
    info: m.StreamInfo, layout: Layout, batch: Batch, number: int, to: int, rows: list[int]
) -> m.TxnPush:
    generation = layout.generation if to == number else layout.born[to]
    made = encode_rows(batch, rows, generation, _CODECS[batch.header.codec])
    return m.TxnPush(info.id, to, info.placement[to], bytes(made))
