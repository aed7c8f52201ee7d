"""The calls that a cluster answers: its map, its state, changes to it, and definitions of streams.

Any node answers. What has to be decided goes through the control plane and is answered when this
node knows the outcome; without one in time the answer is an error, though it may still be done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from penstock.cluster import levels
from penstock.cluster.commands import (
    Command,
    Define,
    Drain,
    Join,
    Outcome,
    Remove,
    SetReplication,
    Undefine,
    Undrain,
)
from penstock.cluster.map import MAX_NODE_ID, MAX_REPLICATION, ClusterMap, NodeInfo, diff, pack
from penstock.cluster.tables import FIRST, Definition
from penstock.cluster.view import Figures
from penstock.core.kernel import Timer
from penstock.engine.member import Member, definition_of
from penstock.errors import (
    ConflictError,
    DeadlineError,
    ExistsError,
    InvalidError,
    LimitError,
    NotFoundError,
    PenstockError,
    UnavailableError,
    VersionError,
)
from penstock.node.cluster_status import cluster_status
from penstock.node.map_askers import MapAskers
from penstock.wire import messages as m
from penstock.wire.frames import Verb

DEADLINE_US = 5_000_000
KEPT_MAPS = 16  # older ones: whoever has one of them needs only what changed
MAX_TRIES = 5  # of a change whose ground has moved meanwhile

_REFUSALS: dict[str, type[PenstockError]] = {
    "stale": ConflictError,
    "unsafe": ConflictError,
    "unknown": NotFoundError,
    "exists": ExistsError,
    "limit": LimitError,
}
Then = Callable[[Outcome], None]


class Linked(Protocol):
    """Whoever keeps the links of this node."""

    @property
    def nodes(self) -> set[int]:
        """The nodes that there is a link to."""

    @property
    def sent_bytes(self) -> int:
        """To all of them, since this one was started."""


class ClusterCalls:
    """Takes over the calls of a node that has become part of a cluster."""

    def __init__(self, member: Member, links: Linked) -> None:
        self._member = member
        self._links = links
        fabric = member.engine.fabric
        self._fabric = fabric
        self._kernel = fabric.kernel
        self._control = fabric.control
        self._figures = Figures()
        self._maps: OrderedDict[int, ClusterMap] = OrderedDict()
        self._askers = MapAskers(fabric, self._since)
        self._packed = (0, b"")  # the newest map that somebody asked for, and its version
        fabric.calls.hand_over(
            {
                m.ClusterMap: self._map,
                m.ClusterStatus: self._status,
                m.ClusterChange: self._change,
                m.ClusterJoin: self._join,
                m.Open: self._open,
                m.Configure: self._configure,
                m.Grow: self._grow,
                m.Delete: self._delete,
            }
        )

    def map_changed(self, now_us: int) -> None:
        """The control plane has a new map."""
        state = self._member.plane.state
        self._figures.observe(state, now_us)
        if self._member.present:
            self._fabric.cluster_map = state.version
            self._maps[state.version] = state.map()
            if len(self._maps) > KEPT_MAPS:
                self._maps.popitem(last=False)
            if self._askers.tell():
                self._member.engine.settle(now_us)

    # --- looking ---------------------------------------------------------------------------

    def _map(self, connection: int, request: int, call: m.ClusterMap) -> None:
        self._check_present()
        if call.wait_ms > 0 and call.version >= self._member.plane.state.version:
            self._askers.park(connection, request, call)
        else:
            self._answer(connection, request, self._since(call.version))

    def _since(self, version: int) -> bytes:
        newest = self._member.plane.state.map()
        if version >= newest.version:
            return b""
        if self._packed[0] != newest.version:
            self._packed = newest.version, b"m" + pack(newest)
        whole = self._packed[1]
        known = self._maps.get(version)
        delta = b"" if known is None else b"d" + pack(diff(known, newest))
        return delta if 0 < len(delta) < len(whole) else whole

    def _status(self, connection: int, request: int, call: m.ClusterStatus) -> None:
        now_us = self._kernel.now_us
        told = cluster_status(self._member, self._links.nodes, self._figures, now_us, call.plan)
        told["sent_bytes"] = self._links.sent_bytes
        self._answer(connection, request, told)

    # --- nodes -----------------------------------------------------------------------------

    def _change(self, connection: int, request: int, call: m.ClusterChange) -> None:
        self._check_present()

        def decided(outcome: Outcome) -> None:
            _check(outcome)
            self._answer(connection, request, outcome.version)

        self._ask(connection, request, _command(call), decided)

    def _join(self, connection: int, request: int, call: m.ClusterJoin) -> None:
        self._check_present()
        if not 0 < len(call.name.encode()) <= 255:
            raise InvalidError("a node's name has 1 to 255 bytes")
        state, speaks = self._member.plane.state, levels.speaks_of(call)
        if reason := levels.problem(state.level, speaks):
            raise VersionError(reason, advice=levels.advice(state.level, speaks))

        def decided(outcome: Outcome) -> None:
            _check(outcome)
            nodes = self._member.plane.state.nodes.values()
            peers = [(node.id, node.host, node.port) for node in nodes if node.port]
            answer = m.ClusterJoined(outcome.value, state.cluster, len(state.shards), peers)
            self._answer(connection, request, answer)

        # Where it is, and that it is there, it says itself when it starts: an incarnation above 0.
        node = NodeInfo(0, call.name, "", 0, "up", 0)
        said = speaks if state.level > FIRST else None
        self._ask(connection, request, Join(node, said), decided)

    # --- definitions -----------------------------------------------------------------------

    def _open(self, connection: int, request: int, call: m.Open) -> None:
        found = self._control.find(call)
        if found is not None:
            self._answer(connection, request, found)
            return
        self._check_present()

        def decided(outcome: Outcome) -> None:
            if outcome.refused != "exists":  # by another client, a moment ago
                _check(outcome)
            known = self._control.find(call)
            if known is None:
                raise ConflictError(f"{call.kind} {call.name!r} was deleted as it was created")
            self._answer(connection, request, known)

        command = Define(*definition_of(self._control.draft(call, 0)), 0)
        self._ask(connection, request, command, decided)

    def _configure(
        self, connection: int, request: int, call: m.Configure, tries: int = MAX_TRIES
    ) -> None:
        info = self._control.revise(call)
        name, data = definition_of(info)
        known = self._definition(name)

        def decided(outcome: Outcome) -> None:
            if outcome.refused == "stale" and tries > 1:
                self._configure(connection, request, call, tries - 1)
                return
            _check(outcome)
            self._answer(connection, request, info)

        self._ask(connection, request, Define(name, data, known.version), decided)

    def _grow(
        self, connection: int, request: int, call: m.Grow, tries: int = MAX_TRIES
    ) -> None:
        if self._member.level < levels.GROWTH_AND_STAGES:
            raise ConflictError(
                "a topic cannot grow before all nodes of the cluster know how",
                advice="Upgrade the other nodes first.",
            )
        info = self._control.grown(call)
        name, data = definition_of(info)
        known = self._definition(name)

        def decided(outcome: Outcome) -> None:
            if outcome.refused == "stale" and tries > 1:
                self._grow(connection, request, call, tries - 1)
                return
            _check(outcome)
            self._answer(connection, request, info)

        if info == self._control.kernel.streams[info.id].info:
            self._answer(connection, request, info)
        else:
            self._ask(connection, request, Define(name, data, known.version), decided)

    def _delete(
        self, connection: int, request: int, call: m.Delete, tries: int = MAX_TRIES
    ) -> None:
        name = f"{call.kind}/{call.namespace}/{call.name}"
        self._check_present()
        if name not in self._member.plane.state.definitions:
            self._answer(connection, request, False)
            return

        def decided(outcome: Outcome) -> None:
            if outcome.refused == "stale" and tries > 1:
                self._delete(connection, request, call, tries - 1)
                return
            _check(outcome)
            self._answer(connection, request, True)

        command = Undefine(name, self._definition(name).version)
        self._ask(connection, request, command, decided)

    def _definition(self, name: str) -> Definition:
        self._check_present()
        known = self._member.plane.state.definitions.get(name)
        if known is None:
            raise UnavailableError("the cluster is being founded and does not know this one yet")
        return known

    # --- how to ask and answer -------------------------------------------------------------

    def _check_present(self) -> None:
        if not self._member.present:
            raise UnavailableError(
                "this node has not reached a majority of its cluster since it was started",
                advice="Retry, or start the other nodes.",
            )

    def _answer(self, connection: int, request: int, value: object) -> None:
        self._kernel.answer(connection, Verb.CALL, request, value)

    def _ask(self, connection: int, request: int, command: Command, then: Then) -> None:
        """Asks the cluster; what `then` raises is the answer."""
        kernel, member = self._kernel, self._member
        timer: Timer | None = None

        def decided(outcome: Outcome) -> None:
            if timer is not None:
                kernel.timers.cancel(timer)
            try:
                then(outcome)
            except PenstockError as error:
                kernel.fail(connection, Verb.CALL, request, error)

        token = member.ask(command, kernel.now_us, decided)

        def late() -> None:
            member.forget(token)
            kernel.fail(connection, Verb.CALL, request, _undecided())

        timer = kernel.timers.at(kernel.now_us + DEADLINE_US, late)


def _undecided() -> PenstockError:
    return DeadlineError(
        f"the cluster has not decided within {DEADLINE_US // 1_000_000} s: no majority of the "
        "nodes that decide is reached from here",
        advice="Start the nodes that are down, then retry; it may have been done meanwhile.",
    )


def _check(outcome: Outcome) -> None:
    """Raises the refusal, if it is one."""
    if not outcome.accepted:
        advice = "`penstock cluster status` shows how things are."
        raise _REFUSALS[outcome.refused](outcome.reason, advice=advice)


def _command(call: m.ClusterChange) -> Command:
    if call.action == "replication":
        if not 1 <= call.value <= MAX_REPLICATION:
            raise InvalidError(f"the replication is 1 to {MAX_REPLICATION}")
        return SetReplication(call.value)
    if not 1 <= call.node <= MAX_NODE_ID:
        raise InvalidError(f"{call.node} is no id of a node")
    if call.action == "drain":
        return Drain(call.node)
    if call.action == "undrain":
        return Undrain(call.node)
    if call.action == "remove":
        return Remove(call.node)
    raise InvalidError(f"{call.action!r}: use drain, undrain, remove or replication")
