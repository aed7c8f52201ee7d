"""Leases: who has which messages, until when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.core.runs import Run

SETTLED_KEPT = 1024  # finished grants that are remembered, so that a resent ack is known


@dataclass(slots=True)
class Grant(Run):
    """A run that a consumer holds. A bit leaves the mask when its message is settled."""

    number: int = 0
    lease_us: int = 0
    deadline_us: int = 0
    only_acks: bool = True  # so far nothing was given back: a resent ack is known to be one


class Leases:
    """The grants of one queue in one shard, and when they run out.

    Leases of equal length run out in the order in which they were given, so one plain queue per
    length replaces a heap. An extended grant is put in again; its old place is passed over.
    """

    __slots__ = ("_due", "_settled", "_settled_order", "grants", "messages", "next_number")

    def __init__(self, next_number: int = 1) -> None:
        self.grants: dict[int, Grant] = {}
        self.messages = 0
        self.next_number = next_number
        self._due: dict[int, deque[tuple[int, int]]] = {}
        self._settled: set[int] = set()
        self._settled_order: deque[int] = deque()

    def give(self, number: int, run: Run, lease_us: int, now_us: int) -> Grant:
        """A grant of the run; its deliveries count goes up by one."""
        grant = Grant(run.position, run.mask, run.deliveries + 1, number, lease_us, 0)
        self.grants[number] = grant
        self.next_number = max(self.next_number, number + 1)
        self.messages += grant.messages
        self.extend(grant, lease_us, now_us)
        return grant

    def extend(self, grant: Grant, lease_us: int, now_us: int) -> None:
        """The lease lasts `lease_us` from now on."""
        grant.lease_us = lease_us
        grant.deadline_us = now_us + lease_us
        self._due.setdefault(lease_us, deque()).append((grant.deadline_us, grant.number))

    def settle(self, grant: Grant, bits: int, acked: bool) -> int:
        """Takes messages out of a grant. The bits that were still in it."""
        bits &= grant.mask
        grant.mask ^= bits
        grant.only_acks &= acked
        self.messages -= bits.bit_count()
        if not grant.mask:
            del self.grants[grant.number]
            if grant.only_acks:
                self._remember(grant.number)
        return bits

    def acked(self, number: int) -> bool:
        """Whether all of this grant was acknowledged, not long ago."""
        return number in self._settled

    def _remember(self, number: int) -> None:
        self._settled.add(number)
        self._settled_order.append(number)
        if len(self._settled_order) > SETTLED_KEPT:
            self._settled.discard(self._settled_order.popleft())

    def expired(self, now_us: int) -> list[Grant]:
        """Grants whose time is over. They stay until they are settled."""
        over: dict[int, Grant] = {}  # one may be in line twice with the same deadline
        for lease_us in list(self._due):
            queue = self._due[lease_us]
            while queue and queue[0][0] <= now_us:
                deadline_us, number = queue.popleft()
                grant = self.grants.get(number)
                if grant is not None and grant.deadline_us == deadline_us:
                    over[number] = grant
            if not queue:
                del self._due[lease_us]
        return list(over.values())

    def next_due(self) -> int | None:
        """When the next lease may run out."""
        return min((queue[0][0] for queue in self._due.values() if queue), default=None)

    def restart(self, now_us: int) -> None:
        """After recovery: durations are kept, deadlines are not. All leases start anew."""
        self._due.clear()
        for grant in self.grants.values():
            self.extend(grant, grant.lease_us, now_us)

    def snapshot(self) -> dict[str, object]:
        """Plain data for `restore`."""
        return {
            "grants": [
                (g.number, g.position, g.mask.to_bytes(g.span // 8 + 1, "little"), g.deliveries,
                 g.lease_us, g.only_acks)
                for g in self.grants.values()
            ],
            "next": self.next_number,
            "settled": list(self._settled),
        }  # fmt: skip

    @classmethod
    def restore(cls, data: dict[str, object]) -> Leases:
        """The leases that made this snapshot; call `restart` before use."""
        leases = cls()
        rows: list[tuple[int, int, bytes, int, int, bool]] = data["grants"]  # type: ignore[assignment]
        for number, position, mask, deliveries, lease_us, only_acks in rows:
            run = Run(position, int.from_bytes(mask, "little"), deliveries - 1)
            leases.give(number, run, lease_us, 0).only_acks = only_acks
        leases.next_number = data["next"]  # type: ignore[assignment]
        for number in data["settled"]:  # type: ignore[attr-defined]
            leases._remember(number)
        return leases
