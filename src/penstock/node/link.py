"""A link: one connection between two nodes of a cluster."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import msgspec

from penstock.errors import PenstockError, ProtocolError, UnavailableError
from penstock.node.server import JOIN_BYTES, SCRATCH_BYTES, keep_alive
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.frames import (
    FRAME,
    FRAME_BYTES,
    PROTOCOL_VERSION,
    Flag,
    Splitter,
    Verb,
    frame,
    frame_head,
    read_error,
)

MAX_UNSENT_BYTES = 64 << 20  # of one link; then it is cut, and what was on the way is sent anew
_HERE = frame(Verb.PEER, 0)
_scratch = memoryview(bytearray(SCRATCH_BYTES))  # one for all: a loop receives one thing at a time
_read_welcome = msgspec.msgpack.Decoder(m.Welcome).decode


class Owner(Protocol):
    """Whom a link tells what happens to it."""

    def welcomed(self, link: Link, peer: m.Peer | None) -> None:
        """The node that was called says who it is. ProtocolError: that is not who was meant."""

    def refused(self, link: Link, refusal: PenstockError) -> None:
        """The node that was called takes no link from this one."""

    def received(self, link: Link, frames: list[bytearray]) -> None:
        """Messages of the other node. ProtocolError: they make no sense."""

    def lost(self, link: Link, reason: str) -> None:
        """It is over."""


class Link(asyncio.BufferedProtocol):
    """Whole frames to and from `node`. It ends by itself when the other end is wrong or slow.

    Made with `hello` it calls the other node, and `greeted` ends when that has answered; otherwise
    it takes over a connection on which the other node has said HELLO (`adopt`).
    """

    def __init__(
        self, owner: Owner, node: int, hello: m.Peer | None = None, splitter: Splitter | None = None
    ) -> None:
        self.node = node
        self.heard_s = self.since_s = asyncio.get_running_loop().time()
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._hello = hello
        self._splitter = splitter or Splitter()
        self._transport: asyncio.Transport
        self._reason = "the other node closed it"
        self._over = False

    # --- asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other node was reached."""
        assert self._hello is not None
        self.adopt(cast(asyncio.Transport, transport))
        hello = m.Hello(PROTOCOL_VERSION, f"node {self._hello.node}", peer=self._hello)
        self._transport.write(frame(Verb.HELLO, 0, 0, m.pack(hello)))

    def adopt(self, transport: asyncio.Transport) -> None:
        """Goes on with a connection that is there."""
        self._transport = transport
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._splitter.buffer()
        return _scratch if buffer is None else buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._splitter.buffer() is not None:
                whole = self._splitter.filled(nbytes)
                self.take([] if whole is None else [whole])
            else:
                self.take(self._splitter.feed(_scratch[:nbytes]))
        except PenstockError as error:
            self.cut(error.message)

    def pause_writing(self) -> None:
        """The other node does not take what is sent. Not at once: this is called while it is."""
        reason = f"{MAX_UNSENT_BYTES >> 20} MiB are not taken"
        asyncio.get_running_loop().call_soon(self.cut, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = str(exc) or type(exc).__name__
        self._end()

    # --- frames ----------------------------------------------------------------------------

    def take(self, frames: list[bytearray]) -> None:
        """What has arrived. ProtocolError if it makes no sense; raises a refusal."""
        if not frames or self._over:
            return
        self.heard_s = asyncio.get_running_loop().time()
        if self._hello is not None:
            self._read_greeting(frames.pop(0))
        for each in frames:
            if each[4] != Verb.PEER or each[5]:
                raise ProtocolError(f"verb {each[4]} on a link between nodes")
        messages = [each for each in frames if len(each) > FRAME_BYTES]
        if messages:
            self._owner.received(self, messages)

    def _read_greeting(self, answer: bytearray) -> None:
        self._hello = None
        _, verb, flags, _, _ = FRAME.unpack_from(answer)
        body = memoryview(answer)[FRAME_BYTES:]
        if flags & Flag.ERROR:
            refusal = read_error(body)
            self._owner.refused(self, refusal)
            raise refusal
        if verb != Verb.HELLO:
            raise ProtocolError("the other node did not answer the greeting")
        try:
            welcome = _read_welcome(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a greeting that cannot be read: {error}") from error
        self._owner.welcomed(self, welcome.peer)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def send(self, messages: list[list[Buffer]]) -> int:
        """Sends messages, each given in parts, in one go; how many bytes they are."""
        if self._over or self._transport.is_closing():
            return 0
        parts: list[Buffer] = []
        size = 0
        for message in messages:
            body_bytes = sum(map(len, message))
            parts += (frame_head(Verb.PEER, 0, 0, body_bytes), *message)
            size += body_bytes
        if size <= JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        return size + len(messages) * FRAME_BYTES

    def say_here(self) -> None:
        """Tells the other node that this one lives."""
        if not self._over and not self._transport.is_closing():
            self._transport.write(_HERE)

    # --- end -------------------------------------------------------------------------------

    def cut(self, reason: str) -> None:
        """Ends it at once; the owner is told."""
        self._reason = reason
        self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if not self.greeted.done():
            self.greeted.set_exception(UnavailableError(self._reason))
            self.greeted.exception()  # nobody may wait for it
        self._owner.lost(self, self._reason)
