"""NumPy arrays and scalars, Arrow tables and arrays: buffers that are read where they lie."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import msgspec
import numpy as np

from penstock.errors import PenstockError
from penstock.tasks.errors import SerialisationError

# Plain kinds of fixed size. Objects would need pickles; records are seldom, and may nest objects.
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d+(\[\d*\w+\])?")


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: list[int]
    fortran: bool
    scalar: bool
    data: memoryview


_encode = msgspec.msgpack.Encoder().encode
_read_array = msgspec.msgpack.Decoder(_Array).decode


def is_array(value: object) -> bool:
    """Whether it is an array or a scalar of NumPy; subclasses keep more than can be sent."""
    return type(value) is np.ndarray or isinstance(value, np.generic)


def pack_array(value: Any) -> bytes:
    """An array in its own order of elements, or a scalar."""
    array = np.asarray(value)
    if _DTYPE.fullmatch(array.dtype.str) is None or array.dtype.names is not None:
        raise SerialisationError(
            f"an array of {array.dtype} cannot be sent",
            advice="Use numbers, bools, times, or strings of fixed length.",
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    if fortran:
        flat = array.T  # the same elements, in the same place
    else:
        flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    raw = flat.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    scalar = isinstance(value, np.generic)
    return _encode(_Array(array.dtype.str, list(array.shape), fortran, scalar, raw))


def unpack_array(data: memoryview) -> Any:
    """The array, as a read-only view of `data`."""
    told = _read_array(data)
    if _DTYPE.fullmatch(told.dtype) is None:
        raise SerialisationError(f"an array of {told.dtype!r} is not taken")
    array: np.ndarray[Any, Any] = np.ndarray(
        tuple(told.shape),
        np.dtype(told.dtype),
        buffer=told.data,
        order="F" if told.fortran else "C",
    )
    if array.nbytes != len(told.data):
        raise SerialisationError("an array whose shape does not fit its data")
    return array[()] if told.scalar and not told.shape else array


def is_arrow(value: object) -> bool:
    """Whether it is a table, a batch or an array of Arrow, without loading Arrow to find out."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return False
    return isinstance(value, arrow.Table | arrow.RecordBatch | arrow.Array | arrow.ChunkedArray)


_TABLE, _BATCH, _ARRAY, _CHUNKED, PANDAS, POLARS = range(6)


def pack_arrow(value: Any) -> memoryview:
    """An IPC stream, after one byte that says what it was."""
    import pyarrow as pa

    if isinstance(value, pa.Table):
        shape, table = _TABLE, value
    elif isinstance(value, pa.RecordBatch):
        shape, table = _BATCH, pa.Table.from_batches([value])
    else:
        shape = _CHUNKED if isinstance(value, pa.ChunkedArray) else _ARRAY
        table = pa.table({"": value})
    return pack_table(shape, table)


def pack_table(shape: int, table: Any) -> memoryview:
    """A table, and what it was made of."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    sink.write(bytes([shape]))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def unpack_arrow(data: memoryview) -> Any:
    """The table, batch or array; its buffers lie in `data`, and are checked against each other."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SerialisationError(
            "Arrow data cannot be read: pyarrow is not installed",
            advice="pip install 'penstock[arrow]'",
        ) from error
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data[1:])).read_all()
        table.validate(full=True)
        return _shaped(pa, data[0], table)
    except PenstockError:
        raise
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise SerialisationError(f"Arrow data that cannot be read: {error}") from error


def _shaped(arrow: Any, shape: int, table: Any) -> Any:
    if shape == _TABLE:
        return table
    if shape == _CHUNKED:
        return table.column(0)
    if shape in (PANDAS, POLARS):
        return _frame(shape, table)
    if shape not in (_BATCH, _ARRAY):
        raise SerialisationError(f"Arrow data of unknown shape {shape}")
    columns = [_one_array(column) for column in table.columns]
    if shape == _ARRAY:
        return columns[0]
    return arrow.RecordBatch.from_arrays(columns, schema=table.schema)


def _frame(shape: int, table: Any) -> Any:
    name = "pandas" if shape == PANDAS else "polars"
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise SerialisationError(
            f"a DataFrame of {name} cannot be read: {name} is not installed here",
            advice="Install it for callers and workers.",
        ) from error
    return table.to_pandas() if shape == PANDAS else library.from_arrow(table)


def _one_array(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
