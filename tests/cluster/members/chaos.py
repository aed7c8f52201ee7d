"""A whole life of a cluster under load: faults from a seed, then peace, then the reckoning."""

from __future__ import annotations

from tests.cluster.members.actors import TRIES, Actors
from tests.cluster.members.histories import Queue, Table, Topic
from tests.cluster.members.world import PACE, SHARDS, World

from penstock.engine.maintenance import Pace

PARTITIONS = 3
KEYS = (b"a", b"b", b"c")


class Chaos:
    """`run`, then `check`. `grow`: a fourth node joins, and another is drained, meanwhile."""

    def __init__(
        self, seed: int, rounds: int = 12, grow: bool = False, pace: Pace = PACE
    ) -> None:
        self.world = world = World(seed, pace=pace)
        world.slow = world.random.choice([0.0, 0.02, 0.2])
        self.rounds = rounds
        self.grow = grow
        self.actors = Actors(world)
        self.queue, self.topic, self.table = Queue(), Topic(), Table()
        self._queue, self._topic = world.queue("q"), world.topic("t", PARTITIONS)
        self._table = world.table("k")

    def run(self) -> Chaos:
        """Everything; what is left to say is in `check`."""
        self._begin()
        rng = self.world.random
        for number in range(self.rounds):
            self.world.run(rng.randint(10_000, 2_500_000))
            self._break()
            if self.grow and number == self.rounds // 3:
                self._heal()
                self.world.join(4)
            if self.grow and number == 2 * self.rounds // 3:
                self._heal()
                self.world.drain(rng.choice([1, 2, 3]))
        self._heal()
        self.world.run(20_000_000)
        self._finish()
        return self

    def _begin(self) -> None:
        actors = self.actors
        for shard in range(SHARDS):
            for name in (1, 2):
                producer = name * 1000 + shard
                actors.start(actors.producer(self.queue, self._queue, shard, producer))
        for _ in range(4):
            actors.start(actors.consumer(self.queue, self._queue))
        for partition in range(PARTITIONS):
            for name in (3, 4):
                producer = name * 1000 + partition
                actors.start(actors.producer(self.topic, self._topic, partition, producer))
            actors.start(actors.reader(self.topic, self._topic, partition))
        for name, key in enumerate(KEYS * 2):
            actors.start(actors.editor(self.table, self._table, key, name))

    def _break(self) -> None:
        world = self.world
        rng, numbers = world.random, list(world.hosts)
        number, chance = rng.choice(numbers), rng.random()
        if world.hosts[number].member is None:
            world.start(number)
        elif chance < 0.2:
            world.kill(number)
        elif chance < 0.35:
            world.lose_power(number)
        elif chance < 0.5:
            world.pause(number, rng.randint(10_000, 4_000_000))
        elif chance < 0.7:
            one, two = rng.sample(numbers, 2)
            world.part((one, two))
        elif chance < 0.85:
            world.part(*((number, other) for other in numbers if other != number))
        else:
            world.part()

    def _heal(self) -> None:
        world = self.world
        world.part()
        for number, host in world.hosts.items():
            host.paused_until_us = 0
            if host.member is None:
                world.start(number)
        world.run(3_000_000)

    def _finish(self) -> None:
        """What is under way is finished, and all is popped and acked."""
        world, actors = self.world, self.actors
        actors.stopping, world.slow = True, 0.0
        for _ in range(TRIES):
            if not actors.running:
                break
            world.run(2_000_000)
        for partition in range(PARTITIONS):
            actors.start(actors.reader(self.topic, self._topic, partition))
        quiet = 0
        while quiet < 3:
            before = len(self.queue.deliveries)
            for number in world.hosts:
                actors.start(actors.consume_once(self.queue, self._queue, number, 1.0))
            world.run(3_000_000)
            quiet = 0 if len(self.queue.deliveries) > before else quiet + 1

    def check(self) -> list[str]:
        """What was promised and not kept."""
        losses = self.world.power_losses
        wrong = [f"queue: {text}" for text in self.queue.check(losses)]
        wrong += [f"topic: {text}" for text in self.topic.check()]
        wrong += [f"table: {text}" for text in self.table.check()]
        if self.actors.running:
            wrong.append(f"{self.actors.running} clients are stuck")
        return wrong
