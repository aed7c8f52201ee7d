"""A client that goes to whoever it takes for the owner, and remembers what it was told."""

from __future__ import annotations

from collections import Counter

from tests.cluster.members.world import SHARDS, World

from penstock.errors import PenstockError

PRODUCER = 5
TRIES = 12


class Client:
    """Pushes with sequences and resends, pops, acks; `check` says what was broken."""

    def __init__(self, world: World, stream: int) -> None:
        self.world = world
        self.stream = stream
        self.pushed: set[bytes] = set()  # acknowledged
        self.sent: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.doubtful: set[bytes] = set()  # an ack got no answer
        self.wrong: list[str] = []
        self._next: Counter[int] = Counter()
        self._stuck: dict[int, bytes] = {}  # a push without an answer is resent before any other

    def work(self, steps: int) -> None:
        """Some pushes and pops, wherever that is possible now."""
        for _ in range(steps):
            if self.world.random.random() < 0.6:
                self.push(self.world.random.randrange(SHARDS))
            else:
                self.pop(self.world.random.choice(list(self.world.hosts)))

    def push(self, shard: int, tries: int = 1) -> bool:
        """One push, or the resend of one that got no answer."""
        world = self.world
        value = self._stuck.get(shard)
        if value is None:
            value = b"%d-%d" % (shard, self._next[shard])
            self.sent.add(value)
        for _ in range(tries):
            try:
                owner = self._owner(shard)
                world.push(owner, self.stream, shard, value, PRODUCER, self._next[shard])
            except (PenstockError, TimeoutError):
                self._stuck[shard] = value
                world.run(300_000)
            else:
                self._stuck.pop(shard, None)
                self._next[shard] += 1
                self.pushed.add(value)
                return True
        return False

    def _owner(self, shard: int) -> int:
        """As a random node sees it: maps are stale, and clients are on both sides."""
        up = [n for n, host in self.world.hosts.items() if host.member is not None]
        maps = [known for n in up if (known := self.world.map(n)).shards]
        return self.world.random.choice(maps).owner_of(shard) if maps else 1

    def pop(self, number: int) -> int:
        """Pops from a node and acks most of it."""
        try:
            found = self.world.pop(number, self.stream)
        except (PenstockError, TimeoutError):
            return 0
        for value, token in found:
            if value not in self.sent:
                self.wrong.append(f"{value!r} was never sent")
            if value in self.acked and value not in self.doubtful:
                self.wrong.append(f"{value!r} was delivered after its ack")
            if self.world.random.random() < 0.9:
                self._ack(number, value, token)
        return len(found)

    def _ack(self, number: int, value: bytes, token: bytes) -> None:
        try:
            if self.world.ack(number, token):
                self.acked[value] += 1
        except (PenstockError, TimeoutError):
            self.doubtful.add(value)

    def drain(self) -> None:
        """Everything works again: what is stuck is pushed, and all is popped and acked."""
        for shard in list(self._stuck):
            if not self.push(shard, TRIES):
                self.wrong.append(f"shard {shard} takes no push any more")
        quiet = 0
        while quiet < 4:
            got = sum(self.pop(number) for number in self.world.hosts)
            quiet = 0 if got else quiet + 1
            self.world.run(3_000_000)

    def check(self) -> list[str]:
        """What was promised and not kept."""
        wrong = list(self.wrong)
        gone = set(self.acked) | self.doubtful
        wrong += [f"{value!r} was acknowledged and is lost" for value in self.pushed - gone]
        wrong += [f"{v!r} was acked {n} times" for v, n in self.acked.items() if n > 1]
        return wrong
