"""One connection of the asyncio shell, and a link of a cluster: peers that go, or do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.client.conftest import Line

from penstock.client.aio_connection import AsyncConnection
from penstock.client.aio_link import Address, Events, Link
from penstock.client.aio_wire import Wire
from penstock.client.requests import Request, Resend
from penstock.client.welcome import new_hello
from penstock.embedded import InlineLoopTransport
from penstock.errors import DeadlineError, UnavailableError
from penstock.wire.frames import FRAME, FRAME_BYTES, Flag, Verb, frame
from penstock.wire.messages import Stats, Welcome, pack

SOON_S = 10.0
LARGE = 12 << 20
WELCOME = Welcome(1, "n", 1, 16, 2 * LARGE, 100)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Whoever connects can send little before somebody reads."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        made.bind(("127.0.0.1", 0))
        made.listen()
        made.setblocking(False)
        yield made


class Greeting(InlineLoopTransport):
    """Is lost right behind the greeting: nobody has looked at that yet."""

    def _receive(self) -> None:
        super()._receive()
        self._wire.connection_lost(None)


loop = asyncio.get_running_loop


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SOON_S))


def test_a_connection_that_is_lost_behind_the_greeting_is_made_again(line: Line):
    dials = [Greeting, InlineLoopTransport]

    async def dial(wire: Wire) -> None:
        dials.pop(0)(line.inline, wire)

    async def test() -> None:
        connection = AsyncConnection(dial, new_hello("a test"), 1.0)
        await connection.open()
        asked = Request(Verb.CALL, [pack(Stats())], Resend.ANEW)
        assert await connection.finish(await connection.start(asked))
        assert not dials
        await connection.close()

    in_loop(test())


def test_a_link_that_is_lost_behind_the_greeting_cannot_be_opened(line: Line):
    async def dial(wire: Wire, address: Address) -> None:
        Greeting(line.inline, wire)

    async def test() -> None:
        events = Events(lambda *_: False, lambda: None, lambda *_: None)
        link = Link(1, ("host", 7411), new_hello("client"), events)
        with pytest.raises(UnavailableError, match="closed the connection"):
            await link.open(dial)
        assert not link.ready

    in_loop(test())


async def greeted(listener: socket.socket) -> socket.socket:
    """A peer that has said welcome to whoever comes, and reads nothing more."""
    peer, _ = await loop().sock_accept(listener)
    await loop().sock_recv(peer, 4096)
    await loop().sock_sendall(peer, frame(Verb.HELLO, 0, Flag.RESPONSE, pack(WELCOME)))
    return peer


async def read_all(peer: socket.socket) -> int:
    """How many bytes come before the end."""
    count = 0
    while data := await loop().sock_recv(peer, 1 << 20):
        count += len(data)
    return count


def test_a_node_that_does_not_read_is_waited_for_until_the_deadline(listener: socket.socket):
    async def dial(wire: Wire) -> None:
        await loop().create_connection(lambda: wire, *listener.getsockname())

    async def test() -> None:
        connection = AsyncConnection(dial, new_hello("a test"), SOON_S)
        _, deaf = await asyncio.gather(connection.open(), greeted(listener))
        large = await connection.start(Request(Verb.PUSH, [bytes(LARGE)], Resend.MARKED))
        await asyncio.sleep(0)  # it is sent at the end of this turn
        connection.timeout_s = 0.3
        with pytest.raises(DeadlineError, match="does not read"):
            await connection.start(Request(Verb.PUSH, [b"small"], Resend.MARKED))
        connection.timeout_s = SOON_S
        with closing(deaf), closing(await greeted(listener)) as peer:  # it was looked for anew
            assert await read_all(deaf) < LARGE
            head = await loop().sock_recv(peer, FRAME_BYTES)
            length, *_, number = FRAME.unpack(head)
            assert (length, number) == (FRAME_BYTES + LARGE, large.id)
            await loop().sock_sendall(peer, frame(Verb.PUSH, number, Flag.RESPONSE))
            assert await connection.finish(large)
        await connection.close()

    in_loop(test())
