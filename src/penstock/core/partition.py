"""One partition of a topic: batches by offset, retention, groups' offsets and claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.index import BatchIndex, Stored
from penstock.core.queue import Totals
from penstock.errors import (
    ConflictError,
    DamagedError,
    FencedError,
    InvalidError,
    LimitError,
    NotFoundError,
    TooLargeError,
)
from penstock.wire.batch import Header
from penstock.wire.limits import MAX_STATE_BYTES
from penstock.wire.messages import TopicOptions

MAX_GROUPS = 10_000
MAX_STATES_BYTES = 16 << 20  # of all groups of a partition


@dataclass(slots=True)
class ClaimState:
    """Who may work on a partition for a group. The token grows with every new owner."""

    owner: str
    token: int
    lease_us: int
    deadline_us: int
    reserved: str = ""  # nobody has it, and only this one may claim it before the deadline

    def start(self, now_us: int) -> None:
        """It lasts its whole length from now on."""
        self.deadline_us = now_us + self.lease_us if self.owner or self.reserved else 0


class Partition:
    """The state machine of one partition. `start` to `end` can be read; offsets only grow."""

    def __init__(self, stream: int, number: int, options: TopicOptions, totals: Totals) -> None:
        self.stream = stream
        self.number = number
        self.options = options
        self.index = BatchIndex()
        self.start = 0
        self.expiring = 0  # where it will start once that is committed
        self.end = 0  # after the last visible message
        self.tail = 0  # after the last accepted message
        self.bytes = 0
        self.live_messages = 0  # that are not forgotten
        self.commits: dict[str, int] = {}
        self.states: dict[str, bytes] = {}  # committed with an offset, where it is not empty
        self.states_bytes = 0
        self.claims: dict[str, ClaimState] = {}
        self.totals = totals
        self.damage: list[tuple[int, int]] = []  # (base, count) of batches that are quarantined
        self.origin = 0  # the first offset that it ever had
        self.opened = False  # a growth added it, and it has begun
        self.splits: list[tuple[int, int]] = []  # generation, and the offset children go on from
        # Base of a batch with live rows: mask of those that keep-latest removed.
        self.thin: dict[int, int] = {}

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

    def missed(self, base: int) -> int:
        """Its shard is torn: whatever was between the last batch and `base` is lost. How many
        messages that is."""
        if base <= self.end:
            return 0
        count = base - self.end
        self.lost(self.end, count)
        return count

    def began(self, offset: int) -> None:
        """A growth added it, and its parent was sealed at this offset: here it goes on."""
        if not self.opened:
            self.opened = True
            self.origin = self.start = self.end = self.tail = offset

    def sealed(self, generation: int, offset: int) -> None:
        """Children have the messages of some of its keys, from this offset on."""
        self.splits.append((generation, offset))

    def trimmed(self, start: int) -> None:
        """Everything before an offset (the start of a batch) is gone."""
        while (stored := self.index.first()) is not None and stored.base < start:
            self._finish(stored.base, stored.live)
        self.start = max(self.start, start)
        left = ((max(base, start), base + count) for base, count in self.damage)
        self.damage = [(base, end - base) for base, end in left if end > base]

    def thinned(self, base: int, mask: int) -> None:
        """Keep-latest removed these rows of the batch at `base`; never the partition's last. Rows
        that are gone already do not count."""
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
        if base in self.thin and self.index.find(base) is None:
            del self.thin[base]  # all of it is gone: nobody asks which of its rows are

    def grown(self, size: int) -> None:
        """What is kept takes so many bytes more where it lies now, or less."""
        self.totals.bytes += size
        self.bytes += size

    def committed(self, group: str, offset: int, state: bytes = b"") -> None:
        """A group's next offset to read, and its state there: an earlier one does not count."""
        self.commits[group] = offset
        self.states_bytes += len(state) - len(self.states.pop(group, b""))
        if state:
            self.states[group] = state

    def claimed(
        self, group: str, owner: str, token: int, lease_us: int, now_us: int, reserved: str = ""
    ) -> None:
        """A group member has the partition; an empty owner gives it up, perhaps for another."""
        claim = self.claims[group] = ClaimState(owner, token, lease_us, 0, reserved)
        claim.start(now_us)

    def renewed(self, group: str, owner: str, token: int, now_us: int) -> bool:
        """Whether the claim is still this owner's; then it lasts its whole lease again. That is
        in no record: whoever recovers or takes over the partition starts all leases anew."""
        claim = self.claims.get(group)
        if claim is None or not owner or (claim.owner, claim.token) != (owner, token):
            return False
        claim.start(now_us)
        return True

    def restart(self, now_us: int) -> None:
        """After recovery, or when it is taken over: claims last their whole length again."""
        self.expiring = 0
        for claim in self.claims.values():
            claim.start(now_us)

    # --- decisions -------------------------------------------------------------------------

    def find(self, offset: int, max_bytes: int) -> list[Stored]:
        """Batches to read from an offset on, at least one if there is any."""
        offset = max(offset, self.origin)  # before that, its parent had them
        if offset < self.start:
            raise NotFoundError(
                f"offset {offset} of partition {self.number} is gone; the first is {self.start}",
                advice="Read from the start, or lengthen the topic's retention.",
            )
        barrier = self._next_damage(offset)
        row = self._row_from(offset)
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

    def _row_from(self, offset: int) -> int:
        row = self.index.row_of(offset)
        return self.index.next_row(offset) if row < 0 else row

    def arrived_us(self, offset: int) -> int | None:
        """When the batch arrived in which the first message from an offset on is, if any is."""
        row = self._row_from(offset)
        return None if row < 0 else self.index.at(row).arrived_us

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

    def check_commit(
        self, group: str, offset: int, token: int, now_us: int, state: bytes = b""
    ) -> None:
        """ConflictError, FencedError, InvalidError, LimitError or TooLargeError if this offset may
        not be committed with this state."""
        self._check_state(group, state)
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

    def _check_state(self, group: str, state: bytes) -> None:
        if len(state) > MAX_STATE_BYTES:
            raise TooLargeError(
                f"a state of {len(state):,} bytes; the limit is {MAX_STATE_BYTES:,}"
            )
        others = self.states_bytes - len(self.states.get(group, b""))
        if state and others + len(state) > MAX_STATES_BYTES:
            raise LimitError(
                f"groups keep {others:,} bytes of state in partition {self.number} already",
                advice=f"All states of a partition may have {MAX_STATES_BYTES:,} bytes.",
            )

    def decide_claim(
        self, group: str, owner: str, token: int, now_us: int
    ) -> tuple[int, str | None]:
        """The token that the asker gets (0: refused), and who has it otherwise. One who has it
        and asks again did not hear the answer: it gets the same token."""
        if len(self.claims) >= MAX_GROUPS and group not in self.claims:
            raise InvalidError(f"{MAX_GROUPS:,} groups already claim this partition")
        claim = self.claims.get(group)
        if claim is None:
            return 1, None
        if token:
            if token == claim.token and claim.owner == owner:
                return token, None
            raise ConflictError(f"the claim {token} of {owner!r} is over")
        if claim.deadline_us > now_us:
            if claim.owner == owner:
                return claim.token, None
            if owner != claim.reserved:
                return 0, claim.owner or claim.reserved
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
            "states": self.states,
            "damage": self.damage,
            "origin": self.origin,
            "opened": self.opened,
            "splits": self.splits,
            "thin": [
                (base, mask.to_bytes(mask.bit_length() // 8 + 1, "little"))
                for base, mask in self.thin.items()
            ],
            "claims": {g: (c.owner, c.token, c.lease_us) for g, c in self.claims.items()},
            "reserved": {g: c.reserved for g, c in self.claims.items() if c.reserved},
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
        partition.states = data.get("states", {})
        partition.states_bytes = sum(map(len, partition.states.values()))
        partition.origin = data.get("origin", 0)
        partition.opened = data.get("opened", False)
        partition.splits = [tuple(item) for item in data.get("splits", ())]
        partition.damage = [tuple(item) for item in data["damage"]]
        partition.thin = {
            base: int.from_bytes(mask, "little")
            for base, mask in data["thin"]
            if partition.index.find(base) is not None  # an earlier version kept those of all
        }
        for stored in partition.index.rows():
            totals.stored(stored.live, stored.live_bytes)
            partition.live_messages += stored.live
        reserved = data.get("reserved", {})
        for group, (owner, token, lease_us) in data["claims"].items():
            partition.claimed(group, owner, token, lease_us, 0, reserved.get(group, ""))
        return partition
