"""Whether the group has settled: every partition has an owner that works on it, and the shares are
even."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock import ClaimStatus, Topic
from penstock.cli.grouping.load import GROUP
from penstock.cli.grouping.publishing import ROUND_SECONDS
from penstock.errors import DeadlineError, UnavailableError

LOOK_SECONDS = 0.1
ANSWER_SECONDS = 2.0
LULL_SECONDS = 3 * ROUND_SECONDS  # whatever is published comes more often
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


class Work:
    """Whether owners work: what each has committed since it was first seen as the owner."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[int, float]] = {}  # by partition and token

    def of_all(self, claims: Claims, now_s: float) -> bool:
        """Whether each has committed something new, or had nothing to commit for a while. (That
        nothing is left to read says little at first: the owner before may have read it.)"""
        work = True
        for partition, claim in claims.items():
            offset = -1 if claim.offset is None else claim.offset
            before, since_s = self._first.setdefault((partition, claim.token), (offset, now_s))
            lull = claim.lag == 0 and now_s - since_s >= LULL_SECONDS
            work &= offset > before or lull
        return work


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
        work = Work()
        while True:
            claims = self.claims()
            all_work = work.of_all(claims, time.monotonic())
            shares = shares_of(claims, members) if self._complete(claims) else None
            if not is_even(shares):
                even_s = 0.0
            elif shares is not None:
                even_s = even_s or time.monotonic()
                if all_work:
                    now_s = time.monotonic()
                    ordered = tuple(sorted(shares.values()))
                    return Settled(even_s - since_s, now_s - since_s, ordered)
            if time.monotonic() >= until:
                raise DeadlineError(f"not settled within {self.bound:g} s: {shares}")
            time.sleep(LOOK_SECONDS)

    def _complete(self, claims: Claims) -> bool:
        return len(claims) == self._topic.partitions

    def not_begun(self) -> int:
        """Partitions of which nothing that was published is committed yet."""
        claims = self.claims()
        return self._topic.partitions - sum(bool(claim.offset) for claim in claims.values())

    def lag(self) -> int:
        """Messages that are not committed yet; 1 if not all nodes can be asked."""
        claims = self.claims()
        return sum(claim.lag for claim in claims.values()) if self._complete(claims) else 1
