"""The commands of consensus scripts: a cluster in which nothing moves unless a line says so."""

from __future__ import annotations

from collections import deque

from tests.cluster.consensus.checker import Checker
from tests.cluster.consensus.shell import Shell

from penstock.cluster.consensus.membership import Change, Membership
from penstock.cluster.consensus.messages import (
    Append,
    Heartbeat,
    Message,
    SnapshotChunk,
    VoteRequest,
    decode,
    encode,
)
from penstock.cluster.consensus.progress import Pace
from penstock.cluster.consensus.settings import Settings
from penstock.cluster.consensus.state import Role
from penstock.errors import PenstockError


class Script:
    """Disks sync at once unless held; messages wait for `deliver`; time stands unless moved."""

    def __init__(self) -> None:
        self.shells: dict[int, Shell] = {}
        self.checker = Checker()
        self.now_us = 0
        self.wire: deque[Message] = deque()
        self.cuts: set[tuple[int, int]] = set()
        self.held: set[int] = set()
        self._seen: dict[int, str] = {}
        self._settings = Settings()

    def run(self, line: str) -> list[str]:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        try:
            said = getattr(self, "do_" + name.replace("-", "_"))(*plain, **options)
        except PenstockError as error:
            return [f"{type(error).__name__}: {error.message}"]
        return [*(said or []), *self._news()]

    def _news(self) -> list[str]:
        """Roles that changed, values that were applied, reads that were answered."""
        news: list[str] = []
        for node, shell in self.shells.items():
            role = _role(shell)
            if role != self._seen.get(node, "follower in term 0"):
                news.append(f"{node} is {role}")
            self._seen[node] = role
            if shell.new_values:
                news.append(f"{node} applies {b' '.join(shell.new_values).decode()}")
            for read in shell.reads:
                where = "is lost" if read.index is None else f"may be answered, at {read.index}"
                news.append(f"{node}: read {read.token} {where}")
            shell.new_values, shell.reads = [], []
        return news

    def _settle(self, shell: Shell) -> None:
        shell.settle()
        while shell.node not in self.held and shell.writing:
            shell.sync(self.now_us)

    # --- the cluster -----------------------------------------------------------------------

    def do_nodes(self, *nodes: str, **settings: str) -> None:
        numbers = {key: int(value) for key, value in settings.items()}
        self._settings = Settings(**({"keep_entries": 0} | numbers))
        membership = Membership(tuple(map(int, nodes)))
        for node in membership.voters:
            self._start(node, membership)

    def do_join(self, node: str) -> None:
        self._start(int(node), Membership())

    def _start(self, node: int, membership: Membership) -> None:
        self.shells[node] = Shell(
            node, membership, 0, self._settings, self.checker, lambda m: self.wire.append(m)
        )

    def do_crash(self, node: str) -> None:
        self.shells[int(node)].crash()

    def do_restart(self, node: str) -> None:
        self.held.discard(int(node))
        self.shells[int(node)].start(self.now_us)

    def do_hold_disk(self, node: str) -> None:
        self.held.add(int(node))

    def do_sync(self, node: str, count: str = "") -> None:
        """All that waits, and the disk is held no longer; or only so many writes."""
        if count:
            self.shells[int(node)].sync(self.now_us, int(count))
            return
        self.held.discard(int(node))
        self._settle(self.shells[int(node)])

    def do_cut(self, *nodes: str) -> None:
        """Between two nodes; or one, from all others."""
        first = int(nodes[0])
        others = [int(nodes[1])] if len(nodes) > 1 else [n for n in self.shells if n != first]
        self.cuts |= {(first, other) for other in others} | {(other, first) for other in others}

    def do_heal(self) -> None:
        self.cuts.clear()

    # --- messages and time -----------------------------------------------------------------

    def do_deliver(self, *nodes: str) -> None:
        """Everything, and what follows; or, once, what is under way to these nodes."""
        if nodes:
            to = set(map(int, nodes))
            ready = [message for message in self.wire if message.to in to]
            self.wire = deque(message for message in self.wire if message.to not in to)
            for message in ready:
                self._deliver(message)
        else:
            while self.wire:
                self._deliver(self.wire.popleft())

    def do_lose(self) -> None:
        """All that is under way."""
        self.wire.clear()

    def _deliver(self, message: Message) -> None:
        shell = self.shells.get(message.to)
        if shell is None or not shell.up or (message.source, message.to) in self.cuts:
            return
        shell.raft.step(decode(encode(message)), self.now_us)
        self._settle(shell)

    def do_tick(self, *nodes: str) -> None:
        """Time goes on until it is these nodes' turn; nobody else notices."""
        for node in map(int, nodes):
            shell = self.shells[node]
            self.now_us = max(self.now_us, shell.raft.next_due() or 0)
            shell.raft.tick(self.now_us)
            self._settle(shell)

    def do_elect(self, node: str) -> None:
        """The others are patient for longer than the node."""
        self.now_us += 2 * self._settings.election_us
        self.do_tick(node)
        self.do_deliver()

    def do_wait(self, after_ms: str) -> None:
        """Time goes on for all, and messages arrive at once."""
        end_us = self.now_us + 1000 * int(after_ms)
        while True:
            dues = [(s.raft.next_due(), n) for n, s in self.shells.items() if s.up]
            due_us, node = min(((d, n) for d, n in dues if d is not None), default=(end_us, 0))
            if due_us >= end_us:
                break
            self.now_us = max(self.now_us, due_us)
            self.do_tick(str(node))
            self.do_deliver()
        self.now_us = end_us

    # --- wishes ----------------------------------------------------------------------------

    def do_propose(self, node: str, *values: str) -> None:
        for value in values:
            self.shells[int(node)].raft.propose(value.encode(), self.now_us)
        self._settle(self.shells[int(node)])

    def do_learner(self, node: str, who: str) -> None:
        self._change(node, Change.ADD_LEARNER, who)

    def do_promote(self, node: str, who: str) -> None:
        self._change(node, Change.PROMOTE, who)

    def do_remove(self, node: str, who: str) -> None:
        self._change(node, Change.REMOVE, who)

    def _change(self, node: str, change: Change, who: str) -> None:
        self.shells[int(node)].raft.change(change, int(who), self.now_us)
        self._settle(self.shells[int(node)])

    def do_transfer(self, node: str, to: str) -> None:
        self.shells[int(node)].raft.transfer(int(to), self.now_us)
        self._settle(self.shells[int(node)])

    def do_read(self, node: str, token: str) -> None:
        self.shells[int(node)].raft.read_index(int(token), self.now_us)
        self.checker.reads(int(token))
        self._settle(self.shells[int(node)])

    def do_snapshot(self, node: str) -> None:
        self.shells[int(node)].compact()

    # --- looking ---------------------------------------------------------------------------

    def do_show(self, *nodes: str) -> list[str]:
        """The log as index/term; what is committed stands before the bar."""
        return [self._shown(self.shells[node]) for node in map(int, nodes or self.shells)]

    def _shown(self, shell: Shell) -> str:
        log = shell.raft._state.log
        places = [f"{entry.index}/{entry.term}" for entry in log.between(1, log.last_index)]
        places.insert(log.committed - log.start_index, "|")
        start = [f"snapshot {log.start_index}/{log.start_term}"] if log.start_index else []
        return f"{shell.node} {_role(shell)}: {' '.join(start + places)}"

    def do_members(self, node: str) -> list[str]:
        members = self.shells[int(node)].raft.membership
        voters, learners = (" ".join(map(str, n)) for n in (members.voters, members.learners))
        return [f"voters {voters}" + (f", learners {learners}" if learners else "")]

    def do_values(self, node: str) -> list[str]:
        return [b" ".join(self.shells[int(node)].values).decode()]

    def do_pace(self, node: str, peer: str) -> list[str]:
        progress = self.shells[int(node)].raft._replication.peers[int(peer)]
        sent = f", {len(progress.in_flight)} under way" if progress.pace is Pace.STREAM else ""
        return [f"{progress.pace.value}, match {progress.match}, next {progress.next}{sent}"]

    def do_wire(self) -> list[str]:
        """What is under way."""
        return [f"{m.source} to {m.to}: {_described(m)}" for m in self.wire] or ["nothing"]


def _role(shell: Shell) -> str:
    if not shell.up:
        return "down"
    raft = shell.raft
    leads = f" of {raft.leader}" if raft.role is Role.FOLLOWER and raft.leader else ""
    return f"{raft.role.value}{leads} in term {raft.term}"


def _described(message: Message) -> str:
    name = f"{type(message).__name__} of term {message.term}"
    if isinstance(message, Append):
        return f"{name}, {len(message.entries)} after {message.previous_index}"
    if isinstance(message, Heartbeat):
        return f"{name}, commit {message.commit}"
    if isinstance(message, SnapshotChunk):
        return f"{name}, {message.offset} + {len(message.data)} of {message.size} bytes"
    if isinstance(message, VoteRequest):
        return name + (", pre" if message.pre else "")
    shown = {"granted": "granted", "rejected": "rejected"}
    said = [word for field, word in shown.items() if getattr(message, field, False)]
    return ", ".join([name, *said])
