"""A cluster on a bad network and worse machines, all from one seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from random import Random

from tests.cluster.consensus.checker import Checker
from tests.cluster.consensus.shell import Shell

from penstock.cluster.consensus.membership import Change, Membership
from penstock.cluster.consensus.messages import EntryKind, Message, decode, encode
from penstock.cluster.consensus.settings import Settings
from penstock.cluster.consensus.state import Role
from penstock.errors import PenstockError

MS = 1000
HEALED_WITHIN_US = 5_000 * MS
LAST_NODE = 6
SETTINGS = Settings(
    election_us=150 * MS, heartbeat_us=30 * MS, max_batch_entries=4, max_in_flight=3,
    keep_entries=3, max_promotion_lag=2, chunk_bytes=16, max_writes=8, max_uncommitted=50,
    max_unapplied=20,
)  # fmt: skip


class World:
    """Three to five voters and up to six nodes; `run` breaks things, `heal` mends them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.checker = Checker()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tokens = count()
        self.cuts: set[tuple[int, int]] = set()
        self.loss = self.random.choice([0.0, 0.02, 0.2])
        self.twice = self.random.choice([0.0, 0.05])
        self.rough = self.random.randint(0, 3)  # how often things break
        self.slow_disks = self.random.random() < 0.5
        self._syncing: set[tuple[int, int]] = set()
        first = Membership(tuple(range(1, self.random.randint(3, 5) + 1)))
        self.shells = {
            node: Shell(
                node, first if node in first else Membership(), seed, SETTINGS, self.checker,
                self._send,
            )
            for node in range(1, LAST_NODE + 1)
        }  # fmt: skip

    # --- time ------------------------------------------------------------------------------

    def at(self, after_us: int, action: Callable[[], None]) -> None:
        heappush(self._events, (self.now_us + after_us, next(self._order), action))

    def run_until(self, end_us: int, done: Callable[[], bool] = lambda: False) -> None:
        while not done():
            due_us, shell = min(
                ((shell.raft.next_due() or end_us, shell.node) for shell in self._up()),
                default=(end_us, 0),
            )
            if self._events and self._events[0][0] <= due_us:
                due_us = self._events[0][0]
                if due_us >= end_us:
                    break
                self.now_us = max(self.now_us, due_us)
                heappop(self._events)[2]()
            elif due_us >= end_us:
                break
            else:
                self.now_us = max(self.now_us, due_us)
                self.shells[shell].raft.tick(self.now_us)
                self.settle(self.shells[shell])
        self.now_us = max(self.now_us, end_us) if not done() else self.now_us

    def _up(self) -> list[Shell]:
        return [shell for shell in self.shells.values() if shell.up]

    def settle(self, shell: Shell) -> None:
        shell.settle()
        life = (shell.node, shell.life)
        if shell.writing and life not in self._syncing:
            self._syncing.add(life)
            worst_ms = 100 if self.slow_disks and self.random.random() < 0.1 else 5
            self.at(self.random.randint(50, worst_ms * MS), lambda: self._sync(shell, life))

    def _sync(self, shell: Shell, life: tuple[int, int]) -> None:
        self._syncing.discard(life)
        if shell.up and shell.life == life[1]:
            shell.sync(self.now_us, self.random.randint(1, 4))
            self.settle(shell)

    # --- the network -----------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        packed = encode(message)
        if self.random.random() < self.loss:
            return
        for _ in range(2 if self.random.random() < self.twice else 1):
            worst_ms = 200 if self.random.random() < 0.02 else 10
            delay_us = self.random.randint(200, worst_ms * MS)
            self.at(delay_us, lambda: self._arrive(packed))

    def _arrive(self, packed: bytes) -> None:
        message = decode(packed)
        shell = self.shells[message.to]
        if shell.up and (message.source, message.to) not in self.cuts:
            shell.raft.step(message, self.now_us)
            self.settle(shell)

    # --- what happens ----------------------------------------------------------------------

    def run(self, for_us: int) -> None:
        """Faults and wishes, some every 100 ms."""
        actions = [
            *[self._propose] * 10, *[self._change] * 3, *[self._read] * 3, *[self._mend] * 2,
            *[self._crash] * self.rough, *[self._cut] * self.rough, self._transfer, self._compact,
        ]  # fmt: skip
        end_us = self.now_us + for_us
        while self.now_us < end_us:
            self.run_until(self.now_us + self.random.randint(1, 60) * MS)
            # Refusals (not the leader, another change under way) are part of the game.
            with suppress(PenstockError):
                self.random.choice(actions)()

    def _any(self) -> Shell:
        """Mostly somebody who believes to lead."""
        up = self._up()
        leading = [shell for shell in up if shell.raft.role is Role.LEADER]
        return self.random.choice(leading if leading and self.random.random() < 0.9 else up)

    def _propose(self) -> None:
        shell = self._any()
        for _ in range(self.random.randint(1, 6)):
            shell.raft.propose(b"%d" % next(self._tokens), self.now_us)
        self.settle(shell)

    def _crash(self) -> None:
        if len(up := self._up()) > 1:
            shell = self._any() if self.random.random() < 0.5 else self.random.choice(up)
            keep, torn = self.random.randint(0, len(shell.writing)), self.random.random() < 0.5
            shell.crash(keep, torn)
            self.at(self.random.randint(10, 600) * MS, lambda: self._restart(shell))

    def _restart(self, shell: Shell) -> None:
        if not shell.up:
            shell.start(self.now_us)
            self.settle(shell)

    def _cut(self) -> None:
        """One side from the other, or one way only."""
        nodes = list(self.shells)
        side = set(self.random.sample(nodes, self.random.randint(1, len(nodes) // 2)))
        one_way = self.random.random() < 0.2
        for a in side:
            for b in set(nodes) - side:
                self.cuts |= {(a, b)} if one_way else {(a, b), (b, a)}

    def _mend(self) -> None:
        self.cuts.clear()

    def _change(self) -> None:
        shell = self._any()
        node = self.random.choice(list(self.shells))
        members = shell.raft.membership
        change = Change.ADD_LEARNER if node not in members else Change.PROMOTE
        if node in members.voters and len(members.voters) > 2:
            change = Change.REMOVE
        shell.raft.change(change, node, self.now_us)
        self.settle(shell)

    def _transfer(self) -> None:
        shell = self._any()
        shell.raft.transfer(self.random.choice(list(self.shells)), self.now_us)
        self.settle(shell)

    def _read(self) -> None:
        shell, token = self._any(), next(self._tokens)
        shell.raft.read_index(token, self.now_us)
        self.checker.reads(token)
        self.settle(shell)

    def _compact(self) -> None:
        for shell in self._up():
            with suppress(PenstockError):
                shell.compact()

    # --- the end ---------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again: soon a leader is there, a proposal is decided and all have it."""
        self.cuts.clear()
        self.loss = self.twice = 0.0
        for shell in self.shells.values():
            self._restart(shell)
        value, end_us = b"healed", self.now_us + HEALED_WITHIN_US
        while self.now_us < end_us and not self._all_have(value):
            with suppress(PenstockError):
                if not any(entry.data == value for entry in self.checker.decided):
                    self._offer(value)
            self.run_until(self.now_us + 100 * MS, lambda: self._all_have(value))
        self.checker.must(self._all_have(value), "nothing is decided though all is well")

    def _offer(self, value: bytes) -> None:
        for shell in self.shells.values():
            if shell.raft.role is Role.LEADER:
                shell.raft.propose(value, self.now_us)
                self.settle(shell)

    def _all_have(self, value: bytes) -> bool:
        place = next((e.index for e in self.checker.decided if e.data == value), None)
        if place is None:
            return False
        leaders = [s for s in self.shells.values() if s.raft.role is Role.LEADER]
        newest = max(leaders, key=lambda shell: shell.raft.term, default=None)
        return newest is not None and all(
            self.shells[node].applied >= place for node in newest.raft.membership.nodes
        )

    def figures(self) -> dict[str, int]:
        """What this run reached."""
        decided = self.checker.decided
        return {
            "decided": len(decided),
            "terms": len(self.checker.leaders),
            "changes": sum(entry.kind is EntryKind.MEMBERSHIP for entry in decided),
            "snapshots": sum(shell.installed for shell in self.shells.values()),
            "reads": sum(shell.answered for shell in self.shells.values()),
            "lives": sum(shell.life for shell in self.shells.values()),
        }


def run(seed: int, for_us: int = 10_000 * MS) -> World:
    """One whole run; raises what it finds."""
    world = World(seed)
    world.run(for_us)
    world.heal()
    return world
