"""What a group agrees on: times, bounds, and what shares go by. The same for all its members."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.consumers.loads import THRESHOLD
from penstock.consumers.schedule import Schedule
from penstock.errors import InvalidError

RENEWALS = 4  # in one lease: three of them may get lost


@dataclass(frozen=True, slots=True)
class Rules:
    """Times are of a member's own clock, which may run differently by less than the margin within a
    lease."""

    lease_us: int = 10_000_000
    margin_us: int = 1_000_000  # processing stops so long before the lease could be over
    quiet_us: int = 200_000  # after a change of membership, until it is looked at
    pace_us: int = 2_000  # for each member: how far the looks of all are spread
    check_us: int = 1_000_000  # until it is seen whether a plan was carried out; doubles
    audit_us: int = 30_000_000  # between looks when there is nothing to do
    answer_us: int = 2_000_000  # after that an answer is taken for lost
    handover_us: int = 5_000_000  # a longer one is not waited for
    max_calls: int = 32  # claims, and releases, that wait for an answer
    max_handovers: int = 8  # partitions that stand still at the same time to be handed over
    by_load: bool = False  # shares are even by load, not by count
    threshold: float = THRESHOLD  # of the imbalance that loads may have
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        """InvalidError if claims could not be kept with these."""
        if self.lease_us < 1000 or not 0 < self.margin_us <= self.lease_us // 2:
            raise InvalidError("a lease lasts a millisecond or more; the margin is at most half")
        waits = (self.quiet_us, self.pace_us, self.check_us, self.answer_us, self.handover_us)
        if min(waits) <= 0 or self.audit_us < self.check_us:
            raise InvalidError("waits are longer than nothing, and audits rarer than checks")
        if self.max_calls < 1 or self.max_handovers < 1 or self.threshold <= 0:
            raise InvalidError("max_calls, max_handovers and the threshold are above 0")

    @property
    def renew_us(self) -> int:
        """Between renewals."""
        return self.lease_us // RENEWALS
