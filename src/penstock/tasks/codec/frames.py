"""DataFrames of pandas and polars: they travel as tables of Arrow, and are frames again there."""

from __future__ import annotations

import sys
from typing import Any

from penstock.tasks.codec.arrays import PANDAS, POLARS, pack_table
from penstock.tasks.errors import SerialisationError


def is_frame(value: object) -> bool:
    """Whether it is a DataFrame, without loading a library to find out; subclasses keep more than
    can be sent."""
    return _library_of(value) is not None


def _library_of(value: object) -> str | None:
    for name in ("pandas", "polars"):
        library = sys.modules.get(name)
        if library is not None and type(value) is getattr(library, "DataFrame", None):
            return name
    return None


def pack_frame(value: Any) -> memoryview:
    """As `pack_arrow`, with index and types. SerialisationError if a column has no type in
    Arrow."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SerialisationError(
            "a DataFrame travels as a table of Arrow, and pyarrow is not installed",
            advice="pip install 'penstock[arrow]'",
        ) from error
    try:
        if _library_of(value) == "pandas":
            return pack_table(PANDAS, pa.Table.from_pandas(value))
        return pack_table(POLARS, value.to_arrow())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SerialisationError(
            f"a DataFrame that Arrow cannot hold: {error}",
            advice="Give every column one type, and a name of its own.",
        ) from error
