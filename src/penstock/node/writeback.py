"""Having the disk begin with what was written, before anybody waits for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: begin, and do not wait
_FAILED = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EBADF})

Begin = Callable[[int, int, int], int]  # descriptor, offset, size: 0, or the number of an error


def _find() -> Begin | None:
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int

    def begin(fd: int, offset: int, size: int) -> int:
        return ctypes.get_errno() if call(fd, offset, size, _WRITE) else 0

    return begin


_begin = _find()


def begin_writing(fd: int, offset: int, size: int) -> None:
    """The disk is to begin with this part of a file; nothing is durable by it, and a sync that
    follows tells of what failed. Does nothing where the system cannot, or has no time for it.
    OSError if the disk refuses."""
    if _begin is not None and (number := _begin(fd, offset, size)) in _FAILED:
        raise OSError(number, os.strerror(number))
