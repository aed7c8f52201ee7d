"""What a node does for a group: claims, by the partitions of the production core, and members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.consumers.claim_events import Claimed
from penstock.consumers.membership import Member
from penstock.core.partition import ClaimState, Partition
from penstock.core.queue import Totals
from penstock.errors import ConflictError
from penstock.sim.world import World
from penstock.wire.messages import TopicOptions

GROUP = "group"
FRESH_US = 50_000


@dataclass(slots=True)
class Session:
    """A member's entry, which is there as long as it is heard of."""

    member: Member
    until_us: int


class GroupNode:
    """All partitions of a topic, and the table of a group's members.

    `granted` is told of every new owner, `changed` of every change of the table."""

    def __init__(
        self,
        world: World,
        partitions: int,
        session_us: int,
        granted: Callable[[int, str, str], None],
        changed: Callable[[], None],
    ) -> None:
        self.world = world
        self.down = False
        self.calls: Counter[str] = Counter()
        self.sessions: dict[str, Session] = {}
        self.partitions = [
            Partition(1, number, TopicOptions(partitions), Totals(lambda places: None))
            for number in range(partitions)
        ]
        self.progress_us = dict.fromkeys(range(partitions), 0)  # the last commit that counted
        self.last_grant: dict[int, tuple[int, str]] = {}  # noted apart from the core's own state
        self.fenced = 0
        self.wrong: list[str] = []
        self._shown: dict[int, Claimed] = {}
        self._shown_us = -FRESH_US
        self._session_us = session_us
        self._granted = granted
        self._changed = changed

    # --- claims ----------------------------------------------------------------------------

    def state(self, partition: int) -> ClaimState | None:
        """The claim on a partition."""
        return self.partitions[partition].claims.get(GROUP)

    def claims(self) -> dict[int, Claimed]:
        """All claims. What is left of leases may be from a moment ago: hundreds of members ask."""
        now_us = self.world.now_us
        if now_us >= self._shown_us + FRESH_US:
            self._shown_us = now_us
            self._shown = {number: self._show(number) for number in range(len(self.partitions))}
        return self._shown.copy()

    def _show(self, number: int) -> Claimed:
        claim = self.partitions[number].claims.get(GROUP)
        if claim is None:
            return Claimed("", 0)
        return Claimed(claim.owner, claim.token, max(0, claim.deadline_us - self.world.now_us))

    def claim(self, number: int, owner: str, lease_us: int) -> tuple[int, str]:
        """The token, or 0 and who has it."""
        self.calls["claim"] += 1
        partition, now_us = self.partitions[number], self.world.now_us
        token, holder = partition.decide_claim(GROUP, owner, 0, now_us)
        if holder is not None:
            self.calls["refused"] += 1
            return 0, holder
        before = self.last_grant.get(number, (0, ""))
        partition.claimed(GROUP, owner, token, lease_us, now_us)
        self._shown[number] = self._show(number)
        if before == (token, owner):  # it did not hear the answer, and asks again
            return token, owner
        if token <= before[0]:
            self.wrong.append(f"partition {number}: token {token} after {before[0]}")
        self.last_grant[number] = (token, owner)
        self._granted(number, before[1], owner)
        return token, owner

    def renew(
        self, owner: str, claims: Sequence[tuple[int, int]], lease_us: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The claims that last again, and those that are over."""
        self.calls["renew"] += 1
        renewed, refused = [], []
        for number, token in claims:
            partition = self.partitions[number]
            try:
                partition.decide_claim(GROUP, owner, token, self.world.now_us)
            except ConflictError:
                refused.append((number, token))
            else:
                partition.claimed(GROUP, owner, token, lease_us, self.world.now_us)
                renewed.append((number, token))
        return renewed, refused

    def release(self, number: int, token: int) -> None:
        """Gives a claim up, if it is the current one."""
        self.calls["release"] += 1
        claim = self.state(number)
        if claim is not None and claim.token == token and claim.owner:
            self.partitions[number].claimed(GROUP, "", token, 0, self.world.now_us)
            self._shown[number] = self._show(number)

    def commit(self, owner: str, claims: Sequence[tuple[int, int]]) -> None:
        """Commits progress under claims; those that were replaced are refused."""
        now_us = self.world.now_us
        for number, token in claims:
            try:
                self.partitions[number].check_commit(GROUP, 0, token, now_us)
            except ConflictError:
                self.fenced += 1
                continue
            if self.last_grant[number] != (token, owner):
                self.wrong.append(
                    f"partition {number}: a commit of {owner} under {token} was accepted; the last "
                    f"grant is {self.last_grant[number]}"
                )
            self.progress_us[number] = now_us

    # --- members ---------------------------------------------------------------------------

    def members(self) -> dict[str, Member]:
        """The table."""
        return {name: session.member for name, session in self.sessions.items()}

    def register(self, member: Member) -> None:
        """Puts an entry there, or changes it."""
        session = self.sessions.get(member.id)
        if session is None or session.member != member:
            self.sessions[member.id] = Session(member, self.world.now_us + self._session_us)
            self._changed()

    def beat(self, name: str) -> None:
        """A member lives; one whose session is over has to register again."""
        session = self.sessions.get(name)
        if session is not None:
            session.until_us = self.world.now_us + self._session_us

    def remove(self, name: str) -> None:
        """Takes an entry out."""
        if self.sessions.pop(name, None) is not None:
            self._changed()

    def expire(self) -> None:
        """Takes out who was not heard of."""
        now_us = self.world.now_us
        gone = [name for name, session in self.sessions.items() if session.until_us <= now_us]
        for name in gone:
            self.remove(name)

    def restart(self) -> None:
        """It is back: leases and sessions last their whole length again."""
        self.down = False
        for partition in self.partitions:
            partition.restart(self.world.now_us)
        for session in self.sessions.values():
            session.until_us = self.world.now_us + self._session_us
