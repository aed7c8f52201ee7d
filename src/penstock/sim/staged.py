"""Actors that stage and publish, and that read reservations."""

from __future__ import annotations

from penstock.client import ops_reserve, ops_stage
from penstock.client.messages import LeasedMessage
from penstock.client.ops_push import push_many
from penstock.client.ops_reserve import ReservedReader
from penstock.client.stages import STAGE_BYTES, StageState, StageToken
from penstock.client.state import FabricState, QueueState, TopicState
from penstock.errors import ConflictError, NotFoundError, PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.attempts import KEY, Attempt, Commits, Holds
from penstock.sim.client import Script, Sleep
from penstock.sim.growth import KEYS
from penstock.wire.messages import Reservation

EXPIRES_S = 100_000.0  # longer than any run
TRIES = 8


class Committer(Actor):
    """Attempt after attempt, against others: stages, and publishes once it is all there."""

    keys = 0

    def run(self) -> Script[None]:
        """Until the work is over."""
        opened = self.open_topic() if self.stream.kind == "topic" else self.open_queue()
        stream = yield from opened
        commits = Commits(self.history, self.world, self.stream.name, self.client.name, self.keys)
        while self.busy:
            yield from self.rest(500_000)
            attempt = commits.begin(self.world.between(1, 2))
            try:
                tokens = yield from self._stage(stream, attempt, commits)
            except PenstockError:
                continue
            if self.world.chance(0.1):  # it is forgotten, or dropped
                yield from self._drop(stream._fabric, tokens)
            else:
                if self.keys and self.world.chance(0.5):  # it may grow meanwhile
                    yield from self.rest(2_000_000)
                yield from self._publish(stream._fabric, attempt, tokens, commits)

    def _stage(
        self, stream: QueueState | TopicState, attempt: Attempt, commits: Commits
    ) -> Script[list[StageToken]]:
        tokens: list[StageToken] = []
        for pushes in attempt.pushes:
            stage = StageState(stream, EXPIRES_S)
            stage.id = self.world.random.randbytes(STAGE_BYTES)
            values, size = commits.bytes_of(pushes), self.world.between(1, 4)
            keys = [push.key for push in pushes] if self.keys else None
            yield from stage._counted(push_many(stage, values, keys=keys, batch=size))
            tokens.append(stage.token)
        return tokens

    def _publish(
        self, fabric: FabricState, attempt: Attempt, tokens: list[StageToken], commits: Commits
    ) -> Script[None]:
        for _ in range(TRIES):
            try:
                steps = ops_stage.publish_staged(fabric, self._key, attempt.number, tokens)
                commits.told(attempt, (yield from steps))
                return
            except (NotFoundError, ConflictError) as error:
                message = f"a stage that nobody dropped cannot be published: {error}"
                self.history.surprises.append(message)
                return
            except PenstockError:
                yield Sleep(RETRY_US)

    @property
    def _key(self) -> str:
        return f"{KEY}-{self.stream.name}"

    def _drop(self, fabric: FabricState, tokens: list[StageToken]) -> Script[None]:
        try:
            yield from ops_stage.discard_staged(fabric, tokens)
        except PenstockError:
            return


class KeyCommitter(Committer):
    """Stages by key, in a topic that grows meanwhile."""

    keys = KEYS


class Reserver(Actor):
    """Reserves, reads, perhaps once more, and finishes; others do the same under the same key."""

    def run(self) -> Script[None]:
        """Until the work is over."""
        queue = yield from self.open_queue()
        holds = Holds(self.history, self.world, self.stream.name, self.stream.level)
        while self.busy:
            yield from self.rest(600_000)
            try:
                yield from self._once(queue, holds)
            except PenstockError:  # finished by another, or no answer
                yield Sleep(RETRY_US)

    def _once(self, queue: QueueState, holds: Holds) -> Script[None]:
        number = holds.next - self.world.random.choice([0, 0, 1])
        if number < 1:
            return
        found = yield from reserve(queue, holds, number, self.world.between(1, 20))
        if found is None:
            return
        if self.world.chance(0.5):
            yield from self.rest(1_000_000)
            yield from read(queue, holds, found)
        if self.world.chance(0.6):
            yield from finish(queue, holds, number)
        elif self.world.chance(0.3):
            yield from release(queue, holds, [number])


def reserve(
    queue: QueueState, holds: Holds, number: int, messages: int
) -> Script[Reservation | None]:
    """A reservation, read once; None if there was nothing."""
    hold = holds.asked(number)
    found = yield from ops_reserve.reserve(queue, KEY, number, messages)
    if found is not None:
        yield from read(queue, holds, found)
    else:
        holds.found_nothing(hold)
    return found


def read(queue: QueueState, holds: Holds, found: Reservation) -> Script[None]:
    """All messages of a reservation."""
    messages: list[LeasedMessage] = []
    for part in found.parts:
        reader = ReservedReader(queue, KEY, found.number, part)
        while parts := (yield from reader.grants()):
            messages += LeasedMessage.all_of(parts)
    holds.read(holds.asked(found.number), messages)


def finish(queue: QueueState, holds: Holds, through: int) -> Script[None]:
    """Acknowledges all up to a number."""
    noted = holds.ending(holds.through(through), "ack")
    yield from ops_reserve.finish(queue, KEY, through)
    holds.ended(noted)


def release(queue: QueueState, holds: Holds, numbers: list[int]) -> Script[None]:
    """Gives reservations back."""
    noted = holds.ending(numbers, "nack")
    yield from ops_reserve.unreserve(queue, KEY, numbers)
    holds.ended(noted)


def end_reservations(queue: QueueState, holds: Holds) -> Script[None]:
    """In the last act: what was leased for the next one is sealed, and all are given back."""
    for _ in range(2):
        opened = yield from ops_reserve.reservations(queue)
        last = max((each.number for each in opened), default=0)
        try:
            yield from reserve(queue, holds, max(holds.next, last + 1), 1)
        except ConflictError:
            continue
    opened = yield from ops_reserve.reservations(queue)
    if opened:
        yield from release(queue, holds, [each.number for each in opened])
