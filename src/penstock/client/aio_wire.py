"""One TCP connection of the asyncio shell: frames in, parts out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

from penstock.client.transport import watch_over
from penstock.errors import PenstockError, ProtocolError, UnavailableError
from penstock.wire.buffers import Buffer
from penstock.wire.frames import Splitter
from penstock.wire.spares import Spares

_SCRATCH_BYTES = 64 << 10  # of what is larger, the rest is received where it stays
_HIGH_WATER_BYTES = 1 << 20
_CLOSE_S = 1.0


class Wire(asyncio.BufferedProtocol):
    """Calls `received` with whole frames, and `ended` once, when it is lost or closed."""

    def __init__(
        self,
        received: Callable[[Wire, list[bytearray]], None],
        ended: Callable[[Wire, PenstockError], None],
    ) -> None:
        self._received = received
        self._ended = ended
        self._splitter = Splitter(unfilled=Spares().take)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[Buffer] = []
        self._error: PenstockError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()

    # --- asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        watch_over(self._transport.get_extra_info("socket"))

    def attach(self, transport: asyncio.Transport) -> None:
        """Instead of `connection_made`, for a transport that is no socket: it gives whole frames
        to `deliver`."""
        self._transport = transport

    def deliver(self, frames: list[bytearray]) -> None:
        """Whole frames have come."""
        if self._error is None:
            self._received(self, frames)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop: a large frame is received straight into its own buffer."""
        rest = self._splitter.buffer()
        return self._scratch if rest is None else rest

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop."""
        try:
            if self._splitter.buffer() is None:
                frames = self._splitter.feed(self._scratch[:nbytes])
            else:
                whole = self._splitter.filled(nbytes)
                frames = [] if whole is None else [whole]
        except ProtocolError as error:
            self.close(error)
            return
        if frames:
            self.deliver(frames)

    def pause_writing(self) -> None:
        """Called by the loop: the peer does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._gone.set()
        why = "the node closed the connection" if exc is None else f"the connection was lost: {exc}"
        self.close(UnavailableError(why))

    # --- for the connection ------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Whether more is waiting to be sent than should."""
        return not self._writable.is_set()

    async def writable(self) -> None:
        """Waits until the peer has read, or is lost."""
        await self._writable.wait()

    def check_open(self) -> None:
        """UnavailableError if it has ended: that may be before whoever waited for its first frame
        is awake."""
        if self._error is not None:
            raise UnavailableError(self._error.message)

    async def closed(self) -> None:
        """After `close`: waits until everything was sent and the socket is closed, or a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._gone.wait()
        if self._transport is not None:
            self._transport.abort()

    def send(self, parts: list[Buffer]) -> None:
        """Sends parts at the end of this turn of the loop, together with others."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts

    def _flush(self) -> None:
        parts, self._out = self._out, []
        if self._transport is not None and self._error is None:
            self._transport.writelines(parts)

    def close(self, error: PenstockError) -> None:
        """Ends the connection, after what was sent; `ended` is called with the error."""
        if self._error is not None:
            return
        self._flush()
        self._error = error
        self._writable.set()
        if self._transport is not None:
            self._transport.close()
        self._ended(self, error)

    def drop(self, error: PenstockError) -> None:
        """As `close`, of a peer that may never read what was not sent yet: it is not kept."""
        self._out.clear()
        self.close(error)
        if self._transport is not None:
            self._transport.abort()
