"""Numbers for the keys of a bucket, so that all else about them is done with columns of numbers."""

from __future__ import annotations

from itertools import compress, repeat

import numpy as np
import pyarrow as pa

from penstock.consumers.objects import FOREVER_US
from penstock.consumers.stateful import Flags
from penstock.wire.columns import Longs


class Slots:
    """Keys are numbered as they appear. `due_us`: no session of a key can end by silence before
    that; it ends then at the earliest."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.names: list[bytes] = []
        self.due_us: Longs = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def numbered(self, keys: pa.BinaryArray) -> Longs:
        """The numbers of keys; those that are new get one."""
        encoded = keys.dictionary_encode()
        distinct: list[bytes] = encoded.dictionary.to_pylist()
        known = map(self._numbers.get, distinct, repeat(-1))
        numbers = np.fromiter(known, np.int64, len(distinct))
        fresh = np.flatnonzero(numbers < 0)
        if len(fresh):
            first = len(self.names)
            numbers[fresh] = np.arange(first, first + len(fresh))
            added = list(map(distinct.__getitem__, fresh.tolist()))
            self._numbers.update(zip(added, range(first, first + len(added)), strict=True))
            self.names += added
            later = np.full(len(added), FOREVER_US, np.int64)
            self.due_us = np.concatenate((self.due_us, later))
        found: Longs = numbers[encoded.indices.to_numpy()]
        return found

    def of(self, numbers: Longs) -> list[bytes]:
        """The keys with these numbers."""
        return list(map(self.names.__getitem__, numbers.tolist()))

    def keep(self, used: Flags) -> Longs:
        """Forgets all other keys; gives the new number of each old one."""
        numbers = np.cumsum(used) - 1
        self.names = list(compress(self.names, used.tolist()))
        self._numbers = dict(zip(self.names, range(len(self.names)), strict=True))
        self.due_us = self.due_us[used]
        return numbers
