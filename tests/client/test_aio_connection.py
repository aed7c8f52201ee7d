"""One connection of the asyncio shell, and a link of a cluster: peers that go, or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.client.conftest import Line

from penstock.client.aio_connection import AsyncConnection
from penstock.client.aio_link import Address, Events, Link
from penstock.client.aio_wire import Wire
from penstock.client.requests import Request, Resend
from penstock.client.welcome import new_hello
from penstock.embedded import InlineLoopTransport
from penstock.errors import UnavailableError
from penstock.wire.frames import Verb
from penstock.wire.messages import Stats, pack

SOON_S = 20.0


class Greeting(InlineLoopTransport):
    """Is lost right behind the greeting: nobody has looked at that yet."""

    def _receive(self) -> None:
        super()._receive()
        self._wire.connection_lost(None)


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
