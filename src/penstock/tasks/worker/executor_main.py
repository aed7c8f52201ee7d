"""The program of an executor process: `python -m …executor_main SOCKET BEACON`, two descriptors.

The main thread runs functions, one after the other. A second one reads what the puller says, gives
back what is not begun, and sends results that the main thread has no time to send. When the puller
is gone there is nobody to work for: the process ends at once, in the middle of a function.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque

from penstock.tasks.blobs.carrier import Piece
from penstock.tasks.declare import registry
from penstock.tasks.worker.beacon import Beacon
from penstock.tasks.worker.jobs import Ended
from penstock.tasks.worker.loading import load
from penstock.tasks.worker.protocol import (
    Broken,
    Frames,
    Ready,
    Results,
    Return,
    Returned,
    Run,
    Setup,
    ToExecutor,
    ToPuller,
    Work,
    pack,
)
from penstock.tasks.worker.running import OwnLoop, Runner, rates_of, runner_of

FLUSH_NS = 1_000_000  # results wait no longer than that while more are made
LATE_FLUSH_MS = 2  # and no longer than that, behind a function that takes its time
_RECEIVE_BYTES = 1 << 18


class Executor:
    """Jobs that wait, and results that are not sent yet. `pending` is shared by the two threads:
    the main one takes from its left, the other adds to its right and takes back from there."""

    def __init__(self, channel: socket.socket, beacon: Beacon) -> None:
        self._channel = channel
        self._beacon = beacon
        self._frames: Frames[ToExecutor] = Frames(ToExecutor)
        self._pending: deque[Work] = deque()
        self._ended: list[Ended] = []
        self._sending = threading.Lock()
        self._arrived = threading.Event()
        self.pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()  # of large values

    # --- the main thread -------------------------------------------------------------------

    def work(self, runner: Runner) -> None:
        """Runs jobs for ever."""
        flushed_ns = 0
        pending, begin, wait = self._pending, self._beacon.begin, OwnLoop().wait
        while True:
            try:
                work = pending.popleft()
            except IndexError:
                self.flush()
                self._rest()
                continue
            now_ns = time.monotonic_ns()
            if now_ns - flushed_ns > FLUSH_NS:
                self.flush()
                flushed_ns = now_ns
            begin(work.number, now_ns // 1000)
            ended = runner.run(work, wait)
            with self._sending:
                self._ended.append(ended)

    def _rest(self) -> None:
        while not self._pending:
            self._arrived.wait()
            self._arrived.clear()

    # --- both ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sends the results that wait."""
        with self._sending:
            ended, self._ended = self._ended, []
            if ended:
                self._channel.sendall(pack(Results(ended)))

    def say(self, message: ToPuller) -> None:
        """Sends a message."""
        with self._sending:
            self._channel.sendall(pack(message))

    # --- the other thread ------------------------------------------------------------------

    def first(self) -> Setup:
        """What the puller says first."""
        for message in self._receive():
            assert isinstance(message, Setup)
            return message
        return self.first()

    def listen(self) -> None:
        """Does what the puller says until it is gone; then the process ends."""
        try:
            readable = select.poll()
            readable.register(self._channel, select.POLLIN)
            while True:
                late = self._pending or self._ended  # the main thread sends the last ones itself
                if readable.poll(LATE_FLUSH_MS if late else None):
                    for message in self._receive():
                        self._take(message)
                else:
                    self.flush()
        finally:
            os._exit(1)

    def _receive(self) -> list[ToExecutor]:
        data = self._channel.recv(_RECEIVE_BYTES)
        if not data:
            os._exit(0)
        return list(self._frames.feed(data))

    def _take(self, message: ToExecutor) -> None:
        if isinstance(message, Run):
            self._pending.extend(message.jobs)
            self._arrived.set()
        elif isinstance(message, Piece):
            self.pieces.put(message)
        elif isinstance(message, Return):
            back: list[int] = []
            while len(back) < message.jobs and self._pending:
                try:
                    back.append(self._pending.pop().number)
                except IndexError:  # the main thread was faster
                    break
            self.say(Returned(back))


def main(descriptor: int, beacon: int) -> None:
    """Imports what it is told to, says so, and works."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the puller decides when it is over
    executor = Executor(socket.socket(fileno=descriptor), Beacon(beacon))
    setup = executor.first()
    threading.Thread(target=executor.listen, daemon=True).start()  # before: modules may take long
    try:
        for module in setup.modules:
            load(module)
    except BaseException as error:
        traceback.print_exc()  # first: the puller hangs up when it has heard
        executor.say(Broken("".join(traceback.format_exception_only(error)).strip()))
        sys.exit(1)
    runner = runner_of(setup, executor.say, executor.pieces.get)
    executor.say(Ready(rates_of(registry), registry.names()))
    executor.work(runner)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
