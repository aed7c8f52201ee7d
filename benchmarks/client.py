"""A client process: `python -m benchmarks.client SYSTEM LOAD JSON`.

Connects, prints a line, waits for one, does its load, and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from benchmarks.loads import AWAITED, CONSUMING, LOADS
from benchmarks.system import Client, Place
from benchmarks.systems import client_of

READY = "ready"


async def work(client: Client, load: str, arguments: dict[str, Any]) -> None:
    """All that the process does. A load that waits for the server connects by itself."""
    if load not in AWAITED:
        await client.open()
        if arguments.get("reset"):
            await client.reset()
    if load in CONSUMING:
        await client.prepare()
    print(READY, flush=True)
    sys.stdin.readline()
    result = await LOADS[load](client, arguments)
    print(json.dumps(result), flush=True)
    await client.close()


def main(system: str, load: str, text: str) -> None:
    """Runs on uvloop only where the library gains from it."""
    arguments = json.loads(text)
    client = client_of(system, Place(*arguments["place"]))
    (uvloop.run if client.uvloop else asyncio.run)(work(client, load, arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
