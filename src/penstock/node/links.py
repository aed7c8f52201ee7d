"""The links of a node: who calls whom, who is let in, and what happens when one breaks.

The node with the higher id calls. The other one does so too when it has heard nothing for a while:
it may have moved to an address that only it knows. There is one link a pair: a newer one takes the
place of an older.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.cluster import levels
from penstock.cluster.levels import speaks_of
from penstock.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PenstockError,
    ProtocolError,
    VersionError,
)
from penstock.node.identity import Address
from penstock.node.link import Link
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.frames import (
    FRAME,
    FRAME_BYTES,
    PROTOCOL_VERSION,
    Flag,
    Splitter,
    Verb,
    error_frame,
    frame,
)
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_IN_FLIGHT

BEAT_S = 0.5  # how often a node says that it is there
SILENCE_S = 3.0  # a link on which nothing is heard for so long is cut
DIAL_S = 3.0  # for one attempt
PATIENCE_S = 3.0  # so long the node with the lower id waits to be called
MAX_TOLD = 1000  # troubles that are remembered
LASTING_S = 5.0  # a link that lasted so long was a good one
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

log = logging.getLogger("penstock.node")
_read_hello = msgspec.msgpack.Decoder(m.Hello).decode


class Events(Protocol):
    """Who is told what happens."""

    def linked(self, peer: m.Peer) -> None:
        """There is a new link to a node, which said this of itself."""

    def unlinked(self, node: int) -> None:
        """There is none any more."""

    def outdated(self, reason: VersionError) -> None:
        """The cluster is at a level that this node does not speak."""

    def received(self, node: int, messages: list[memoryview]) -> None:
        """Messages of a node; ProtocolError closes the link."""


class Links:
    """See the module. `incarnation_of` says in which life a node is, as far as the cluster knows;
    None: there is no such node. `level` is the cluster's."""

    def __init__(
        self, me: m.Peer, shards: int, events: Events,
        incarnation_of: Callable[[int], int | None], level: Callable[[], int],
    ) -> None:  # fmt: skip
        self._me = me
        self._level = level
        self._shards = shards
        self._events = events
        self._incarnation_of = incarnation_of
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, Link] = {}
        self._lives: dict[int, int] = {}  # the incarnation at the other end
        self._addresses: dict[int, Address] = {}
        self._callers: dict[int, asyncio.Task[None]] = {}
        self._free: dict[int, asyncio.Event] = {}  # set while there is no link
        self._told: set[tuple[int, str]] = set()  # trouble with a node that is in the log already
        self._beat_s = self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        self.sent_bytes = 0  # to all nodes, since this one was started
        self._stopped = False

    @property
    def nodes(self) -> set[int]:
        """The nodes that there is a link to."""
        return set(self._links)

    @property
    def missing(self) -> set[int]:
        """The nodes that there should be a link to, and is none."""
        return self._addresses.keys() - self._links.keys()

    def expect(self, addresses: dict[int, Address]) -> None:
        """These are the other nodes, and where they are."""
        if self._stopped or addresses == self._addresses:
            return
        gone = self._addresses.keys() - addresses.keys()
        self._addresses = dict(addresses)
        for node in gone:
            self._callers.pop(node).cancel()
            if node in self._links:
                self._links[node].cut("it is no node of the cluster any more")
        for node in addresses.keys() - self._callers.keys():
            self._free.setdefault(node, asyncio.Event())
            if node not in self._links:
                self._free[node].set()
            self._callers[node] = self._loop.create_task(self._keep_calling(node))

    def send(self, node: int, messages: list[list[Buffer]]) -> None:
        """Sends messages; without a link they are lost."""
        link = self._links.get(node)
        if link is not None:
            self.sent_bytes += link.send(messages)

    async def stop(self) -> None:
        """Ends all links, and calls nobody any more."""
        self._stopped = True
        self._timer.cancel()
        callers = list(self._callers.values())
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        for link in list(self._links.values()):
            link.cut("this node stops")

    # --- being called ----------------------------------------------------------------------

    def accept(
        self, transport: asyncio.Transport, splitter: Splitter, frames: list[bytearray]
    ) -> bool:
        """Takes over a connection on which another node has said HELLO; False if it is a client's.
        A node that has no business here is told why, and the connection is closed."""
        _, verb, _, _, request = FRAME.unpack_from(frames[0])
        hello = _hello(frames[0]) if verb == Verb.HELLO else None
        if hello is None or hello.peer is None:
            return False
        peer = hello.peer
        try:
            if hello.version != PROTOCOL_VERSION:
                raise ProtocolError(f"this node speaks version {PROTOCOL_VERSION}")
            self._check(peer)
        except PenstockError as refusal:
            self._tell(peer.node, f"a link was refused: {refusal.message}")
            transport.write(error_frame(Verb.HELLO, request, refusal))
            transport.close()
            return True
        link = Link(self, peer.node, splitter=splitter)
        link.adopt(transport)
        transport.set_protocol(link)
        transport.write(frame(Verb.HELLO, request, Flag.RESPONSE, m.pack(self._welcome())))
        self._establish(link, peer)
        try:
            link.take(frames[1:])
        except PenstockError as error:
            link.cut(error.message)
        return True

    def _welcome(self) -> m.Welcome:
        me = self._introduced()
        return m.Welcome(
            PROTOCOL_VERSION, f"node {me.node}", me.cluster, self._shards, MAX_FRAME_BYTES,
            MAX_IN_FLIGHT, peer=me,
        )  # fmt: skip

    def _introduced(self) -> m.Peer:
        """What this node says of itself."""
        return msgspec.structs.replace(self._me, level=self._level())

    def _check(self, peer: m.Peer) -> None:
        """Raises why there can be no link to this node."""
        if self._stopped:
            raise ConflictError(f"node {self._me.node} is stopping")
        if peer.cluster != self._me.cluster:
            raise InvalidError(
                f"node {self._me.node} is of cluster {self._me.cluster:x}, not {peer.cluster:x}"
            )
        known = self._incarnation_of(peer.node)
        if known is None or peer.node == self._me.node:
            raise NotFoundError(f"node {self._me.node} knows of no other node {peer.node}")
        newest = max(known, self._lives.get(peer.node, 0))
        if peer.incarnation < newest:
            raise ConflictError(f"node {peer.node} is in incarnation {newest} by now")
        self._check_level(peer)

    def _check_level(self, peer: m.Peer) -> None:
        level, theirs = self._level(), speaks_of(peer)
        if peer.level > level and (reason := levels.problem(peer.level, speaks_of(self._me))):
            advice = levels.advice(peer.level, speaks_of(self._me))
            self._events.outdated(VersionError(reason, advice=advice))
        if reason := levels.problem(level, theirs):
            raise VersionError(reason, advice=levels.advice(level, theirs))

    def _establish(self, link: Link, peer: m.Peer) -> None:
        incarnation = peer.incarnation
        older = self._links.get(link.node)
        self._links[link.node] = link
        self._lives[link.node] = incarnation
        self._told = {each for each in self._told if each[0] != link.node}
        if link.node in self._free:
            self._free[link.node].clear()
        if older is not None:
            older.cut("a newer one took its place")
            self._events.unlinked(link.node)
        log.info("link to node %s, incarnation %s", link.node, incarnation)
        self._events.linked(peer)

    # --- calling ---------------------------------------------------------------------------

    async def _keep_calling(self, node: int) -> None:
        strikes = 0
        while True:
            await self._free[node].wait()
            await asyncio.sleep(self._pause_s(node, strikes))
            if node in self._links:
                strikes = 0
                continue
            strikes += 1
            try:
                link = await self._call(node)
            except (OSError, TimeoutError, PenstockError) as error:
                reason = getattr(error, "message", "") or str(error) or "no answer"
                self._tell(node, f"it cannot be called: {reason}")
                continue
            while self._links.get(node) is link:
                await self._free[node].wait()
            if self._loop.time() - link.since_s >= LASTING_S:
                strikes = 0

    def _pause_s(self, node: int, strikes: int) -> float:
        longest = min(_FIRST_PAUSE_S * 2.0 ** min(strikes, 10), _LONGEST_PAUSE_S)
        pause_s = longest * random.uniform(0.5, 1.0) if strikes else 0.0
        return pause_s if node < self._me.node else max(pause_s, PATIENCE_S)

    async def _call(self, node: int) -> Link:
        host, port = self._addresses[node]
        link = Link(self, node, self._introduced())
        async with asyncio.timeout(DIAL_S):
            transport, _ = await self._loop.create_connection(lambda: link, host, port)
            try:
                await link.greeted
            except BaseException:
                transport.abort()
                raise
        return link

    def _tell(self, node: int, trouble: str) -> None:
        """Writes it into the log, once until there is a link."""
        if (node, trouble) not in self._told:
            if len(self._told) >= MAX_TOLD:  # strangers may say anything
                self._told.clear()
            self._told.add((node, trouble))
            log.warning("node %s: %s", node, trouble)

    # --- events of links -------------------------------------------------------------------

    def welcomed(self, link: Link, peer: m.Peer | None) -> None:
        """The node that was called says who it is."""
        if peer is None or peer.node != link.node:
            raise ProtocolError(f"another than node {link.node} answers at its address")
        self._check(peer)
        self._establish(link, peer)

    def refused(self, link: Link, refusal: PenstockError) -> None:
        """A node takes no link from this one; if that is for its release, none ever will."""
        if isinstance(refusal, VersionError):
            self._events.outdated(refusal)

    def received(self, link: Link, frames: list[bytearray]) -> None:
        """Messages of a node, unless a newer link has taken the place of this one."""
        if self._links.get(link.node) is link:
            bodies = [memoryview(each)[FRAME_BYTES:] for each in frames]
            self._events.received(link.node, bodies)

    def lost(self, link: Link, reason: str) -> None:
        """A link is over; if it had not been replaced before, there is none now."""
        if self._links.get(link.node) is not link:
            return
        del self._links[link.node]
        if link.node in self._free:
            self._free[link.node].set()
        log.info("link to node %s lost: %s", link.node, reason)
        self._events.unlinked(link.node)

    def _beat(self) -> None:
        now_s = self._loop.time()
        slept = now_s - self._beat_s > SILENCE_S / 2  # it is this node that was away
        self._beat_s = now_s
        for link in list(self._links.values()):
            if slept:
                link.heard_s = now_s
            if now_s - link.heard_s > SILENCE_S:
                link.cut(f"nothing was heard for {SILENCE_S:g} s")
            else:
                link.say_here()
        if not self._stopped:
            self._timer = self._loop.call_later(BEAT_S, self._beat)


def _hello(first: bytearray) -> m.Hello | None:
    """A HELLO, or None: then the core says what is wrong with it."""
    try:
        return _read_hello(memoryview(first)[FRAME_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
