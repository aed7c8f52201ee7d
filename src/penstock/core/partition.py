"""One partition of a topic: batches by offset, retention, groups' offsets and claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.index import BatchIndex, Stored
from penstock.core.queue import Totals
from penstock.errors import ConflictError, DamagedError, FencedError, InvalidError, NotFoundError
from penstock.wire.batch import Header
from penstock.wire.messages import TopicOptions

MAX_GROUPS = 10_000


@dataclass(slots=True)
class ClaimState:
    """Who may work on a partition for a group. The token grows with every new owner."""

    owner: str
    token: int
    lease_us: int
    deadline_us: int


class Partition:
    """The state machine of one partition. `start` to `end` can be read; offsets only grow."""

    def __init__(self, stream: int, number: int, options: TopicOptions, totals: Totals) -> None:
        self.stream = stream
        self.number = number
        self.options = options
        self.index = BatchIndex()
        self.start = 0
        self.end = 0  # after the last visible message
        self.tail = 0  # after the last accepted message
        self.bytes = 0
        self.live_messages = 0  # that are not forgotten
        self.commits: dict[str, int] = {}
        self.claims: dict[str, ClaimState] = {}
        self.totals = totals
        self.damage: list[tuple[int, int]] = []  # (base, count) of batches that are quarantined
        self.thin: dict[int, int] = {}  # base of a batch: mask of rows that keep-latest removed

    # --- fold ------------------------------------------------------------------------------

    def stored(self, header: Header, location: int, length: int) -> None:
        """A batch is committed in this record: it can be read from now on."""
        span = header.count
        self.index.append(header.base, span, location, length, header.arrived_us)
        self.end = header.base + span
        self.tail = max(self.tail, self.end)
        self.bytes += length
        self.live_messages += span
        self.totals.stored(span, length)

    def lost(self, base: int, count: int) -> None:
        """A batch is damaged: its offsets are used, and reading them is an error."""
        self.end = base + count
        self.tail = max(self.tail, self.end)
        self.damage.append((base, count))

    def trimmed(self, start: int) -> None:
        """Everything before an offset (the start of a batch) is gone."""
        while (stored := self.index.first()) is not None and stored.base < start:
            self._finish(stored.base, stored.live)
            self.thin.pop(stored.base, None)
        self.start = max(self.start, start)
        self.damage = [(base, count) for base, count in self.damage if base >= start]

    def thinned(self, base: int, mask: int) -> None:
        """Keep-latest removed these rows of the batch at `base`; never the partition's last."""
        before = self.thin.get(base, 0)
        fresh = (mask & ~before).bit_count()
        if fresh and self.index.find(base) is not None:
            self.thin[base] = before | mask
            self._finish(base, fresh)

    def _finish(self, base: int, messages: int) -> None:
        location, freed = self.index.finish(base, messages)
        self.bytes -= freed
        self.live_messages -= messages
        self.totals.finished(messages, [(location, freed)])

    def committed(self, group: str, offset: int) -> None:
        """A group's next offset to read."""
        self.commits[group] = offset

    def claimed(self, group: str, owner: str, token: int, lease_us: int, now_us: int) -> None:
        """A group member has the partition; an empty owner gives it up."""
        deadline_us = now_us + lease_us if owner else 0
        self.claims[group] = ClaimState(owner, token, lease_us, deadline_us)

    def restart(self, now_us: int) -> None:
        """After recovery: claims last their whole length again."""
        for claim in self.claims.values():
            if claim.owner:
                claim.deadline_us = now_us + claim.lease_us

    # --- decisions -------------------------------------------------------------------------

    def find(self, offset: int, max_bytes: int) -> list[Stored]:
        """Batches to read from an offset on, at least one if there is any."""
        if offset < self.start:
            raise NotFoundError(
                f"offset {offset} of partition {self.number} is gone; the first is {self.start}",
                advice="Read from the start, or lengthen the topic's retention.",
            )
        barrier = self._next_damage(offset)
        row = self.index.row_of(offset)
        if row < 0:
            row = self.index.next_row(offset)
        found: list[Stored] = []
        while 0 <= row < self.index.rows_end and max_bytes > 0:
            stored = self.index.at(row)
            row += 1
            if stored.base > barrier:
                break
            if found and stored.length > max_bytes:
                break
            if stored.live:
                found.append(stored)
                max_bytes -= stored.length
        return found

    def _next_damage(self, offset: int) -> int:
        """Where reading from an offset must stop; DamagedError if that is at once."""
        for base, count in self.damage:
            if base <= offset < base + count:
                raise DamagedError(
                    f"offsets {base} to {base + count - 1} of partition {self.number} are damaged",
                    advice=f"Go on at offset {base + count}; `penstock doctor DIR` tells more.",
                )
            if base > offset:
                return base
        return self.end

    def offset_at(self, time_us: int) -> int:
        """The first offset that arrived at or after a time; batches are the grain."""
        return self.index.base_at(time_us, self.end)

    def check_commit(self, group: str, offset: int, token: int, now_us: int) -> None:
        """ConflictError, FencedError or InvalidError if this offset may not be committed."""
        if not 0 <= offset <= self.end:
            raise InvalidError(f"offset {offset} is outside partition {self.number}")
        if len(self.commits) >= MAX_GROUPS and group not in self.commits:
            raise InvalidError(f"{MAX_GROUPS:,} groups already commit to this partition")
        claim = self.claims.get(group)
        if (
            claim is not None
            and token != claim.token
            and (token or (claim.owner and claim.deadline_us > now_us))
        ):
            holder = claim.owner or "nobody now"
            raise FencedError(f"partition {self.number} is claimed by {holder} for group {group!r}")

    def decide_claim(
        self, group: str, owner: str, token: int, now_us: int
    ) -> tuple[int, str | None]:
        """The token that the asker gets (0: refused), and who has it otherwise."""
        if len(self.claims) >= MAX_GROUPS and group not in self.claims:
            raise InvalidError(f"{MAX_GROUPS:,} groups already claim this partition")
        claim = self.claims.get(group)
        if claim is None:
            return 1, None
        if token:
            if token == claim.token and claim.owner == owner:
                return token, None
            raise ConflictError(f"the claim {token} of {owner!r} is over")
        if claim.owner and claim.deadline_us > now_us:
            return 0, claim.owner
        return claim.token + 1, None

    def expired_before(self, now_us: int) -> int:
        """The offset up to which retention allows to forget."""
        keep_ms, keep_bytes, start = (
            self.options.retention_ms,
            self.options.retention_bytes,
            self.start,
        )
        left = self.bytes
        for stored in self.index.rows():
            too_old = keep_ms and stored.arrived_us + keep_ms * 1000 <= now_us
            if not too_old and not (keep_bytes and left > keep_bytes):
                break
            start = stored.base + stored.span
            left -= stored.live_bytes
        return start

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain data for `restore`."""
        return {
            "index": self.index.snapshot(),
            "start": self.start,
            "end": self.end,
            "bytes": self.bytes,
            "commits": self.commits,
            "damage": self.damage,
            "thin": [
                (base, mask.to_bytes(mask.bit_length() // 8 + 1, "little"))
                for base, mask in self.thin.items()
            ],
            "claims": {g: (c.owner, c.token, c.lease_us) for g, c in self.claims.items()},
        }

    @classmethod
    def restore(
        cls, stream: int, number: int, options: TopicOptions, totals: Totals, data: dict[str, Any]
    ) -> Partition:
        """The partition that made this snapshot; call `restart` before use."""
        partition = cls(stream, number, options, totals)
        partition.index = BatchIndex.restore(data["index"])
        partition.start = data["start"]
        partition.end = partition.tail = data["end"]
        partition.bytes = data["bytes"]
        partition.commits = data["commits"]
        partition.damage = [tuple(item) for item in data["damage"]]
        partition.thin = {base: int.from_bytes(mask, "little") for base, mask in data["thin"]}
        for stored in partition.index.rows():
            totals.stored(stored.live, stored.live_bytes)
            partition.live_messages += stored.live
        for group, (owner, token, lease_us) in data["claims"].items():
            partition.claimed(group, owner, token, lease_us, 0)
        return partition
