"""What counts as bytes, and how columns are aligned."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ZEROS = bytes(8)


def pad8(length: int) -> int:
    """Bytes to add to `length` to reach a multiple of 8."""
    return -length & 7
