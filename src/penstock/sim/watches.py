"""Actors that watch a table."""

from __future__ import annotations

from penstock.client import ops_table
from penstock.client.ops_table import WatchState
from penstock.client.state import TableState
from penstock.client.steps import Finish, body_of, decoder
from penstock.errors import PenstockError
from penstock.sim.actors import RETRY_US, Actor
from penstock.sim.client import Hear, Script, Sleep
from penstock.sim.history import Heard, Probe, Resync, TableOp, Watch
from penstock.wire.messages import Event

_read_event = decoder(Event)


class TableWatcher(Actor):
    """Watches all of a table, and writes to it now and then, to know how far it has heard."""

    def run(self) -> Script[None]:
        """Watch after watch, until the work is over."""
        table = yield from self.open_table()
        while self.busy:
            state = WatchState(table, b"")
            pending = self.client.subscribe(state.subscription)
            try:
                yield Finish(pending)
                watch = Watch(table.name, self.client.name, self.world.now_us)
                yield from state.baseline()
                self.history.watches.append(watch)
                yield from self._listen(table, state, watch)
            except PenstockError:
                yield Sleep(RETRY_US)
            self.client.unsubscribe(state.subscription)

    def _listen(self, table: TableState, state: WatchState, watch: Watch) -> Script[None]:
        key, probes, sent_us = f"probe/{self.client.name}".encode(), 0, 0
        ends_us = self.world.now_us + self.world.between(2_000_000, 20_000_000)
        asked: dict[bytes, int] = {}
        while self.busy and self.world.now_us < ends_us and not state.subscription.error:
            if self.world.now_us > sent_us + 500_000:
                sent_us, probes = self.world.now_us, probes + 1
                value = f"{watch.started_us}/{probes}".encode()
                asked[value] = sent_us
                self.client.spawn(self._probe(table, key, value))
            yield Hear(state.subscription, 200_000)
            while state.subscription.inbox:
                yield from self._hear(state, watch, asked)

    def _hear(self, state: WatchState, watch: Watch, asked: dict[bytes, int]) -> Script[None]:
        event = state.subscription.inbox.popleft()
        told: Event = _read_event(body_of(event))
        now_us = self.world.now_us
        for each in told.entries:
            if each.value in asked:
                watch.probes.append(Probe(asked.pop(each.value), len(watch.heard)))
            watch.heard.append(Heard(now_us, each.key, each.value, each.version))
        if told.lost:
            watch.heard.append(Heard(now_us, lost=True))
        yield from state.changes(event)
        if told.lost:
            resync = Resync(now_us, self.world.now_us, dict(state._versions))
            watch.resyncs.append(resync)

    def _probe(self, table: TableState, key: bytes, value: bytes) -> Script[None]:
        op = TableOp(key, "put", self.client.name, self.world.now_us, value, table=table.name)
        self.history.table.append(op)
        try:
            op.outcome = yield from ops_table.put(table, key, value)
        except PenstockError:
            return
        op.done_us = self.world.now_us
