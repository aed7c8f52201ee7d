"""Pushing and publishing Arrow's columns, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from penstock.client.messages import Receipts
from penstock.client.ops_push import terms_of
from penstock.client.ops_stage import StagedPartition
from penstock.client.push import WINDOW_BATCHES, Pipeline, PushRequest, Terms, now_us
from penstock.client.stages import StageState
from penstock.client.state import PushTarget, TopicState
from penstock.client.steps import Steps
from penstock.errors import InvalidError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.arrow_rows import ArrowRows

    Tables: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]


def push_arrow(
    target: PushTarget,
    rows: Tables,
    *,
    delay: float = 0.0,
    at: datetime | float | None = None,
    ttl: float | None = None,
    priority: int = 0,
    durability: str | None = None,
    compression: str = "none",
    progress: Callable[[int], None] | None = None,
) -> Steps[Receipts]:
    """Stores the rows of a table or of record batches, as `push_many`.

    Columns are `value` and, if there are such, `key` (both binary or string), `timestamp` and
    `headers` (a map of string to binary). A null value is refused. Batches are made of Arrow's
    buffers, row by row only for headers. Needs pyarrow (`pip install penstock[arrow]`).
    """
    terms = terms_of(delay, at, ttl, priority, durability, compression)
    pieces = (piece for each in _read(rows) for piece in each.pieces())
    return _send(target, pieces, terms, progress)


def publish_arrow(
    target: TopicState | StageState,
    rows: Tables,
    *,
    partition: int | None = None,
    durability: str | None = None,
    compression: str = "none",
    progress: Callable[[int], None] | None = None,
) -> Steps[Receipts]:
    """Appends the rows of a table or of record batches, as `publish_many`; see `Queue.push_arrow`.

    Rows go to the partitions of their keys; those without one in turn, many at a time.
    """
    terms = terms_of(durability=durability, compression=compression)
    chosen: PushTarget = target
    if partition is not None and isinstance(target, StageState):
        chosen = StagedPartition(target, partition)
    elif partition is not None:
        assert isinstance(target, TopicState)
        chosen = target._only(target._check_partition(partition))
    # What is divided by its keys is divided as a whole, so that the parts are not too small.
    whole = partition is None
    parts = (
        part for each in _read(rows) for part in ([each] if whole and each.keyed else each.pieces())
    )
    return _send(chosen, parts, terms, progress)


def _read(rows: Tables) -> Iterator[ArrowRows]:
    try:
        import pyarrow as pa

        from penstock.client.arrow_rows import arrow_rows
    except ImportError as error:
        raise InvalidError(
            f"pyarrow is not installed ({error})", advice="`pip install penstock[arrow]`"
        ) from None
    first = 0
    for each in [rows] if isinstance(rows, pa.RecordBatch | pa.Table) else rows:
        if not isinstance(each, pa.RecordBatch | pa.Table):
            raise InvalidError(f"rows are a table or record batches, not {type(each).__name__}")
        yield from arrow_rows(each, now_us(), first)
        first += each.num_rows


def _send(
    target: PushTarget,
    parts: Iterator[ArrowRows],
    terms: Terms,
    progress: Callable[[int], None] | None,
) -> Steps[Receipts]:
    pipeline, extra = Pipeline(progress, WINDOW_BATCHES), target._extra(None, False)
    for part in parts:
        for place, rows in target._spread(part):
            for piece in rows.pieces():
                yield from pipeline.add(PushRequest(place, piece, terms, now_us(), extra))
    return (yield from pipeline.drain())
