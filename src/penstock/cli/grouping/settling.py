"""Whether the group has settled: every partition has an owner that works on it, and the shares are
even."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock import ClaimStatus, Topic
from penstock.cli.grouping.load import GROUP
from penstock.errors import DeadlineError, UnavailableError

LOOK_SECONDS = 0.1
ANSWER_SECONDS = 2.0
AUDITS_SECONDS = 45.0  # one and a half: the longest until a member looks without news

Claims = Mapping[int, ClaimStatus]


@dataclass(frozen=True)
class Settled:
    """Seconds from the change until the shares were even, and until every partition had also been
    committed by the one who has it now."""

    even: float
    working: float
    shares: tuple[int, ...]


def bound_seconds(lease: float) -> float:
    """How long a group may take to settle: a session, a lease, and one and a half audits."""
    return 2 * lease + AUDITS_SECONDS


def shares_of(claims: Claims, members: Collection[str]) -> dict[str, int] | None:
    """How many partitions each member has; None if one is nobody's, or not theirs."""
    owners = [claim.owner if claim.left_ms else "" for claim in claims.values()]
    if not set(owners) <= set(members):
        return None
    counted = Counter(owners)
    return {member: counted[member] for member in members}


def is_even(shares: Mapping[str, int] | None) -> bool:
    """Whether shares differ by at most one."""
    return shares is not None and max(shares.values()) - min(shares.values()) <= 1


class Watch:
    """Looks at the claims of the group, as the nodes have them."""

    def __init__(self, topic: Topic, lease: float) -> None:
        self._topic = topic
        self.bound = bound_seconds(lease)

    def claims(self) -> dict[int, ClaimStatus]:
        """What can be asked for now; partitions of nodes that do not answer are left out."""
        try:
            return self._topic.claims(GROUP, within=ANSWER_SECONDS)
        except UnavailableError:
            return {}

    def owned_by(self, member: str) -> set[int]:
        """The partitions that a member has."""
        return {partition for partition, claim in self.claims().items() if claim.owner == member}

    def wait(self, members: Collection[str], since_s: float) -> Settled:
        """Waits until the group has settled on these members; DeadlineError if it does not.
        `since_s`: when the change was made, by the monotonic clock."""
        until = time.monotonic() + self.bound
        even_s = 0.0
        first_seen: dict[tuple[int, int], int] = {}  # offsets, by partition and token
        while True:
            claims = self.claims()
            shares = shares_of(claims, members) if self._complete(claims) else None
            if not is_even(shares):
                even_s = 0.0
            elif shares is not None:
                even_s = even_s or time.monotonic()
                if self._all_work(claims, first_seen):
                    now_s = time.monotonic()
                    ordered = tuple(sorted(shares.values()))
                    return Settled(even_s - since_s, now_s - since_s, ordered)
            if time.monotonic() >= until:
                raise DeadlineError(f"not settled within {self.bound:g} s: {shares}")
            time.sleep(LOOK_SECONDS)

    def _complete(self, claims: Claims) -> bool:
        return len(claims) == self._topic.partitions

    def _all_work(self, claims: Claims, first_seen: dict[tuple[int, int], int]) -> bool:
        """Whether every owner has committed something since it was first seen as such. (Where there
        is nothing to commit any more, nothing has to be.)"""
        work = True
        for partition, claim in claims.items():
            offset = claim.offset if claim.offset is not None else -1
            before = first_seen.setdefault((partition, claim.token), offset)
            work &= offset > before or claim.lag == 0
        return work

    def lag(self) -> int:
        """Messages that are not committed yet; 1 if not all nodes can be asked."""
        claims = self.claims()
        return sum(claim.lag for claim in claims.values()) if self._complete(claims) else 1
