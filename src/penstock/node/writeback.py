"""Having the disk begin with what was written, before anybody waits for it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: begin, and do not wait
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EPERM})

Begin = Callable[[int, int, int, int], int]


def _find() -> Begin | None:
    try:
        begin = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError, TypeError):
        return None
    begin.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    begin.restype = ctypes.c_int
    return begin


_begin = _find()


def begin_writing(fd: int, offset: int, size: int) -> None:
    """The disk is to begin with this part of a file; nothing is durable by it, and a sync that
    follows tells of what failed. Does nothing where the system cannot. OSError if it refuses."""
    if _begin is None or not _begin(fd, offset, size, _WRITE):
        return
    number = ctypes.get_errno()
    if number not in _CANNOT:
        raise OSError(number, os.strerror(number))
