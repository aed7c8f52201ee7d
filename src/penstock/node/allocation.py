"""How a node process takes memory from the system."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
KEEP_BYTES = 96 << 20  # what is on its way to the disk, in its cache, and to clients
LARGE_BYTES = 16 << 20


def keep_freed_memory() -> bool:
    """Buffers of batches are freed and needed again all the time. By default the C library of Linux
    gives memory back to the system as soon as 128 KiB at the end of the heap are free, and every
    page that comes back is cleared and mapped anew: more work than all that a node does with the
    batch. From now on up to KEEP_BYTES are kept, and only buffers of LARGE_BYTES or more are mapped
    one by one. False where the C library has no such setting; everything works without.
    """
    try:
        setting = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wanted = {_TRIM_THRESHOLD: KEEP_BYTES, _TOP_PAD: 1 << 20, _MMAP_THRESHOLD: LARGE_BYTES}
    done = [setting(name, value) for name, value in wanted.items()]  # each, whatever the others do
    return all(done)
