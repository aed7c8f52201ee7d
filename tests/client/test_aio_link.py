"""One link of a cluster's client: what counts as a sign that its node is well."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.aio_link import Events, Link
from penstock.client.aio_wire import Wire
from penstock.client.requests import Request, Resend
from penstock.client.welcome import new_hello
from penstock.errors import NotFoundError, PenstockError, UnavailableError
from penstock.wire.frames import Verb, error_frame


async def answered_with(error: PenstockError) -> bool:
    events = Events(lambda *_: False, lambda: None, lambda *_: None)
    link = Link(1, ("host", 7411), new_hello("client"), events)
    link._wire = wire = Wire(link._received, link._ended)
    pending = link.start(Request(Verb.CALL, [b""], Resend.ANEW))
    link._received(wire, [bytearray(error_frame(Verb.CALL, pending.id, error))])
    return link.answered


@pytest.mark.parametrize(
    ("error", "is_well"), [(UnavailableError("later"), False), (NotFoundError("no"), True)]
)
def test_who_sends_a_client_away_is_left_alone_for_a_while(error: PenstockError, is_well: bool):
    assert asyncio.run(answered_with(error)) is is_well
