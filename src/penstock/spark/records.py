"""Finished sessions as the records of the consumers, byte for byte, made column by column.

A record is the text of its fragments one behind the other, the first with the head of the record
before it and the last with its end behind it. All of these texts lie in one buffer, so that the
records are in it already: only where each begins has to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.consumers.sessions import text
from penstock.consumers.stateful import Flags
from penstock.spark.grouping import Sessions
from penstock.spark.open_rows import Part
from penstock.wire.columns import Longs, Rows

IdOf = Callable[[bytes], Hashable]

OUTPUT = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("reason", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("first_us", pa.int64()),
        pa.field("last_us", pa.int64()),
    ]
)
LATE = "late"  # the reason of a row that is not a result, but a fragment that came too late

_REASONS = pa.array(["timeout", "end"])
_SPECIAL = np.zeros(256, np.bool_)  # bytes that are not written as they are, or need a look
_SPECIAL[:32] = _SPECIAL[128:] = True
_SPECIAL[[ord('"'), ord("\\")]] = True
_encoder = msgspec.json.Encoder()


def finished(
    sessions: Sessions, keys: list[bytes], id_of: IdOf | None, eager: bool
) -> pa.RecordBatch:
    """The results of sessions, whose keys these are."""
    rows, starts, stops = sessions.rows, sessions.starts, sessions.stops
    first_us, last_us = rows.times_us[starts], rows.times_us[stops - 1]
    reasons = _REASONS.take(pa.array(sessions.ended.astype(np.int8)))
    names = pa.array(keys, pa.binary())
    kept = sessions if id_of is None else _distinct(sessions, id_of, eager)
    counts = kept.stops - kept.starts
    heads = _joined(
        '{"key":"', escaped(names), '","start_us":', _digits(first_us), ',"end_us":',
        _digits(last_us), ',"count":', _digits(counts), ',"reason":"', reasons,
        '","fragments":[[',
    )  # fmt: skip
    values = _records(_by_value(kept), heads)
    columns = [names, values, reasons, pa.array(stops - starts), pa.array(first_us),
               pa.array(last_us)]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT)


def late(rows: Part, keys: list[bytes]) -> pa.RecordBatch:
    """Fragments that came too late."""
    times_us, count = pa.array(rows.times_us), len(rows)
    columns = [pa.array(keys, pa.binary()), rows.values, pa.repeat(LATE, count),
               pa.array(np.ones(count, np.int64)), times_us, times_us]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT)


def _records(sessions: Sessions, heads: pa.StringArray) -> pa.BinaryArray:
    rows, starts = sessions.rows, sessions.starts
    if not len(starts):
        return pa.array([], pa.binary())
    count, size = len(starts), len(rows)
    before, behind = np.full(size, count), np.zeros(size, np.int8)
    before[starts] = np.arange(count)
    behind[sessions.stops - 1] = 1
    texts = _joined(
        pa.concat_arrays([heads, pa.array([",["])]).take(pa.array(before)),
        _digits(rows.times_us), ',"', escaped(rows.values),
        pa.array(['"]', '"]]}']).take(pa.array(behind)),
    )  # fmt: skip
    edges = np.frombuffer(texts.buffers()[1], np.int32, size + 1)
    cuts = np.append(edges[starts], edges[size])
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(cuts), texts.buffers()[2]]
    )


def _joined(*parts: pa.Array | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _digits(numbers: Longs) -> pa.StringArray:
    return pa.array(numbers).cast(pa.string())


# --- texts ---------------------------------------------------------------------------------


def escaped(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as what JSON has between quotes for them; what is not UTF-8 as a consumer shows it."""
    special = _special(raw)
    if not special.any():
        return raw.view(pa.string())
    strings = list(map(text, raw.filter(pa.array(special)).to_pylist()))
    lines = _encoder.encode_lines(strings)
    stops = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    cuts = pa.py_buffer(np.append(0, stops).astype(np.int32))
    quoted = pa.Array.from_buffers(pa.binary(), len(stops), [None, cuts, pa.py_buffer(lines)])
    shown = pc.binary_slice(quoted, 1, -2).view(pa.string())  # without quotes and line end
    plain = raw.filter(pa.array(~special)).view(pa.string())
    places = np.where(special, np.cumsum(special) - 1 + len(plain), np.cumsum(~special) - 1)
    return pa.concat_arrays([plain, shown]).take(pa.array(places))


def _special(raw: pa.BinaryArray) -> Flags:
    """Which of these have a byte that JSON does not show as it is."""
    _, edges, data = raw.buffers()
    cuts = np.frombuffer(edges, np.int32)[raw.offset : raw.offset + len(raw) + 1]
    if data is None or not len(raw):
        return np.zeros(len(raw), np.bool_)
    body = np.frombuffer(data, np.uint8)[cuts[0] : cuts[-1]]
    places = np.flatnonzero(_SPECIAL[body])
    found = np.zeros(len(raw), np.bool_)
    if len(places):
        found[np.searchsorted(cuts, places + cuts[0], "right") - 1] = True
    return found


# --- fragments of a session ------------------------------------------------------------------


def _by_value(sessions: Sessions) -> Sessions:
    """The same, with fragments of a session that have the same time by their values."""
    rows, starts, ended = sessions
    same = rows.times_us[1:] == rows.times_us[:-1]
    same[starts[1:] - 1] = False
    if not same.any():
        return sessions
    tied = np.append(same, False) | np.append(False, same)
    places = np.flatnonzero(tied)
    runs = np.cumsum(~np.append(False, same))[places]
    table = pa.table({"run": runs, "value": rows.values.take(pa.array(places))})
    order = pc.sort_indices(table, [("run", "ascending"), ("value", "ascending")]).to_numpy()
    whole = np.arange(len(rows))
    whole[places] = places[order]
    return Sessions(rows.pick(whole), starts, ended)


def _distinct(sessions: Sessions, id_of: IdOf, eager: bool) -> Sessions:
    """The same with the first fragment of each id only, as they were folded."""
    rows, starts, ended = sessions
    sessions_of_rows = np.repeat(np.arange(len(starts)), sessions.stops - starts)
    ids = _id_numbers(rows.values, id_of)
    named = sessions_of_rows * (int(ids.max(initial=0)) + 1) + ids
    order = np.argsort(named, kind="stable")
    again = np.append(False, named[order][1:] == named[order][:-1])
    if not again.any():
        return sessions
    by_fold = [rows.offsets] if eager else [rows.offsets, rows.folds_us]
    order = np.lexsort((*by_fold, named))
    dropped: Rows = order[again]
    keep = np.ones(len(rows), np.bool_)
    keep[dropped] = False
    counts = np.add.reduceat(keep.astype(np.int64), starts)
    fewer = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))
    return Sessions(rows.pick(np.flatnonzero(keep)), fewer, ended)


def _id_numbers(values: pa.BinaryArray, id_of: IdOf) -> Longs:
    if id_of is bytes:
        codes: Longs = values.dictionary_encode().indices.to_numpy().astype(np.int64)
        return codes
    ids = list(map(id_of, values.to_pylist()))
    numbers = {each: number for number, each in enumerate(dict.fromkeys(ids))}
    return np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids))
