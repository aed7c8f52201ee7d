"""The program of an executor process: `python -m …executor_main SOCKET BEACON`, two descriptors.

The main thread runs functions, one after the other; when it has nothing to run, it reads what the
puller says. While it is busy, a second one does that, gives back what is not begun, and sends
results that the main thread has no time to send. When the puller is gone there is nobody to work
for: the process ends at once, in the middle of a function.
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
from collections.abc import Callable
from contextlib import suppress

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
LATE_FLUSH_S = 0.002  # and no longer than that, behind a function that takes its time
_RECEIVE_BYTES = 1 << 18
_WAKES_BYTES = 1 << 10
Watch = Callable[[float | None], list[int]]


class Executor:
    """Jobs that wait, and results that are not sent yet. `pending` is shared by the two threads:
    the main one takes from its left; who receives, adds to its right and takes back from there."""

    def __init__(self, channel: socket.socket, beacon: Beacon) -> None:
        self._channel = channel
        self._beacon = beacon
        self._frames: Frames[ToExecutor] = Frames(ToExecutor)
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))  # a new one each time is costly
        self._pending: deque[Work] = deque()
        self._ended: list[Ended] = []
        self._sending = threading.Lock()
        self._receiving = threading.Lock()  # held by the main thread while it rests
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._watch_idle = watch(channel)  # first: if both threads watch, this one is woken
        self._watch_busy = watch(channel, self._woken)
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
        """Receives until there is something to run: to pass it on from one thread to the other
        would take as long as a short task."""
        with self._receiving:
            while not self._pending:
                self._watch_idle(None)
                self._receive()
        if len(self._pending) > 1:  # from now on results may be late: somebody has to watch
            with suppress(BlockingIOError):  # it was told often enough
                self._wakes.send(b"\0")

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
        for message in self._received():
            assert isinstance(message, Setup)
            return message
        self._watch_idle(None)
        return self.first()

    def listen(self) -> None:
        """Does what the puller says until it is gone; then the process ends."""
        try:
            while True:
                late = self._pending or self._ended  # the main thread sends the last ones itself
                ready = self._watch_busy(LATE_FLUSH_S if late else None)
                if self._woken.fileno() in ready:
                    self._woken.recv(_WAKES_BYTES)
                elif ready:
                    with self._receiving:
                        self._receive()
                else:
                    self.flush()
        finally:
            os._exit(1)

    # --- whichever receives ----------------------------------------------------------------

    def _receive(self) -> None:
        for message in self._received():
            self._take(message)

    def _received(self) -> list[ToExecutor]:
        """What has come; nothing if the other thread was faster."""
        try:
            size = self._channel.recv_into(self._scratch, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not size:
            os._exit(0)
        return list(self._frames.feed(self._scratch[:size]))

    def _take(self, message: ToExecutor) -> None:
        if isinstance(message, Run):
            self._pending.extend(message.jobs)
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


def watch(*sockets: socket.socket) -> Watch:
    """Waits until there is something to read, or for so many seconds; the descriptors that have
    something. Of several threads that wait for the same socket, only the one whose watch was made
    first is woken, where the system can do that."""
    if sys.platform == "linux":
        watched = select.epoll()
        for each in sockets:
            watched.register(each, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        return lambda seconds: [number for number, _ in watched.poll(seconds)]
    polled = select.poll()
    for each in sockets:
        polled.register(each, select.POLLIN)
    return lambda seconds: [
        number for number, _ in polled.poll(None if seconds is None else 1000 * seconds)
    ]


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
