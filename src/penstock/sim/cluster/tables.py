"""Actors that work on a table, and members of a group that claim partitions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.client.aio_streams import AsyncTable, AsyncTopic
from penstock.errors import ConflictError, ForgottenError, PenstockError, UnavailableError
from penstock.sim.claims import GROUP
from penstock.sim.cluster.stage import RETRY_S, Actor
from penstock.sim.history import Claim, TableOp

KEYS = 3
KEY_US = 30_000_000  # keys change, so that no entry's history grows too long to be explained
LEASE_US = 4_000_000


class TableClient(Actor):
    """Reads and writes a few entries that others write too."""

    async def run(self) -> None:
        """Until the work is over."""
        table = await self.open_table()
        seen: dict[bytes, int] = {}
        while self.busy:
            await self.rest(700_000)
            age = self.world.elapsed_us // KEY_US
            key = b"key-%d-%d" % (age, self.world.between(0, KEYS - 1))
            kind = self.world.random.choice(["get", "get", "put", "cas", "cas", "append", "delete"])
            value = f"{self.name}/{len(self.history.table)};".encode()
            op = TableOp(key, kind, self.name, self.world.now_us, value, table=self.stream.name)
            if kind == "cas":
                op.if_version = seen.get(key, 0)
            self.history.table.append(op)
            await self._call(table, op, seen)

    async def _call(self, table: AsyncTable, op: TableOp, seen: dict[bytes, int]) -> None:
        try:
            outcome = await self._perform(table, op)
        except ForgottenError:  # it is not known what became of it
            return
        except ConflictError:
            op.outcome, op.done_us = "conflict", self.world.now_us
        except UnavailableError:
            await asyncio.sleep(RETRY_S)
        else:
            if op.kind == "get":
                seen[op.key] = outcome[1] if isinstance(outcome, tuple) else 0
            op.outcome, op.done_us = outcome, self.world.now_us

    async def _perform(self, table: AsyncTable, op: TableOp) -> object:
        if op.kind == "get":
            found = await table.entry(op.key)
            return None if found is None else (found.value, found.version)
        if op.kind == "delete":
            return await table.delete(op.key)
        if op.kind == "append":
            return await table.append(op.key, op.value)
        return await table.put(op.key, op.value, if_version=op.if_version)


@dataclass
class Member(Actor):
    """Claims a partition, works, stalls, and sometimes goes on although it was replaced."""

    partition: int = 0

    async def run(self) -> None:
        """Until the work is over."""
        topic = await self.open_topic()
        while self.busy:
            await self.rest(1_500_000)
            try:
                token = await self._claim(topic, 0)
                if token:
                    await self._work(topic, token)
            except PenstockError:
                await asyncio.sleep(RETRY_S)

    def _note(self, op: str, token: int, offset: int = -1) -> Claim:
        noted = Claim(
            op, self.stream.name, self.partition, self.name, token, self.world.now_us,
            LEASE_US, offset,
        )  # fmt: skip
        self.history.claims.append(noted)
        return noted

    def _ended(self, noted: Claim, accepted: bool) -> None:
        noted.accepted, noted.done_us = accepted, self.world.now_us

    async def _claim(self, topic: AsyncTopic, token: int) -> int:
        noted = self._note("renew" if token else "claim", token)
        info = await topic.claim(self.partition, GROUP, self.name, LEASE_US / 1e6, token)
        noted.token = info.token
        self._ended(noted, info.token > 0)
        return int(info.token)

    async def _renew(self, topic: AsyncTopic, token: int) -> None:
        """With a record of its own or, under every second token, without."""
        if token % 2:
            await self._claim(topic, token)
            return
        noted = self._note("renew", token)
        held = await topic.renew(GROUP, self.name, {self.partition: token})
        self._ended(noted, held[self.partition])

    async def _work(self, topic: AsyncTopic, token: int) -> None:
        look = self._note("committed", token)
        status = (await topic.claims(GROUP, [self.partition], states=True))[self.partition]
        offset = look.offset = status.offset or 0
        look.state = int(status.state or b"0")
        self._ended(look, True)
        for _ in range(self.world.between(1, 5)):
            async with topic.read(self.partition, offset) as batches:
                async for batch in batches:
                    offset = batch.offsets.tolist()[-1] + 1
            if self.world.chance(0.15):  # it loses its claim, and does not know
                await asyncio.sleep(self.world.between(LEASE_US // 2, 3 * LEASE_US) / 1e6)
            await self._commit(topic, token, offset)
            await self.rest(800_000)
            if self.world.chance(0.7):
                await self._renew(topic, token)
        if self.world.chance(0.5):
            noted = self._note("unclaim", token)
            self._ended(noted, await topic.unclaim(self.partition, GROUP, token))

    async def _commit(self, topic: AsyncTopic, token: int, offset: int) -> None:
        noted = self._note("commit", token, offset)
        try:
            state = {self.partition: b"%d" % offset}
            await topic.commit(GROUP, {self.partition: offset}, token, state)
        except ConflictError:
            self._ended(noted, False)
            raise
        self._ended(noted, True)
