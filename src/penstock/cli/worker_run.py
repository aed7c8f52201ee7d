"""A worker in the foreground: signals, and a line that tells how it goes."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Any, NamedTuple

from penstock.cli.output import Output
from penstock.client.aio import Connecting
from penstock.tasks.gangs.places import GangPlaces, open_places, run_both
from penstock.tasks.provision.leaving import Leaving
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import WorkerSettings
from penstock.tasks.worker.worker import open_puller, worker_name

REPORT_S = 1.0
LOOK_S = 1.0
CONNECTING_S = 2.0  # then it is told that there is no connection yet


class Gangs(NamedTuple):
    """Places in gangs that a worker has, and where others reach what runs in them."""

    places: int
    address: str


async def work(
    connecting: Connecting,
    settings: WorkerSettings,
    gangs: Gangs,
    output: Output,
    paid: Leaving | None = None,
) -> None:
    """Runs a worker until it is told to end by a signal, or by what its time costs; tells of its
    beginning and end."""
    waiting = asyncio.get_running_loop().call_later(
        CONNECTING_S, output.note, "no node answers yet: trying on"
    )
    async with connecting as fabric:
        waiting.cancel()
        puller = await open_puller(fabric, settings)
        places = await open_places(fabric, settings, gangs.places, worker_name(), gangs.address)
        _listen_to_signals(puller, places, settings, output)
        try:
            await puller.start()
        except BaseException:
            await puller.close()
            raise
        aside = [asyncio.create_task(_report(puller, settings, output))]
        if paid is not None:
            aside.append(asyncio.create_task(_leave(puller, places, paid, output)))
        told = {"event": "started", "worker": worker_name(), "tasks": settings.task_set}
        output.record(told, f"worker {worker_name()} runs tasks of {settings.task_set!r}")
        sys.stdout.flush()
        try:
            await run_both(puller, places)
        finally:
            for each in aside:
                each.cancel()
        figures = puller.figures.as_dict()
        counts = {name: count for name, count in figures.items() if name != "busy_us"}
        text = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
        busy = f"executors busy for {figures['busy_us'] / 1e6:,.1f} s"
        output.record({"event": "stopped", **figures}, f"stopped: {text}; {busy}")


def _listen_to_signals(
    puller: Puller, places: GangPlaces, settings: WorkerSettings, output: Output
) -> None:
    loop = asyncio.get_running_loop()

    def told() -> None:
        if puller.dispatch.draining:
            puller.stop()
            places.stop()
        else:
            output.note(f"finishing {puller.dispatch.jobs:,} tasks; once more: end now")
            puller.drain()
            places.drain()
            loop.call_later(settings.drain_s, places.stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)


async def _leave(puller: Puller, places: GangPlaces, paid: Leaving, output: Output) -> None:
    """Ends the worker when it is idle, and further time would have to be paid for."""
    while True:
        await asyncio.sleep(min(LOOK_S, paid.margin_s / 3))
        paid.seen(puller.dispatch.jobs > 0 or places.busy, time.monotonic())
        if paid.should_leave(time.monotonic()):
            output.note("nothing to do, and the paid time is nearly over")
            puller.drain()
            places.drain()
            return


async def _report(puller: Puller, settings: WorkerSettings, output: Output) -> None:
    """A line every second: on a terminal always the same one; as JSON, one after the other."""
    if not output.as_json and not sys.stderr.isatty():
        return
    before = puller.figures.as_dict()
    while True:
        await asyncio.sleep(REPORT_S)
        now = puller.figures.as_dict()
        rates = {name: now[name] - before[name] for name in now}
        line = _line(now, rates, len(puller.dispatch.slots) - puller.dispatch.idle, settings)
        if output.as_json:
            output.line({"event": "progress", **line})
            sys.stdout.flush()
        else:
            shown = (
                f"running {line['running']:,} of {settings.concurrency:,}   "
                f"done {line['done']:,} ({line['done_per_s']:,}/s)   failed {line['failed']:,}   "
                f"retried {line['retried']:,}   busy {line['utilisation']:.0%}"
            )
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
        before = now


def _line(
    now: dict[str, int], rates: dict[str, int], running: int, settings: WorkerSettings
) -> dict[str, Any]:
    used = rates["busy_us"] / 1e6 / REPORT_S / settings.concurrency
    return {
        "running": running,
        "done_per_s": round(rates["done"] / REPORT_S),
        "utilisation": round(min(used, 1.0), 3),
        "busy_s": round(now["busy_us"] / 1e6 / settings.concurrency, 3),
        **{name: count for name, count in now.items() if name != "busy_us"},
    }
