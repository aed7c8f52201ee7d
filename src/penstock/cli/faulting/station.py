"""A station: the clients at one place of the network, in one process.

`python -m penstock.cli.faulting.station URL FOLDER WORK NUMBER …` says `ready` and works. When its
standard input says `rest`, nothing new is begun, and it says `resting` once the last request of a
maker has its answer (`busy` if that takes too long). It ends when its standard input does.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock import Fabric, connect
from penstock.cli.faulting import queue_work, table_work, topic_work
from penstock.cli.faulting.pace import Orders
from penstock.cli.grouping import collecting, publishing

TIMEOUT_SECONDS = 60.0  # of a call: an outage may last so long
REST_SECONDS = 2 * TIMEOUT_SECONDS  # for the calls that makers have begun
END_SECONDS = 20.0

Work = Callable[[Fabric, int, Path, Orders], None]
WORKS: dict[str, Work] = {
    "produce": queue_work.produce,
    "consume": queue_work.consume,
    "publish": topic_work.publish,
    "read": topic_work.read,
    "count": table_work.count,
    "clicks": publishing.publish,
    "collect": collecting.collect,
}
MAKERS = {"produce", "publish", "count", "clicks"}  # what ends when it is told to rest


class Worker(threading.Thread):
    """One client with a connection of its own. `failed`: it ended with an error that it should not
    have had; the log has it."""

    def __init__(self, url: str, folder: Path, work: str, number: int, orders: Orders) -> None:
        super().__init__(name=f"{work}-{number}", daemon=True)
        self._url, self._folder, self._number = url, folder, number
        self._work = WORKS[work]
        self.makes = work in MAKERS
        self._orders = orders
        self.failed = True

    def run(self) -> None:
        """Works until the orders say that it is enough."""
        with connect(self._url, TIMEOUT_SECONDS, name=self.name) as fabric:
            self._work(fabric, self._number, self._folder, self._orders)
            self.failed = False


def main() -> int:
    """Runs the works named by the arguments; the exit code says whether one failed."""
    url, folder, *works = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    orders = Orders(threading.Event(), threading.Event())
    pairs = zip(works[::2], map(int, works[1::2]), strict=True)
    workers = [Worker(url, Path(folder), work, number, orders) for work, number in pairs]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "rest":
            orders.rest.set()
            print("resting" if _rested(workers) else "busy", flush=True)
    orders.rest.set()
    orders.end.set()
    for worker in workers:
        worker.join(END_SECONDS)
    return int(any(worker.is_alive() or worker.failed for worker in workers))


def _rested(workers: list[Worker]) -> bool:
    """Whether all makers have ended, after a while."""
    until = time.monotonic() + REST_SECONDS
    makers = [worker for worker in workers if worker.makes]
    for maker in makers:
        maker.join(max(until - time.monotonic(), 0.0))
    return not any(maker.is_alive() for maker in makers)


if __name__ == "__main__":
    sys.exit(main())
