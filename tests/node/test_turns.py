"""Frames that nobody answers are worked off in turns: others are served in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.node.raw import RawClient

from penstock.node import server
from penstock.node.node import Config, Node, run_loop
from penstock.node.server import TURN_FRAMES, Connection
from penstock.wire import messages as m
from penstock.wire.frames import Flag, Verb, frame

FRAMES = 20 * TURN_FRAMES
LAST = 1 << 40


def _flood(address: tuple[str, int]) -> tuple[int, int]:
    """Many frames that are not answered, and one that is: what comes of that."""
    with RawClient(address) as client:
        one = frame(Verb.CANCEL, 7)
        last = frame(Verb.CALL, LAST, 0, m.pack(m.Stats()))
        client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client._socket.sendall(one * FRAMES + last)
        _, flags, request, _ = client.next_frame()
        # It is read from again, too.
        client.call(m.Stats())
        return flags, request


def test_no_turn_works_off_more_than_so_many_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    go_on: Callable[[Connection], None] = Connection._go_on

    def counted(connection: Connection) -> None:
        before = len(connection._backlog)
        go_on(connection)
        turns.append(before - len(connection._backlog))

    monkeypatch.setattr(server.Connection, "_go_on", counted)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            flooding = asyncio.to_thread(partial(_flood, node.address))
            assert await flooding == (Flag.RESPONSE, LAST)
            assert not node._server.paused

    run_loop(asyncio.wait_for(main(), 20))
    assert max(turns) <= TURN_FRAMES
    assert sum(turns) == FRAMES + 3  # HELLO, and two looks


def test_others_are_served_between_the_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            reader, writer = await asyncio.open_connection(*node.address)
            writer.write(frame(Verb.HELLO, 1, 0, m.pack(m.Hello(1))))
            await reader.read(1)
            (connection,) = node._server.connections.values()
            connection._backlog.extend([frame(Verb.CANCEL, 7)] * FRAMES)
            connection._go_on()
            left: list[int] = []
            while connection._backlog:
                left.append(len(connection._backlog))
                await asyncio.sleep(0)  # others' turn
            assert left[0] == FRAMES - TURN_FRAMES
            assert len(left) >= FRAMES // TURN_FRAMES - 1
            assert not connection._paused_reading
            writer.close()

    run_loop(asyncio.wait_for(main(), 20))
