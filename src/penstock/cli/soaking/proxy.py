"""`python -m penstock.cli.soaking.proxy HOST:PORT`: carries connections to a node, and cuts, delays
or holds them as its standard input says.

It prints its own address. Each line is one order: `carry` (as it should be), `cut` (all connections
are reset, and new ones at once), `hold` (nothing gets through, nobody is told), `delay SECONDS`
(everything comes that much later, in both directions). After each it prints `done`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import cast

from penstock.node.node import parse_address, run_loop

CHUNK_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: closing resets


class Proxy:
    """What is done to connections now, and all of them."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open: set[asyncio.StreamWriter] = set()
        self._through = asyncio.Event()
        self._through.set()
        self._cut = False
        self._delay = 0.0

    def obey(self, order: str, argument: str) -> None:
        """One order; ValueError if there is no such."""
        if order not in {"carry", "cut", "hold", "delay"}:
            raise ValueError(f"no such order: {order}")
        self._cut = order == "cut"
        self._delay = float(argument) if order == "delay" else 0.0
        if order == "hold":
            self._through.clear()
        else:
            self._through.set()
        if self._cut:
            for writer in list(self._open):
                reset(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        if self._cut:
            reset(writer)
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:  # the node is down
            reset(writer)
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            for each in (writer, back):
                self._open.discard(each)
                each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._through.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection as a machine does that knows nothing of it."""
    inner = cast(socket.socket, writer.get_extra_info("socket"))
    with suppress(OSError):
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def main(target: str) -> None:
    """Carries and obeys until the standard input ends."""
    proxy = Proxy(*parse_address(target))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"{host}:{port}", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, _, argument = line.strip().partition(" ")
        proxy.obey(order, argument)
        print("done", flush=True)


if __name__ == "__main__":
    run_loop(main(sys.argv[1]))
