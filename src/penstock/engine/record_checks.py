"""Records of another node are looked at before they are logged: a broken owner must not break its
followers."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from penstock.cluster.replication.messages import Record, Records
from penstock.core.changes import read_changes, read_grants
from penstock.core.holds import check_waits
from penstock.core.records import (
    Kind,
    read_forward,
    read_note,
    read_outgoing,
    read_push,
    read_transaction,
)
from penstock.errors import PenstockError, ProtocolError
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer

_READERS: dict[int, Callable[[bytes], object]] = {
    Kind.GRANT: read_grants,
    Kind.CHANGE: read_changes,
    Kind.NOTE: read_note,
    Kind.TRANSACTION: read_transaction,
    Kind.OUTGOING: read_outgoing,
}
_UNREADABLE = (struct.error, msgspec.MsgspecError, UnicodeDecodeError, ValueError)


def check_records(message: Records) -> None:
    """ProtocolError unless these can be records of a log: numbers without a gap, epochs that do not
    fall and are not above the owner's, known kinds that can be read, whole batches."""
    before: Record | None = None
    for record in message.records:
        if record.number < 1 or record.epoch > message.epoch:
            raise _wrong(message, record, "its number or epoch cannot be")
        if before is not None and (
            record.number != before.number + 1 or record.epoch < before.epoch
        ):
            raise _wrong(message, record, f"it follows {before.number} of epoch {before.epoch}")
        try:
            _check(record.kind, record)
        except (*_UNREADABLE, PenstockError) as error:
            raise _wrong(message, record, str(error)) from error
        before = record


def _check(kind: int, record: Record) -> None:
    meta = record.meta
    if kind & Kind.FORWARDED:
        kind, meta = kind ^ Kind.FORWARDED, read_forward(meta)[1]
    if kind == Kind.PUSH:
        push = read_push(meta)
        if record.payload is None:
            raise ProtocolError("a push without a batch")
        if push.waits:
            check_waits(push.waits)
        _check_batch(record.payload, push.base)
        return
    reader = _READERS.get(kind)
    if reader is None or record.payload is not None:
        raise ProtocolError(f"kind {kind} is not known, or has a batch")
    reader(meta)


def check_copied(meta: bytes, payload: bytes) -> None:
    """ProtocolError unless these can be a batch of a shard that is copied, and what its record
    says of it."""
    try:
        _check_batch(payload, read_push(meta).base)
    except (*_UNREADABLE, PenstockError) as error:
        raise ProtocolError(f"a batch that cannot be copied: {error}") from error


def _check_batch(payload: Buffer, base: int) -> None:
    header = Batch.parse(payload).header
    if header.base != base:
        raise ProtocolError(f"a batch for {header.base} at {base}")


def _wrong(message: Records, record: Record, why: str) -> ProtocolError:
    return ProtocolError(f"record {record.number} of shard {message.shard}: {why}")
