"""Leases: who has which messages, until when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.core.runs import Run, bits_of
from penstock.wire.frames import SettleItem
from penstock.wire.limits import MAX_BATCH_MESSAGES

SETTLED_KEPT = 1024  # finished grants that are remembered, so that a resent ack is known
SETTLED_BITS = 1 << 22  # and messages that they cover


@dataclass(slots=True)
class Grant(Run):
    """A run that a consumer holds. A bit leaves the mask when its message is settled."""

    number: int = 0
    lease_us: int = 0
    deadline_us: int = 0
    acked: int = 0  # mask of what was acknowledged: a resent ack is known to be one


class Leases:
    """The grants of one queue in one shard, and when they run out.

    Leases of equal length run out in the order in which they were given, so one plain queue per
    length replaces a heap. An extended grant is put in again; its old place is passed over.
    """

    __slots__ = ("_due", "_settled", "_settled_bits", "grants", "messages", "next_number")

    def __init__(self, next_number: int = 1) -> None:
        self.grants: dict[int, Grant] = {}
        self.messages = 0
        self.next_number = next_number
        self._due: dict[int, deque[tuple[int, int]]] = {}
        self._settled: dict[int, tuple[int, int]] = {}  # grant: its position and `acked`
        self._settled_bits = 0

    def give(self, number: int, run: Run, lease_us: int, now_us: int) -> Grant:
        """A grant of the run; its deliveries count goes up by one."""
        grant = Grant(run.position, run.mask, run.deliveries + 1, number, lease_us, 0)
        self.grants[number] = grant
        self.skip(number)
        self.messages += grant.messages
        self.extend(grant, lease_us, now_us)
        return grant

    def skip(self, number: int) -> None:
        """A grant of this number was given once: it is not given again."""
        self.next_number = max(self.next_number, number + 1)

    def extend(self, grant: Grant, lease_us: int, now_us: int) -> None:
        """The lease lasts `lease_us` from now on."""
        grant.lease_us = lease_us
        grant.deadline_us = now_us + lease_us
        self._due.setdefault(lease_us, deque()).append((grant.deadline_us, grant.number))

    def settle(self, grant: Grant, bits: int, acked: bool) -> int:
        """Takes messages out of a grant. The bits that were still in it."""
        bits &= grant.mask
        grant.mask ^= bits
        if acked:
            grant.acked |= bits
        self.messages -= bits.bit_count()
        if not grant.mask:
            del self.grants[grant.number]
            if grant.acked:
                self._remember(grant.number, grant.position, grant.acked)
        return bits

    def acked(self, item: SettleItem) -> bool:
        """Whether these messages were acknowledged under this grant, not long ago."""
        position = item.position
        grant = self.grants.get(item.grant)
        first, mask = self._settled.get(item.grant, (0, 0))
        if grant is not None:
            first, mask = grant.position, grant.acked
        if not mask or not 0 <= position - first <= MAX_BATCH_MESSAGES:
            return False
        return not bits_of(position, item.count, item.mask, first) & ~mask

    def _remember(self, number: int, position: int, acked: int) -> None:
        self._settled[number] = (position, acked)
        self._settled_bits += acked.bit_length()
        while len(self._settled) > SETTLED_KEPT or self._settled_bits > SETTLED_BITS:
            _, forgotten = self._settled.pop(next(iter(self._settled)))
            self._settled_bits -= forgotten.bit_length()

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

    def restart(self, now_us: int, first_grant: int) -> None:
        """After recovery: durations are kept, deadlines are not. All leases start anew.

        New grants are numbered from `first_grant` at least: grants that were given before and lost
        with the power must not be taken for them.
        """
        self.next_number = max(self.next_number, first_grant)
        self._due.clear()
        for grant in self.grants.values():
            self.extend(grant, grant.lease_us, now_us)

    def snapshot(self) -> dict[str, object]:
        """Plain data for `restore`."""
        return {
            "grants": [
                (g.number, g.position, g.mask.to_bytes(g.span // 8 + 1, "little"), g.deliveries,
                 g.lease_us, _pack(g.acked))
                for g in self.grants.values()
            ],
            "next": self.next_number,
            "settled": [(n, first, _pack(mask)) for n, (first, mask) in self._settled.items()],
        }  # fmt: skip

    @classmethod
    def restore(cls, data: dict[str, object]) -> Leases:
        """The leases that made this snapshot; call `restart` before use."""
        leases = cls()
        rows: list[tuple[int, int, bytes, int, int, bytes]] = data["grants"]  # type: ignore[assignment]
        for number, position, mask, deliveries, lease_us, acked in rows:
            run = Run(position, int.from_bytes(mask, "little"), deliveries - 1)
            leases.give(number, run, lease_us, 0).acked = int.from_bytes(acked, "little")
        leases.next_number = data["next"]  # type: ignore[assignment]
        settled: list[tuple[int, int, bytes]] = data["settled"]  # type: ignore[assignment]
        for number, position, acked in settled:
            leases._remember(number, position, int.from_bytes(acked, "little"))
        return leases


def _pack(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
