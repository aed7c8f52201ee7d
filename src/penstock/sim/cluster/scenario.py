"""One run of a cluster: nodes, clients on all sides, faults, the last act, and the checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from penstock.sim.cluster.ambient import in_world
from penstock.sim.cluster.cluster import Cluster
from penstock.sim.cluster.drain import Drain
from penstock.sim.cluster.faults import Faults, Injector
from penstock.sim.cluster.parts import PARTS, chosen_parts, roles_of
from penstock.sim.cluster.process import ClientProcess
from penstock.sim.cluster.stage import Stage
from penstock.sim.cluster.story import story
from penstock.sim.history import History
from penstock.sim.report import Verdict
from penstock.sim.world import World

PROMOTIONS = 5  # a run goes on until there were so many, if anything can bring them about
LONGER = 0.5  # but by no more than this part of its time
FOUNDING_US = 60_000_000
HEALING_US = 180_000_000
DRAIN_US = 900_000_000
LATE_US = 12_000_000  # until then all calls under way have ended
LOOK_US = 500_000  # how often it is looked whether something is broken
DRIFT = 0.002
TRACE_LINES = 20_000
MAX_EVENTS = 200_000  # between two looks: more means that somebody never sleeps


class ClusterScenario:
    """Everything of one run. Build it, `run` it, read the verdict."""

    def __init__(self, seed: int, minutes: float, faults: str, nodes: int, parts: str = "") -> None:
        self.seed = seed
        self.minutes = minutes
        self.faults = faults
        self.nodes = nodes
        self.world = World(seed, TRACE_LINES)
        chosen = Faults.named(faults)
        self.cluster = Cluster(self.world, drift=DRIFT if chosen.clock else 0.0)
        self.parts = chosen_parts(self.world, parts)
        moves = self.cluster.ledger.moves.done
        self.history = History(trouble=self.cluster.trouble, moves=moves)
        self.stage = Stage(self.world, self.history)
        roles = roles_of(self.stage, self.parts)
        self.clients = [
            ClientProcess(self.cluster, name, 1 + at % nodes, roles[name])
            for at, name in enumerate(roles)
        ]
        self.injector = Injector(self.cluster, chosen, self.clients, nodes)
        self.drain = Drain(self.stage, [PARTS[name].stream for name in self.parts])
        self._stuck: str | None = None
        self._most = 0  # events until the next look
        self._breaks = chosen.crash or chosen.net or chosen.pause

    def run(self) -> Verdict:
        """Work and faults, then quiet, then the last act."""
        with in_world(self.world):
            for act in (self._found, self._work, self._heal, self._end):
                if self._breakage() is None:
                    act()
            for client in self.clients:
                client.kill()
        return self._verdict()

    def _found(self) -> None:
        self.cluster.found(self.nodes)
        self._run(FOUNDING_US, lambda: len(self.cluster.hosts) == self.nodes and self._whole())
        if not self._whole():
            self._stuck = self._stuck or "the cluster does not come together"
        self.world.note("the cluster is there, and the work begins")

    def _work(self) -> None:
        for client in self.clients:
            self.world.after(self.world.between(1000, 2_000_000), client.start)
        self.injector.start()
        work_us = int(self.minutes * 60e6)
        self._run(work_us)
        if self._breaks:
            self._run(int(work_us * LONGER), lambda: self.cluster.ledger.promotions >= PROMOTIONS)

    def _heal(self) -> None:
        self.world.note("the work is over, and nothing breaks any more")
        self.stage.over = True
        self.injector.stop()
        self._run(HEALING_US, self._whole)
        if not self._whole():
            self._stuck = self._stuck or f"the cluster does not heal: {self._state()}"
        self.world.note("the cluster is whole again")

    def _end(self) -> None:
        self._run(LATE_US)
        for client in self.clients:
            client.kill()
        place = self.cluster.living()[0].number
        last = ClientProcess(self.cluster, "last", place, [self.drain.run])
        self.clients.append(last)
        last.start()
        self._run(DRAIN_US, lambda: self.drain.done)

    def _run(self, for_us: int, done: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass: so much, or until it is done or broken."""
        world = self.world
        end_us = world.now_us + for_us
        while world.now_us < end_us and not done() and self._breakage() is None:
            self._most = world.events + MAX_EVENTS
            world.run(min(end_us, world.now_us + LOOK_US), self._is_sleepless)
            if self._is_sleepless():
                self._stuck = f"more than {MAX_EVENTS:,} events in {LOOK_US / 1e6:g} s"

    def _is_sleepless(self) -> bool:
        return self.world.events > self._most

    def _whole(self) -> bool:
        return self.cluster.whole

    def _state(self) -> str:
        known = self.cluster.map()
        if known is None:
            return "there is no map"
        nodes = {node.id: node.status for node in known.nodes}
        weak = {n: place.in_sync for n, place in enumerate(known.shards) if len(place.in_sync) < 2}
        return f"nodes {nodes}, shards that are weak {weak}"

    def _breakage(self) -> str | None:
        if self._stuck is not None:
            return self._stuck
        if self.cluster.ledger.problems:
            return self.cluster.ledger.problems[0]
        if (broken := self.cluster.broken) is not None:
            return broken
        return next((client.broken for client in self.clients if client.broken), None)

    # --- the verdict -----------------------------------------------------------------------

    def _verdict(self) -> Verdict:
        problems = self.problems()
        figures = self._figures()
        self.world.note(f"{figures}, history {self._fingerprint()}")
        trace = list(self.world.trace)
        if problems:
            trace = story(self.history, problems, trace)
        return Verdict(
            self.seed, self.faults, self.minutes, self.parts, problems, self.world.digest, figures,
            trace, nodes=self.nodes,
        )  # fmt: skip

    def problems(self) -> list[str]:
        """All promises that were broken."""
        found = list(self.cluster.ledger.problems)
        found += [each for host in self.cluster.hosts.values() for each in host.miscounts]
        if not found and (breakage := self._breakage()) is not None:
            return [breakage]
        if not found and not self.drain.done:
            found.append("the last act did not end: something hangs")
        if self.drain.left is not None:
            found.append(self.drain.left)
        for name in self.parts:
            found += PARTS[name].check(self.history)
        return found

    def _fingerprint(self) -> str:
        """Of all that clients saw."""
        history = self.history
        seen = hashlib.blake2b(digest_size=8)
        seen.update(repr(list(history.pushes.values())).encode())
        for each in (history.deliveries, history.reads, history.table, history.commits):
            seen.update(repr(each).encode())
        return seen.hexdigest()

    def _figures(self) -> dict[str, int]:
        history, cluster = self.history, self.cluster
        trouble, hosts = cluster.trouble, cluster.hosts.values()
        acks = [s for each in history.deliveries for s in each.settlements if s.op == "ack"]
        return {
            "events": self.world.events,
            "pushes": len(history.pushes),
            "pushes_acknowledged": sum(push.stored is True for push in history.pushes.values()),
            "deliveries": len(history.deliveries),
            "acks": sum(each.accepted is True for each in acks),
            "reads": len(history.reads),
            "table_calls": len(history.table),
            "commits": len(history.commits) + len(history.claims),
            "publications": sum(each.told is not None for each in history.attempts),
            "reservations": len(history.holds),
            "tasks": len(history.graph),
            "faults": self.injector.injected,
            "promotions": cluster.ledger.promotions,
            "transfers": cluster.ledger.transfers,
            "moves": len(history.moves),
            "partitions": self.injector.partitions,
            "crashes": len(trouble.crashes),
            "power_losses": len(trouble.power_losses),
            "clock_jumps": len(trouble.jumps),
            "disk_failures": sum(host.disk.failures for host in hosts),
            "flipped_bits": self.injector.flips,
            "joins": cluster.joins,
            "drains": cluster.drains,
            "restarts": cluster.restarts,
            "client_lives": sum(client.lives for client in self.clients),
        }
