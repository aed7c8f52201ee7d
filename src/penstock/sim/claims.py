"""Group members that claim partitions, read on where the group stands, and commit."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import ops_group, ops_topic
from penstock.client.state import TopicState
from penstock.errors import ConflictError, PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Script, Sleep
from penstock.sim.history import Claim

GROUP = "group"
LEASE_US = 1_500_000


@dataclass
class Member(Actor):
    """Claims a partition, works, stalls, and sometimes goes on although it was replaced."""

    partition: int = 0

    def run(self) -> Script[None]:
        """Until the work is over."""
        topic = yield from self.open_topic()
        while self.busy:
            yield from self.rest(200_000)
            try:
                token = yield from self._claim(topic, 0)
                if token:
                    yield from self._work(topic, token)
            except PenstockError:
                yield Sleep(RETRY_US)

    def _note(self, op: str, token: int, offset: int = -1) -> Claim:
        noted = Claim(
            op, self.stream.name, self.partition, self.client.name, token, self.world.now_us,
            LEASE_US, offset,
        )  # fmt: skip
        self.history.claims.append(noted)
        return noted

    def _ended(self, noted: Claim, accepted: bool) -> None:
        noted.accepted, noted.done_us = accepted, self.world.now_us

    def _claim(self, topic: TopicState, token: int) -> Script[int]:
        noted = self._note("renew" if token else "claim", token)
        info = yield from ops_group.claim(
            topic, self.partition, GROUP, self.client.name, LEASE_US / 1e6, token
        )
        noted.token = info.token
        self._ended(noted, info.token > 0)
        return info.token

    def _renew(self, topic: TopicState, token: int) -> Script[None]:
        """With a record of its own or, under every second token, without."""
        if token % 2:
            yield from self._claim(topic, token)
            return
        noted = self._note("renew", token)
        claims = {self.partition: token}
        held = yield from ops_group.renew(topic, GROUP, self.client.name, claims)
        self._ended(noted, held[self.partition])

    def _work(self, topic: TopicState, token: int) -> Script[None]:
        look = self._note("committed", token)
        found = yield from ops_group.claims(topic, GROUP, [self.partition], states=True)
        status = found[self.partition]
        look.offset, look.state = status.offset or 0, int(status.state or b"0")
        self._ended(look, True)
        reader = ops_topic.PartitionReader(topic, self.partition, look.offset, 2048)
        for _ in range(self.world.between(1, 8)):
            yield from reader.read(0.3)
            if self.world.chance(0.15):  # it loses its claim, and does not know
                yield Sleep(self.world.between(LEASE_US // 2, 3 * LEASE_US))
            assert reader.offset is not None
            yield from self._commit(topic, token, reader.offset)
            if self.world.chance(0.7):
                yield from self._renew(topic, token)
        if self.world.chance(0.5):
            noted = self._note("unclaim", token)
            held = yield from ops_group.unclaim(topic, self.partition, GROUP, token)
            self._ended(noted, held)

    def _commit(self, topic: TopicState, token: int, offset: int) -> Script[None]:
        noted = self._note("commit", token, offset)
        try:
            state = {self.partition: b"%d" % offset}
            yield from ops_group.commit(topic, GROUP, {self.partition: offset}, token, state)
        except ConflictError:
            self._ended(noted, False)
            raise
        self._ended(noted, True)
