"""Groups: how far they have come in the partitions of topics, with which state, and who of them
has which partition."""

from __future__ import annotations

from penstock.core.kernel import Kernel
from penstock.core.partition import Partition
from penstock.core.records import Claimed, Committed
from penstock.core.topics import Topics
from penstock.errors import InvalidError, LimitError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.limits import MAX_LEASE_MS, MAX_NAME_BYTES, MAX_RESERVE_MS, MAX_STATES

MAX_GROUP_BYTES = 200


class Groups:
    """The groups that read topics of a node."""

    def __init__(self, kernel: Kernel, topics: Topics) -> None:
        self.kernel = kernel
        self.topics = topics

    # --- offsets and states ----------------------------------------------------------------

    def committed(self, call: m.Committed) -> list[int | None]:
        """A group's offsets."""
        parts = self.topics.partitions(call.stream, call.partitions)
        return [part.commits.get(call.group) for part in parts]

    def commit(self, call: m.Commit) -> Entry:
        """Commits a group's offsets, and states with them, all or none; the last entry."""
        stream = self.kernel.stream(call.stream, "topic")
        states = call.states or [b""] * len(call.offsets)
        if len(states) != len(call.offsets):
            raise InvalidError(f"{len(states)} states for {len(call.offsets)} offsets")
        for (number, offset, token), state in zip(call.offsets, states, strict=True):
            self.check_commit(call.stream, number, call.group, offset, token, state)
        entry = None
        for (number, offset, _), state in zip(call.offsets, states, strict=True):
            note = Committed(call.stream, number, call.group, offset, state)
            entry = self.kernel.note(self.topics.shard(stream, number), note, stream.level)
        if entry is None:
            raise InvalidError("a commit names at least one partition")
        return entry

    def check_commit(
        self, stream: int, number: int, group: str, offset: int, token: int, state: bytes
    ) -> None:
        """Raises if a group may not commit this now."""
        _check_group(group)
        if state and self.kernel.shared and not self.kernel.forwarding:
            raise InvalidError("a state: not all nodes of the cluster know how to keep it yet")
        partition = self.topics.partition(stream, number)
        partition.check_commit(group, offset, token, self.kernel.now_us, state)

    # --- claims ----------------------------------------------------------------------------

    def claim(self, call: m.Claim) -> tuple[m.ClaimInfo, Entry | None]:
        """Claims a partition or renews the claim; who has it, and the entry to wait for."""
        _check_group(call.group)
        if not 0 < len(call.owner.encode()) <= MAX_NAME_BYTES:
            raise InvalidError(f"the owner of a claim has a name of 1 to {MAX_NAME_BYTES} bytes")
        if not 0 < call.lease_ms <= MAX_LEASE_MS:
            raise InvalidError(f"a claim has a lease of 1 to {MAX_LEASE_MS} ms")
        stream = self.kernel.stream(call.stream, "topic")
        partition = self.topics.partition(call.stream, call.partition)
        token, owner = partition.decide_claim(
            call.group, call.owner, call.token, self.kernel.now_us
        )
        if owner is not None:
            return m.ClaimInfo(owner, 0), None
        note = Claimed(
            call.stream, call.partition, call.group, call.owner, token, call.lease_ms * 1000
        )
        shard = self.topics.shard(stream, call.partition)
        # A renewal may be lost with the power, a token may not: nobody else must get it again.
        level = min(stream.level, Durability.WRITTEN) if call.token else stream.level
        entry = self.kernel.note(shard, note, level)
        return m.ClaimInfo(call.owner, token), entry

    def unclaim(self, call: m.Unclaim) -> Entry | None:
        """Gives a claim up; None if it was not the current one."""
        if bool(call.to) != (call.reserve_ms > 0) or not 0 <= call.reserve_ms <= MAX_RESERVE_MS:
            raise InvalidError(f"a claim is reserved for somebody, for 1 to {MAX_RESERVE_MS} ms")
        if len(call.to.encode()) > MAX_NAME_BYTES:
            raise InvalidError(f"whom a claim is reserved for has at most {MAX_NAME_BYTES} bytes")
        stream = self.kernel.stream(call.stream, "topic")
        claim = self.topics.partition(call.stream, call.partition).claims.get(call.group)
        if claim is None or claim.token != call.token or not claim.owner:
            return None
        reserve_us = call.reserve_ms * 1000
        note = Claimed(
            call.stream, call.partition, call.group, "", call.token, reserve_us, call.to
        )
        return self.kernel.note(self.topics.shard(stream, call.partition), note, stream.level)

    def renew(self, call: m.Renew) -> list[bool]:
        """Extends claims in memory, for as long as each was made; whether each is the owner's."""
        parts = self.topics.partitions(call.stream, [number for number, _ in call.claims])
        return [
            part.renewed(call.group, call.owner, token, self.kernel.now_us)
            for part, (_, token) in zip(parts, call.claims, strict=True)
        ]

    def claims(self, call: m.Claims) -> list[m.ClaimStatus]:
        """How a group stands in partitions."""
        parts = self.topics.partitions(call.stream, call.partitions)
        if call.states and len(parts) > MAX_STATES:
            raise LimitError(f"states of {len(parts):,} partitions; at most {MAX_STATES} at a time")
        return [self._status(part, call.group, call.states) for part in parts]

    def _status(self, part: Partition, group: str, states: bool) -> m.ClaimStatus:
        claim, offset, now_us = part.claims.get(group), part.commits.get(group), self.kernel.now_us
        first = part.start if offset is None else max(offset, part.start)
        arrived_us = part.arrived_us(first)
        left_us = 0 if claim is None else max(0, claim.deadline_us - now_us)
        return m.ClaimStatus(
            owner="" if claim is None else claim.owner,
            token=0 if claim is None else claim.token,
            left_ms=-(-left_us // 1000),
            reserved="" if claim is None else claim.reserved,
            offset=offset,
            lag=part.end - first,
            age_ms=0 if arrived_us is None else max(0, now_us - arrived_us) // 1000,
            state=part.states.get(group, b"") if states else b"",
        )


def _check_group(group: str) -> None:
    """InvalidError if no group can be called that."""
    if not 0 < len(group.encode()) <= MAX_GROUP_BYTES:
        raise InvalidError(f"a group's name has 1 to {MAX_GROUP_BYTES} bytes")
