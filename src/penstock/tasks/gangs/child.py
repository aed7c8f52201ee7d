"""The program of a member's process: `python -m …child SOCKET`, a descriptor.

The main thread runs functions, one gang after the other; a second one reads what the worker says.
When the worker is gone there is nobody to work for: the process ends at once, in the middle of a
function.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import traceback

from penstock.errors import PenstockError, from_code
from penstock.tasks.blobs.carrier import Carrier, Piece
from penstock.tasks.blobs.files import Directory
from penstock.tasks.codec import Codec
from penstock.tasks.declare import registry
from penstock.tasks.gangs.protocol import Meet, Met, NotMet, Returned, ToChild, ToWorker
from penstock.tasks.gangs.running import MemberRunner, MemberWork
from penstock.tasks.worker.loading import load
from penstock.tasks.worker.protocol import Broken, Frames, Ready, Setup, pack

_RECEIVE_BYTES = 1 << 18


class Channel:
    """What the worker says, in order, and what it is told."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._said: queue.SimpleQueue[ToChild] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        frames: Frames[ToChild] = Frames(ToChild)
        try:
            while data := self._channel.recv(_RECEIVE_BYTES):
                for message in frames.feed(data):
                    self._said.put(message)
        except (OSError, PenstockError):
            pass
        os._exit(1)

    def next(self) -> ToChild:
        """What the worker says next."""
        return self._said.get()

    def tell(self, message: ToWorker) -> None:
        """Tells the worker."""
        self._channel.sendall(pack(message))

    def piece(self) -> Piece:
        """The next piece of a large value that was asked for."""
        answer = self.next()
        assert isinstance(answer, Piece)
        return answer

    def meet(self, value: bytes, timeout: float | None) -> list[bytes]:
        """Waits for the other members."""
        self.tell(Meet(value, timeout))
        answer = self.next()
        if isinstance(answer, Met):
            return answer.values
        assert isinstance(answer, NotMet)
        raise from_code(answer.code, answer.text)


def _prepared(setup: Setup, channel: Channel) -> MemberRunner:
    for module in setup.modules:
        load(module)
    codec = Codec(registry.has_package, setup.pickle_key)
    directory = Directory(setup.directory) if setup.directory else None
    carrier = Carrier(channel.tell, channel.piece, directory)
    return MemberRunner(registry, codec, setup.worker, setup.allowed, carrier)


def main(descriptor: int) -> None:
    """Imports what it is told to, then works until the worker hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when it is over
    channel = Channel(socket.socket(fileno=descriptor))
    setup = channel.next()
    assert isinstance(setup, Setup)
    try:
        runner = _prepared(setup, channel)
    except BaseException as error:
        traceback.print_exc()
        channel.tell(Broken("".join(traceback.format_exception_only(error)).strip()))
        return
    channel.tell(Ready({}))
    while True:
        work = channel.next()
        assert isinstance(work, MemberWork)
        ended = runner.perform(work, channel.meet)
        channel.tell(Returned(ended.status, ended.outcome))


if __name__ == "__main__":
    main(int(sys.argv[1]))
