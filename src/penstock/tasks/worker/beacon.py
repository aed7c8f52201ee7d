"""A few shared bytes that say which job an executor is at, and since when.

Written by the executor before it begins a job, read by the puller at any time, also while native
code keeps the executor from saying anything, and after its death.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

from penstock.tasks.worker.jobs import Running

_NUMBER = struct.Struct("<Q")
_BEGAN_AT = 8
_BYTES = 16


class Beacon:
    """One executor's; made by the puller, opened by the executor through its descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Maps the file; the descriptor stays the caller's."""
        self._map = mmap.mmap(descriptor, _BYTES)

    def begin(self, number: int, now_us: int) -> None:
        """The executor begins a job. Whoever looks in between sees none."""
        _NUMBER.pack_into(self._map, 0, 0)
        _NUMBER.pack_into(self._map, _BEGAN_AT, now_us)
        _NUMBER.pack_into(self._map, 0, number)

    def look(self) -> Running | None:
        """What the executor is at, or was last; None if it has never begun anything."""
        (number,) = _NUMBER.unpack_from(self._map, 0)
        (began_us,) = _NUMBER.unpack_from(self._map, _BEGAN_AT)
        (again,) = _NUMBER.unpack_from(self._map, 0)
        return Running(number, began_us) if number and number == again else None

    def close(self) -> None:
        """Unmaps it."""
        self._map.close()


def beacon_file() -> int:
    """The descriptor of a new file that has no name; whoever gets it closes it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_BYTES)
        return os.dup(file.fileno())
