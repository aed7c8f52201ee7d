"""Actors that stage and publish, and that read reservations, through the client that users have."""

from __future__ import annotations

import asyncio

from penstock.client.aio_stages import AsyncQueueStage, AsyncTopicStage
from penstock.client.aio_streams import AsyncQueue
from penstock.client.messages import LeasedMessage
from penstock.client.ops_reserve import ReservedReader
from penstock.client.stages import StageToken
from penstock.errors import ConflictError, NotFoundError, PenstockError
from penstock.sim.attempts import KEY, Attempt, Commits, Holds
from penstock.sim.cluster.growth import KEYS
from penstock.sim.cluster.stage import RETRY_S, Actor
from penstock.sim.staged import EXPIRES_S
from penstock.wire.messages import Reservation

TRIES = 8


class Committer(Actor):
    """Attempt after attempt, against others: stages, and publishes once it is all there."""

    keys = 0

    async def run(self) -> None:
        """Until the work is over."""
        stream = await self.open()
        commits = Commits(self.history, self.world, self.stream.name, self.name, self.keys)
        while self.busy:
            await self.rest(2_500_000)
            attempt = commits.begin(self.world.between(1, 2))
            tokens: list[StageToken] = []
            try:
                for pushes in attempt.pushes:
                    stage = stream.stage(EXPIRES_S)
                    keys = [push.key for push in pushes] if self.keys else None
                    await self._stage(stage, commits.bytes_of(pushes), keys)
                    tokens.append(stage.token)
                if self.world.chance(0.1):  # it is forgotten, or dropped
                    await self.fabric.discard_staged(tokens)
                    continue
            except PenstockError:
                continue
            if self.keys and self.world.chance(0.5):  # it may grow meanwhile
                await self.rest(10_000_000)
            await self._publish(attempt, tokens, commits)

    async def _stage(
        self, stage: AsyncTopicStage | AsyncQueueStage, values: list[bytes],
        keys: list[bytes | None] | None,
    ) -> None:  # fmt: skip
        size = self.world.between(1, 4)
        if isinstance(stage, AsyncTopicStage):
            await stage.publish_many(values, keys=keys, batch=size)
        else:
            await stage.push_many(values, batch=size)

    async def _publish(
        self, attempt: Attempt, tokens: list[StageToken], commits: Commits
    ) -> None:
        for _ in range(TRIES):
            try:
                told = await self.fabric.publish_staged(self._key, attempt.number, tokens)
            except NotFoundError as error:
                message = f"a stage that nobody dropped cannot be published: {error}"
                self.history.surprises.append(message)
                return
            except PenstockError:
                await asyncio.sleep(RETRY_S)
            else:
                commits.told(attempt, told)
                return

    @property
    def _key(self) -> str:
        return f"{KEY}-{self.stream.name}"


class KeyCommitter(Committer):
    """Stages by key, in a topic that grows meanwhile."""

    keys = KEYS


class Reserver(Actor):
    """Reserves, reads, perhaps once more, and finishes; others do the same under the same key."""

    async def run(self) -> None:
        """Until the work is over."""
        queue = await self.open_queue()
        holds = Holds(self.history, self.world, self.stream.name, self.stream.level)
        while self.busy:
            await self.rest(2_500_000)
            try:
                await self._once(queue, holds)
            except PenstockError:  # finished by another, or no answer
                await asyncio.sleep(RETRY_S)

    async def _once(self, queue: AsyncQueue, holds: Holds) -> None:
        number = holds.next - self.world.random.choice([0, 0, 1])
        if number < 1:
            return
        found = await reserve(queue, holds, number, self.world.between(1, 20))
        if found is None:
            return
        if self.world.chance(0.5):
            await self.rest(3_000_000)
            await read(queue, holds, found)
        if self.world.chance(0.6):
            noted = holds.ending(holds.through(number), "ack")
            await queue.finish(KEY, number)
            holds.ended(noted)
        elif self.world.chance(0.3):
            await release(queue, holds, [number])


async def reserve(
    queue: AsyncQueue, holds: Holds, number: int, messages: int
) -> Reservation | None:
    """A reservation, read once; None if there was nothing."""
    hold = holds.asked(number)
    found = await queue.reserve(KEY, number, messages)
    if found is None:
        holds.found_nothing(hold)
    else:
        await read(queue, holds, found)
    return found


async def read(queue: AsyncQueue, holds: Holds, found: Reservation) -> None:
    """All messages of a reservation."""
    messages: list[LeasedMessage] = []
    for part in found.parts:
        reader = ReservedReader(queue, KEY, found.number, part)
        while parts := await queue._run(reader.grants()):
            messages += LeasedMessage.all_of(parts)
    holds.read(holds.asked(found.number), messages)


async def release(queue: AsyncQueue, holds: Holds, numbers: list[int]) -> None:
    """Gives reservations back."""
    noted = holds.ending(numbers, "nack")
    await queue.unreserve(KEY, numbers)
    holds.ended(noted)


async def end_reservations(queue: AsyncQueue, holds: Holds) -> None:
    """In the last act: what was leased for the next one is sealed, and all are given back."""
    for _ in range(2):
        opened = await queue.reservations()
        last = max((each.number for each in opened), default=0)
        try:
            await reserve(queue, holds, max(holds.next, last + 1), 1)
        except (ConflictError, NotFoundError):
            continue
    opened = await queue.reservations()
    if opened:
        await release(queue, holds, [each.number for each in opened])
