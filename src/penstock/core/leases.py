"""Leases: who has which messages, until when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.core.books import ReservedGrants
from penstock.core.runs import Run, bits_of
from penstock.wire.frames import SettleItem
from penstock.wire.limits import MAX_BATCH_MESSAGES

SETTLED_KEPT = 1024  # finished grants that are remembered, so that a resent ack is known
SETTLED_BITS = 1 << 22  # and messages that they cover
SPARE_PLACES = 1000  # in lines, of grants that are over: so many are not worth a look


@dataclass(slots=True)
class Grant(Run):
    """A run that a consumer holds. A bit leaves the mask when its message is settled."""

    number: int = 0
    lease_us: int = 0
    deadline_us: int = 0
    acked: int = 0  # mask of what was acknowledged: a resent ack is known to be one
    extended: bool = False


class Leases:
    """The grants of one queue in one shard, and when they run out.

    Leases of equal length run out in the order in which they were given, so one plain queue per
    length replaces a heap. An extended grant is put in again; its old place is passed over.
    """

    __slots__ = (
        "_due", "_settled", "_settled_bits", "_stood", "grants", "messages", "next_number",
        "reserved",
    )  # fmt: skip

    def __init__(self, next_number: int = 1) -> None:
        self.grants: dict[int, Grant] = {}
        self.messages = 0
        self.next_number = next_number
        # Length of a lease: it again, and who has it. An extended grant stands with its deadline.
        self._due: dict[int, tuple[int, deque[int | tuple[int, int]]]] = {}
        self._stood = 0  # places that were taken in lines since somebody looked through all
        # Grant: its position and `acked`; of a single message only the position, to save memory.
        self._settled: dict[int, int | tuple[int, int]] = {}
        self._settled_bits = 0
        self.reserved = ReservedGrants()

    @property
    def reserved_messages(self) -> int:
        """Those of all that are leased which belong to reservations."""
        return sum(self.grants[number].messages for number in self.reserved)

    def give(self, number: int, run: Run, lease_us: int, now_us: int) -> Grant:
        """A grant of the run; its deliveries count goes up by one."""
        grant = Grant(run.position, run.mask, run.deliveries + 1, number, lease_us, 0)
        self.grants[number] = grant
        self.skip(number)
        self.messages += grant.messages
        self._stand_in_line(grant, lease_us, now_us).append(number)
        return grant

    def skip(self, number: int) -> None:
        """A grant of this number was given once: it is not given again."""
        self.next_number = max(self.next_number, number + 1)

    def extend(self, grant: Grant, lease_us: int, now_us: int) -> None:
        """The lease lasts `lease_us` from now on."""
        grant.extended = True
        line = self._stand_in_line(grant, lease_us, now_us)
        line.append((grant.deadline_us, grant.number))

    def _stand_in_line(
        self, grant: Grant, lease_us: int, now_us: int
    ) -> deque[int | tuple[int, int]]:
        self._stood += 1
        if self._stood > 2 * len(self.grants) + SPARE_PLACES:
            self._look_through()
        line = self._due.get(lease_us)
        if line is None:
            line = self._due[lease_us] = (lease_us, deque())
        grant.lease_us = line[0]  # one number object for all of them: there may be millions
        grant.deadline_us = now_us + lease_us
        return line[1]

    def _look_through(self) -> None:
        """Whoever only folds the log never looks at what ends first: what is over would stay."""
        self._stood = 0
        places = sum(len(line) for _, line in self._due.values())
        if places <= 2 * len(self.grants) + SPARE_PLACES:
            return
        for lease_us, (length, line) in list(self._due.items()):
            kept = [place for place in line if self._at(place) is not None]
            del self._due[lease_us]
            if kept:
                self._due[lease_us] = length, deque(kept)

    def settle(self, grant: Grant, bits: int, acked: bool) -> int:
        """Takes messages out of a grant. The bits that were still in it."""
        bits &= grant.mask
        grant.mask ^= bits
        if acked:
            grant.acked |= bits
        self.messages -= bits.bit_count()
        if not grant.mask:
            del self.grants[grant.number]
            self.reserved.ended(grant.number)
            if grant.acked:
                self._remember(grant.number, grant.position, grant.acked)
        return bits

    def acked(self, item: SettleItem) -> bool:
        """Whether these messages were acknowledged under this grant, not long ago."""
        position = item.position
        grant = self.grants.get(item.grant)
        first, mask = self._recall(item.grant)
        if grant is not None:
            first, mask = grant.position, grant.acked
        if not mask or not 0 <= position - first <= MAX_BATCH_MESSAGES:
            return False
        return not bits_of(position, item.count, item.mask, first) & ~mask

    def _remember(self, number: int, position: int, acked: int) -> None:
        self._settled[number] = position if acked == 1 else (position, acked)
        self._settled_bits += acked.bit_length()
        while len(self._settled) > SETTLED_KEPT or self._settled_bits > SETTLED_BITS:
            oldest = next(iter(self._settled))
            self._settled_bits -= self._recall(oldest)[1].bit_length()
            del self._settled[oldest]

    def _recall(self, number: int) -> tuple[int, int]:
        """Position and acknowledged messages of a settled grant; no messages if it is unknown."""
        known = self._settled.get(number, (0, 0))
        return (known, 1) if isinstance(known, int) else known

    def expired(self, now_us: int, most: int, messages: int) -> list[Grant]:
        """Grants whose time is over, at most so many, and no more when they have so many messages.

        They stay until they are settled.
        """
        over: dict[int, Grant] = {}  # extended twice in one moment, a grant stands here twice
        for lease_us in list(self._due):
            while (grant := self._first(lease_us)) is not None and grant.deadline_us <= now_us:
                if len(over) >= most or messages <= 0:
                    return list(over.values())
                self._due[lease_us][1].popleft()
                over[grant.number] = grant
                messages -= grant.messages
        return list(over.values())

    def _first(self, lease_us: int) -> Grant | None:
        """The first in this line; those that are settled, or stand elsewhere by now, leave it."""
        line = self._due[lease_us][1]
        while line:
            if (grant := self._at(line[0])) is not None:
                return grant
            line.popleft()
        del self._due[lease_us]
        return None

    def _at(self, place: int | tuple[int, int]) -> Grant | None:
        """The grant that stands at a place, if it does still."""
        if isinstance(place, int):
            grant = self.grants.get(place)
            return None if grant is None or grant.extended else grant
        grant = self.grants.get(place[1])
        return None if grant is None or grant.deadline_us != place[0] else grant

    def next_due(self) -> int | None:
        """When the next lease runs out."""
        firsts = [self._first(lease_us) for lease_us in list(self._due)]
        return min((grant.deadline_us for grant in firsts if grant is not None), default=None)

    def restart(self, now_us: int, first_grant: int) -> None:
        """After recovery: durations are kept, deadlines are not. All leases start anew.

        New grants are numbered from `first_grant` at least: grants that were given before and lost
        with the power must not be taken for them.
        """
        self.next_number = max(self.next_number, first_grant)
        self._due.clear()
        for grant in self.grants.values():
            grant.extended = False
            self._stand_in_line(grant, grant.lease_us, now_us).append(grant.number)

    def snapshot(self) -> dict[str, object]:
        """Plain data for `restore`."""
        settled = [(number, self._recall(number)) for number in self._settled]
        return {
            "grants": [
                (g.number, g.position, g.mask.to_bytes(g.span // 8 + 1, "little"), g.deliveries,
                 g.lease_us, _pack(g.acked))
                for g in self.grants.values()
            ],
            "next": self.next_number,
            "settled": [(n, first, _pack(mask)) for n, (first, mask) in settled],
            "reserved": self.reserved.snapshot(),
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
        reserved: list[object] = data.get("reserved", [])  # type: ignore[assignment]
        leases.reserved = ReservedGrants.restore(reserved)
        return leases


def _pack(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
