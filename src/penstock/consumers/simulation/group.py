"""A whole group in one world: its node, its members, the network between them, and the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.consumers import claim_events as e
from penstock.consumers.intentions import make_plan
from penstock.consumers.membership import Member
from penstock.consumers.rules import Rules
from penstock.consumers.simulation.host import Host
from penstock.consumers.simulation.node import GroupNode
from penstock.sim.world import World

SESSION_US = 6_000_000
MAX_WRONG = 20


@dataclass
class Weather:
    """What becomes of messages."""

    latency_us: int = 3_000  # typical
    loss: float = 0.0
    twice: float = 0.0


class Group:
    """Members that come and go, and what is wrong with what they do."""

    def __init__(
        self,
        seed: int,
        partitions: int,
        rules: Rules | None = None,
        session_us: int = SESSION_US,
        drift: float = 0.005,
    ) -> None:
        self.world = World(seed)
        self.rules = rules or Rules()
        self.session_us = session_us
        self.drift = drift  # how much faster or slower a member's clock runs at most
        self.weather = Weather()
        self.hosts: dict[str, Host] = {}
        self.counted: Counter[str] = Counter()  # actions of all members, and notices
        self.gaps_us: list[int] = []  # how long partitions stood still between two owners
        self.loads: dict[int, float] = {}  # by partition, if shares go by load
        self.wrong: list[str] = []
        self._stopped_us: dict[int, int] = {}
        self._names = 0
        self.node = GroupNode(self.world, partitions, session_us, self._granted, self._changed)
        self._keep_time()

    # --- network ---------------------------------------------------------------------------

    def send(self, arrive: Callable[[], None]) -> None:
        """A message between a member and the node, or another member: later, never, or twice."""
        world, weather = self.world, self.weather

        def deliver() -> None:
            if not self.node.down:
                arrive()

        if not (weather.loss and world.chance(weather.loss)):
            world.after(world.latency(weather.latency_us), deliver)
        if weather.twice and world.chance(weather.twice):
            world.after(world.latency(20 * weather.latency_us), deliver)

    def tell(self, name: str, event: e.Event) -> None:
        """A message from one member to another."""
        host = self.hosts.get(name)
        if host is not None:
            self.send(lambda: host.take(event))

    def _changed(self) -> None:
        for host in self.live:
            self.counted["notice"] += 1
            self.send(partial(host.take, e.MembersChanged()))

    def _keep_time(self) -> None:
        if not self.node.down:
            self.node.expire()
        self.world.after(250_000, self._keep_time)

    # --- members ---------------------------------------------------------------------------

    @property
    def live(self) -> list[Host]:
        """Members that are not gone."""
        return [host for host in self.hosts.values() if host.up]

    def join(self, count: int = 1, weight: int = 1) -> list[Host]:
        """New members."""
        joined = []
        for _ in range(count):
            self._names += 1
            host = Host(self, Member(f"member-{self._names:04}", weight))
            self.hosts[host.member.id] = host
            joined.append(host)
        return joined

    def some(self, count: int) -> list[Host]:
        """Members by chance, that run and stay."""
        running = [h for h in self.live if not h.paused and h.member.drain is None]
        return self.world.random.sample(running, min(count, len(running)))

    def forget_gone(self) -> None:
        """Lets go of those that are not there any more."""
        self.hosts = {name: host for name, host in self.hosts.items() if host.up}

    # --- checks ----------------------------------------------------------------------------

    def _granted(self, partition: int, before: str, owner: str) -> None:
        host = self.hosts.get(before)
        if before != owner and host is not None and not host.paused and host.processes(partition):
            self._note(f"partition {partition} is {owner}'s, and {before} goes on with it")

    def check_work(self, host: Host, claims: Sequence[tuple[int, int]]) -> None:
        """A member processes these at this moment: each must be its own, by the node's clock."""
        now_us, name = self.world.now_us, host.member.id
        for number, token in claims:
            claim = self.node.state(number)
            if claim is None or (claim.owner, claim.token) != (name, token):
                self._note(f"{name} processes {number} under {token}, but {claim} counts")
            elif claim.deadline_us <= now_us:
                self._note(f"{name} processes {number}, and its lease ended {claim.deadline_us}")

    def _note(self, text: str) -> None:
        if len(self.wrong) < MAX_WRONG:
            self.wrong.append(f"{self.world.elapsed_us / 1e6:.3f} s: {text}")

    def stopped(self, host: Host, partition: int) -> None:
        """A member does not process a partition any more: if it was the last to have it, nobody
        does."""
        if self.node.last_grant[partition][1] == host.member.id:
            self._stopped_us[partition] = self.world.now_us

    def started(self, partition: int) -> None:
        """Somebody processes it from now on."""
        since_us = self._stopped_us.pop(partition, None)
        if since_us is not None:
            self.gaps_us.append(self.world.now_us - since_us)

    @property
    def problems(self) -> list[str]:
        """Everything that was wrong so far."""
        return self.wrong + self.node.wrong

    def owners(self) -> dict[int, str]:
        """Who has what, by the node."""
        claims = self.node.claims()
        return {number: claim.owner for number, claim in claims.items() if claim.left_us}

    def unsettled(self) -> str:
        """Why the group is not settled: members, owners, shares; empty if it is."""
        staying = {host.member.id: host for host in self.live}
        if self.node.members() != {name: host.member for name, host in staying.items()}:
            return "the table does not have all members as they are, or has others"
        if any(host.member.drain is not None or host.paused for host in staying.values()):
            return "somebody drains, or is paused"
        holders = {}
        for number in range(len(self.node.partitions)):
            claim = self.node.state(number)
            host = staying.get(claim.owner) if claim is not None else None
            if host is None or claim is None or host.running.get(number) != claim.token:
                return f"partition {number} is not processed: {claim}"
            holders[number] = claim.owner
        moves = make_plan(self.look(0), holders, self.rules).moves(holders)
        return f"{len(moves)} partitions have to move" if moves else ""

    def look(self, asked_us: int) -> e.Looked:
        """The group as it is."""
        node, now_us = self.node, self.world.now_us
        numbers = range(len(node.partitions))
        return e.Looked(node.members(), numbers, node.claims(), now_us, asked_us, self.loads)

    def settle(self, limit_us: int, step_us: int = 100_000) -> int | None:
        """Lets time pass until the group is settled: how long that took; None: longer than that."""
        begun_us = self.world.now_us
        while self.unsettled():
            if self.world.now_us - begun_us >= limit_us:
                return None
            self.world.run(self.world.now_us + step_us)
        return self.world.now_us - begun_us
