"""The end of a shard's log, kept in memory for followers that are a little behind."""

from __future__ import annotations

from penstock.cluster.replication.messages import Record

MAX_TAIL_BYTES = 8 << 20  # of one shard; a follower that is further behind gets a copy of the state
MAX_TAIL_RECORDS = 10_000


class Tail:
    """Records in order, without a gap.

    The oldest leave when there are too many, but not those that are not committed yet: how many
    these are is bounded by what the journal takes.
    """

    def __init__(self, after: int) -> None:
        self.last = after  # the number of the newest record
        self._records: list[Record] = []
        self._gone = 0  # at the start of the list: it is cut seldom, as that costs a copy
        self._bytes = 0

    @property
    def first(self) -> int:
        """The number of the oldest record that is here, or comes next."""
        return self.last + 1 - len(self._records) + self._gone

    def append(self, record: Record, committed: int) -> None:
        """The next record of the log, and the number up to which it is committed."""
        assert record.number == self.last + 1, "a log has no gaps"
        self._records.append(record)
        self.last = record.number
        self._bytes += record.size
        while self._is_full() and self.first <= committed:
            self._bytes -= self._records[self._gone].size
            self._gone += 1
        if self._gone * 2 > len(self._records):
            del self._records[: self._gone]
            self._gone = 0

    def _is_full(self) -> bool:
        return self._bytes > MAX_TAIL_BYTES or self.last - self.first >= MAX_TAIL_RECORDS

    def after(self, number: int, max_bytes: int) -> list[Record] | None:
        """Records above a number, at least one if there is one; None if some are gone by now."""
        if number + 1 < self.first:
            return None
        start = len(self._records) - (self.last - number)
        chosen: list[Record] = []
        size = 0
        for record in self._records[start:]:
            size += record.size
            if chosen and size > max_bytes:
                break
            chosen.append(record)
        return chosen
