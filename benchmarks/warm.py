"""Memory that the machine has really been given.

A virtual machine gets its memory from the host page by page, when it is first used: that takes some
microseconds each, longer than writing a page to a file. Who runs first on a machine that was just
started would pay for all who come after. So everything is used once before anything is measured.
"""

from __future__ import annotations

import os

import numpy as np

_CHUNK = 256 << 20
_LEFT = 2 << 30  # for what runs
_MOST = 32 << 30


def touch_memory() -> int:
    """Uses all memory that is free, once, and gives it back: how many bytes that were."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    chunks = max(0, min(free, _MOST) - _LEFT) // _CHUNK
    used = []
    for _ in range(chunks):
        used.append(np.empty(_CHUNK, np.uint8))
        used[-1][:: os.sysconf("SC_PAGE_SIZE")] = 1
    return chunks * _CHUNK
