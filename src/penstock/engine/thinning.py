"""Keep-latest: finding messages whose key has a later one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.core.index import Stored
from penstock.core.runs import mask_of
from penstock.engine.reader import Found, Place
from penstock.errors import PenstockError
from penstock.wire.batch import Batch, restamped


class Thinning:
    """Reads all batches of a partition twice. Run it off the loop; `stale` is the result.

    Memory is bounded by the distinct keys of the partition. A batch that cannot be read is left as
    it is, and so is the last one, so that the partition's end stays where it is.
    """

    def __init__(
        self, batches: list[Stored], read: Callable[[Sequence[Place]], list[Found]]
    ) -> None:
        self._batches = batches
        self._read = read
        self.stale: dict[int, int] = {}  # base of a batch: mask of positions

    def run(self) -> None:
        """Finds out; never raises for what is on the disk."""
        latest: dict[bytes | None, int] = {}
        for stored in self._batches:
            if (batch := self._batch(stored)) is not None:
                latest.update(zip(batch.keys, batch.offsets.tolist(), strict=True))
        for stored in self._batches[:-1]:
            if (batch := self._batch(stored)) is not None:
                self._compare(stored.base, batch, latest)

    def _compare(self, base: int, batch: Batch, latest: dict[bytes | None, int]) -> None:
        rows = zip(batch.keys, batch.offsets.tolist(), strict=True)
        stale = [offset - base for key, offset in rows if key is not None and latest[key] != offset]
        if stale:
            self.stale[base] = mask_of(np.asarray(stale, np.intp))

    def _batch(self, stored: Stored) -> Batch | None:
        (found,) = self._read([(stored.location, stored.length, stored.stamped)])
        if isinstance(found, PenstockError):
            return None
        shown = found if stored.moved is None else restamped(found, *stored.moved)
        return Batch.parse(shown, verify=False)
