"""The server of a node: TCP, and the socket beside its port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from penstock.engine.engine import Output
from penstock.errors import PenstockError, ProtocolError, UnavailableError
from penstock.near import BACKLOG, listen_near, widen
from penstock.node.early import Alone, alone
from penstock.node.runtime import Runtime
from penstock.wire.buffers import Buffer
from penstock.wire.frames import FRAME, VERB_AT, Flag, Splitter, Verb, error_frame, frame
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_IN_FLIGHT
from penstock.wire.spares import Spares

SCRATCH_BYTES = 1 << 20
HEAD_BYTES = 64 << 10  # taken of a frame that will not fit in there: the rest comes to its place
KEPT_BYTES = 24 << 20  # of those: what is in the cache of the engine, and on its way there
HELLO_SECONDS = 10.0
NEWCOMERS = 64  # of a cluster: so many more may say who they are, so that other nodes get in
HIGH_WATER_BYTES = 4 << 20
JOIN_BYTES = 16 << 10  # so much is sent as one piece: copying is cheaper than many pieces
ANSWER_BYTES = 1 << 20  # so much is sent before the next frame is looked at
TURN_FRAMES = MAX_IN_FLIGHT  # of one connection, then others get their turn: not all are answered
AWAKE_US = 450  # a client that gets something more often looks for the next by itself
OWED_BYTES = 16 << 20  # of one connection: so much is read from the disk for it at a time
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_UNANSWERED = {Verb.CREDIT, Verb.CANCEL}
_PUSH = int(Verb.PUSH)
_COMING = frame(Verb.COMING, 0)
_ENDING = {Verb.HELLO, Verb.CANCEL, Verb.CALL}  # after these, somebody may wait no more

log = logging.getLogger("penstock.node")

# Takes a connection over if its first frames are those of another node; whether it did.
AcceptPeer = Callable[[asyncio.Transport, Splitter, list[bytearray]], bool]


class Server:
    """Accepts connections and moves frames between them and the engine."""

    def __init__(self, runtime: Runtime, max_connections: int = 10_000) -> None:
        self.runtime = runtime
        self.max_connections = max_connections
        self.connections: dict[int, Connection] = {}
        self._spares = Spares(KEPT_BYTES)
        self.scratch = self._spares.take(SCRATCH_BYTES)  # for all: one thing comes at a time
        self.paused: set[Connection] = set()
        self._last = 0
        self._clients = 0  # connections that have said who they are
        runtime.deliver = self.deliver
        runtime.send_alone = self.send_alone
        runtime.sent_alone = self.sent_alone
        runtime.relieve = self.relieve
        runtime.on_failure.append(self.give_up)
        self.accept_peer: AcceptPeer | None = None  # in a cluster
        self._listeners: list[asyncio.AbstractServer] = []

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens, also at the socket beside the port; the address that it got."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        self._listeners.append(listener)
        address: tuple[str, int] = listener.sockets[0].getsockname()[:2]
        if (near := listen_near(*address)) is not None:
            self._listeners.append(
                await loop.create_unix_server(lambda: Connection(self), sock=near, backlog=BACKLOG)
            )
        return address

    async def adopt(self, accepted: socket.socket) -> None:
        """Serves a socket that is connected already."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: Connection(self), accepted)

    async def stop(self) -> None:
        """Accepts nothing more and closes all connections."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections.values()):
            connection.close()

    def give_up(self) -> None:
        """The node failed: clients should notice, not wait."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections.values()):
            connection.abort()

    def admit(self, connection: Connection) -> int | None:
        """A number for a new connection, or None if there are too many, or the node failed."""
        most = self.max_connections + (NEWCOMERS if self.accept_peer is not None else 0)
        if len(self.connections) >= most or self.runtime.failed is not None:
            return None
        self._last += 1
        self.connections[self._last] = connection
        return self._last

    def received(self, splitter: Splitter, nbytes: int) -> Sequence[Buffer]:
        """Whole frames in what came into `scratch`. If it is full of large ones, they are not
        copied, and the next goes elsewhere."""
        data = memoryview(self.scratch)[:nbytes]
        if 2 * nbytes >= SCRATCH_BYTES and (views := splitter.views(data)) is not None:
            self.scratch = self._spares.take(SCRATCH_BYTES)
            return views
        return splitter.feed(data)

    def let_in(self) -> bool:
        """A connection is a client's: whether there is room for one more."""
        if self._clients >= self.max_connections:
            return False
        self._clients += 1
        return True

    def let_go(self) -> None:
        """A client that was let in is gone."""
        self._clients -= 1

    def deliver(self, outputs: list[Output]) -> None:
        """Sends what the engine wants sent; connections that are gone lose theirs."""
        if len(outputs) == 1:
            self._send(outputs[0].connection, outputs)
            return
        together: dict[int, list[Output]] = {}
        for output in outputs:
            together.setdefault(output.connection, []).append(output)
        for number, own in together.items():
            self._send(number, own)

    def _send(self, number: int, outputs: list[Output]) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            connection.send(outputs)

    def send_alone(self, number: int, data: bytes) -> bool:
        """Sends answers at once, if nothing else is to be sent; from any thread. Whether it did."""
        connection = self.connections.get(number)
        return connection is not None and connection.send_alone(data)

    def sent_alone(self, number: int, answers: int) -> None:
        """So many answers were sent by that; on the loop."""
        connection = self.connections.get(number)
        if connection is not None:
            connection.answered(answers)

    def relieve(self) -> None:
        """Reads again from those that had to wait, if there is room."""
        if self.paused and not self.runtime.engine.busy:
            for connection in list(self.paused):
                connection.update_reading()


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._runtime = server.runtime
        self._splitter = Splitter()
        self._large = False  # the last frame was larger than what is received at once
        self._backlog: deque[Buffer] = deque()  # received, and not looked at yet
        self._going_on = False  # with the backlog, soon
        self._lost = False
        self._transport: asyncio.Transport
        self._number = 0
        self._let_in = False  # as a client
        self._unanswered = 0
        self._paused_reading = False
        self._near = False  # on this machine, and not over TCP
        self._due_us = 0  # when something was to be sent soon
        self._slow = False  # it does not take what is sent
        self._alone: Alone | None = None  # for answers that leave early, if they can
        self._hello: asyncio.TimerHandle | None = None

    # --- asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            keep_alive(connected)
            self._near = connected.family == socket.AF_UNIX
            widen(connected)
            self._alone = alone(self._transport)
        number = self._server.admit(self)
        if number is None:
            self._turn_away()
            return
        self._number = number
        loop = asyncio.get_running_loop()
        self._hello = loop.call_later(HELLO_SECONDS, self._no_hello)

    def _turn_away(self) -> None:
        refusal = UnavailableError("this node takes no more connections")
        self._transport.write(error_frame(Verb.HELLO, 0, refusal))
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        buffer = self._splitter.buffer()
        if buffer is not None:
            return buffer
        scratch = self._server.scratch
        return memoryview(scratch)[:HEAD_BYTES] if self._large else scratch

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes < HEAD_BYTES and self._let_in:  # most often it is one small frame
            frame = self._splitter.only(memoryview(self._server.scratch)[:nbytes])
            if frame is not None:
                self._large = False
                self._backlog.append(frame)
                self._go_on()
                return
        try:
            frames = self._cut(nbytes)
        except ProtocolError as error:
            self._transport.write(error_frame(0, 0, error))
            self._transport.close()
            return
        if not frames:
            return
        if self._let_in:
            self._backlog.extend(frames)
            self._go_on()
        else:
            self._take_first([bytearray(each) for each in frames])

    def _cut(self, nbytes: int) -> Sequence[Buffer]:
        """Whole frames that have come. The rest of one that came by itself is put off: most often
        more is there, and received before the loop goes on."""
        if self._splitter.buffer() is None:
            frames = self._server.received(self._splitter, nbytes)
            self._large = self._large and not frames
            return frames
        frame = self._splitter.filled(nbytes)
        if frame is not None:
            self._large = len(frame) > SCRATCH_BYTES
        if frame is None or not self._let_in:
            return [] if frame is None else [frame]
        self._backlog.append(frame)
        if not self._going_on and not self._paused_reading:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)
        return []

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hello is not None:
            self._hello.cancel()
        self._runtime.end_early()
        self._lost, self._alone = True, None
        self._backlog.clear()
        self._server.paused.discard(self)
        if self._let_in:
            self._server.let_go()
        if self._number:
            del self._server.connections[self._number]
            self._runtime.engine.disconnect(self._number)

    def pause_writing(self) -> None:
        self._slow = True
        self._runtime.engine.pause(self._number, True, self._runtime.clock.now_us())
        self.update_reading()

    def resume_writing(self) -> None:
        self._slow = False
        self._runtime.engine.pause(self._number, False, self._runtime.clock.now_us())
        self.update_reading()
        self._runtime.pump()

    # --- frames ----------------------------------------------------------------------------

    def _take_first(self, frames: list[bytearray]) -> None:
        """What comes before it is known who is there, or after it was turned away."""
        if self._hello is None:
            return
        self._hello.cancel()
        self._hello = None
        accept = self._server.accept_peer
        if accept is not None and accept(self._transport, self._splitter, frames):
            del self._server.connections[self._number]
            self._number = 0
            return
        if not self._server.let_in():
            self._turn_away()
            return
        self._let_in = True
        self._backlog.extend(frames)
        self._go_on()

    def _go_on(self) -> None:
        """Works off what was received. What arrived together may be more than there is room for:
        the limits hold for every frame of it. What is left is looked at in a later turn, when
        `update_reading` finds that there is room."""
        if self._lost:
            return
        self._going_on = False
        runtime, backlog = self._runtime, self._backlog
        runtime.catch_up()
        if runtime.linger is not None:
            runtime.linger.requested()
        engine, now_us = runtime.engine, runtime.clock.now_us()
        crowded, left = self._is_crowded(), TURN_FRAMES
        while backlog and left and not crowded:
            left -= 1
            frame = backlog.popleft()
            if frame[VERB_AT] not in _UNANSWERED:
                self._unanswered += 1
            if frame[VERB_AT] in _ENDING:
                runtime.end_early()
                now_us = runtime.clock.now_us()
            try:
                if frame[VERB_AT] == _PUSH and not backlog:
                    self._hasten(frame, now_us)
                engine.receive(self._number, frame, now_us)
            except Exception:  # a defect must cost one request, not the node
                self._fail(frame)
            if engine.answer_bytes > ANSWER_BYTES:
                runtime.deliver(engine.take_outputs())
            crowded = self._is_crowded()
        if crowded or backlog or self._paused_reading:
            self.update_reading()
        runtime.pump()

    def _hasten(self, push: Buffer, now_us: int) -> None:
        """Whoever waits for what is pushed wakes up while it is worked on, as that takes as long,
        and all that can be foreseen of it is done before that."""
        runtime, promises = self._runtime, self._runtime.engine.fabric.pushes.promises
        number = promises.awaited_by(push)
        if number in promises.waking and number != self._number and runtime.linger is not None:
            connection = self._server.connections.get(number)
            if connection is not None:
                connection.wake(now_us)
        if isinstance(push, bytearray):  # small ones are
            runtime.hasten(self._number, push, now_us)

    def wake(self, now_us: int) -> None:
        """Something will be sent in a moment: tells a client that may be asleep. One that is far
        away would hear of it too late."""
        quiet_us, self._due_us = now_us - self._due_us, now_us
        if self._near and quiet_us > AWAKE_US:
            self.send_alone(_COMING)

    def _fail(self, frame: Buffer) -> None:
        _, verb, _, _, request = FRAME.unpack_from(frame)
        log.exception("verb %s failed", verb)
        error = PenstockError("the node failed on this request; its log says how")
        self.send([Output(self._number, [error_frame(verb, request, error)])])

    def send(self, outputs: list[Output]) -> None:
        """Sends frames in one go (a system call each would cost more than all else), and closes
        if one of them says so."""
        parts: list[Buffer] = []
        close = False
        for output in outputs:
            parts += output.parts
            close = close or not output.parts
            if output.parts and output.parts[0][5] & Flag.RESPONSE:
                self._unanswered -= 1
        if self._paused_reading:
            self.update_reading()
        size = sum(map(len, parts))
        if size <= JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        if close:
            self._backlog.clear()
            self._transport.close()

    def send_alone(self, data: bytes) -> bool:
        """See `Server.send_alone`."""
        alone = self._alone
        return alone is not None and alone.send(data)

    def answered(self, answers: int) -> None:
        """So many requests were answered otherwise than by `send`."""
        self._unanswered -= answers
        if self._paused_reading:
            self.update_reading()

    def _is_crowded(self) -> bool:
        engine = self._runtime.engine
        return (
            self._unanswered > MAX_IN_FLIGHT
            or self._slow
            or engine.busy
            or engine.owed.bytes_for(self._number) > OWED_BYTES
        )

    def update_reading(self) -> None:
        """A client that does not read, or has too much in flight, is not read from either."""
        crowded = self._is_crowded()
        if (crowded or self._backlog) and not self._paused_reading:
            self._paused_reading = True
            self._server.paused.add(self)
            self._transport.pause_reading()
        elif not crowded and self._backlog and not self._going_on:
            self._going_on = True  # not at once: this may be in the middle of a delivery
            asyncio.get_running_loop().call_soon(self._go_on)
        elif not crowded and not self._backlog and self._paused_reading:
            self._paused_reading = False
            self._server.paused.discard(self)
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes after what was sent."""
        self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self._transport.abort()

    def _no_hello(self) -> None:
        self._transport.write(error_frame(0, 0, ProtocolError("no HELLO came in time")))
        self._transport.close()


def keep_alive(connected: socket.socket) -> None:
    """A client whose machine is gone says nothing: without this its subscriptions would take
    messages for ever."""
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


assert MAX_FRAME_BYTES > SCRATCH_BYTES, "a frame may be larger than what is received at once"
