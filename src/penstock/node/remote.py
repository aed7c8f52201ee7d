"""One cold call to a node, for those who have no client: a node that joins, the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from penstock.errors import PenstockError, ProtocolError, UnavailableError, said
from penstock.node.identity import Address
from penstock.wire import messages as m
from penstock.wire.frames import (
    FRAME,
    FRAME_BYTES,
    PROTOCOL_VERSION,
    Flag,
    Verb,
    check_length,
    frame,
    read_error,
)

CONNECT_S = 3.0
CALL_S = 10.0

T = TypeVar("T")


async def ask_any(nodes: Sequence[Address], call: m.Request, answer: type[T]) -> T:
    """The answer of the first node that can be reached; what it refuses with is final.
    UnavailableError if none can be reached or says that it cannot now."""
    problems: list[str] = []
    for host, port in nodes:
        try:
            return (await ask_node((host, port), call, answer))[1]
        except UnavailableError as error:
            problems.append(f"{host}:{port}: {error.message}")
    raise UnavailableError(
        f"no node answers: {'; '.join(problems)}", advice="Check the addresses and the nodes."
    )


async def ask_node(
    node: Address, call: m.Request, answer: type[T], seconds: float = CALL_S
) -> tuple[m.Welcome, T]:
    """What a node says of itself, and its answer; raises its refusal, or UnavailableError."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(*node)
    except (OSError, TimeoutError) as error:
        raise UnavailableError(f"cannot connect: {said(error)}") from error
    try:
        async with asyncio.timeout(seconds):
            hello = m.Hello(PROTOCOL_VERSION, "node")
            writer.write(frame(Verb.HELLO, 0, 0, m.pack(hello)))
            writer.write(frame(Verb.CALL, 1, 0, m.pack(call)))
            welcome = msgspec.msgpack.decode(await _answer(reader), type=m.Welcome)
            return welcome, msgspec.msgpack.decode(await _answer(reader), type=answer)
    except (OSError, TimeoutError, EOFError) as error:
        raise UnavailableError(f"no answer: {said(error)}") from error
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an answer that cannot be read: {error}") from error
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(FRAME_BYTES)
    length, _, flags, _, _ = FRAME.unpack(head)
    body = await reader.readexactly(check_length(length) - FRAME_BYTES)
    if flags & Flag.ERROR:
        refusal: PenstockError = read_error(body)
        raise refusal
    return body
