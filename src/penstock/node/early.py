"""Answers that leave as soon as what they confirm is on the disk, before anything follows from it.

Of a sync they leave from the journal's thread. Otherwise that thread wakes the loop, and the loop
answers: to be woken takes as long as half a sync of a good disk. The loop hears of it all the same,
and before it looks at anything that a client says after that: whoever has such an answer finds what
it confirms. Of a write that the loop does itself, they leave before it takes note of the write:
of a loop that was asleep that is half of its work.

It needs the compiled `_sending` and uvloop, whose transports write with the GIL held or not at all;
otherwise, and whenever something else waits to be sent, the loop answers as ever.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock.store.flush import Sync
from penstock.wire.entry import Entry
from penstock.wire.frames import Flag
from penstock.wire.packing import PURE

COMPILED = False  # whether answers can leave early
if not PURE:
    with suppress(ImportError):
        from penstock.node import _sending

        COMPILED = True

MOST_ANSWERS = 64  # at a time: where there are more, the loop is awake
MOST_BYTES = 32 << 10  # to one connection: so much fits into any socket's buffer
_FLAGS_AT = 5  # in a frame
SendAlone = Callable[[int, bytes], bool]  # to a connection; whether it did


class Alone:
    """Sends through a transport of uvloop from any thread."""

    __slots__ = ("_buffered", "_fileno", "_is_closing", "_whole")

    def __init__(self, transport: asyncio.Transport) -> None:
        connected = transport.get_extra_info("socket")
        self._fileno = connected.fileno  # -1 once it is closed
        # Linux takes what is small beside the buffer whole or not at all there; elsewhere it is
        # asked for room first.
        unix = sys.platform == "linux" and connected.family == socket.AF_UNIX
        room = connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) if unix else 0
        self._whole = room >= 4 * MOST_BYTES
        self._is_closing = transport.is_closing
        self._buffered = transport.get_write_buffer_size

    def send(self, data: bytes) -> bool:
        """Sends, if nothing else waits to be sent and there is much room; whether it did. It never
        waits. Should only part of it be taken all the same, that ends the connection."""
        return _sending.send_alone(
            self._fileno, self._is_closing, self._buffered, self._whole, data
        )


def alone(transport: asyncio.Transport) -> Alone | None:
    """How to send through a transport from any thread; None if that cannot be."""
    if not COMPILED or not type(transport).__module__.startswith("uvloop"):
        return None
    return None if transport.get_extra_info("socket") is None else Alone(transport)


def may_leave(entry: Entry) -> bool:
    """Whether something is to be sent as soon as the entry is safe, and somebody waits for it."""
    if entry.reply is None or entry.in_turn or entry.answered or entry.refused:
        return False
    told = entry.answer is None and entry.done is None
    return not (told or (entry.reader is not None and entry.reader.over))


def is_answer(data: bytes) -> bool:
    """Whether a frame answers a request; a delivery does not."""
    return bool(data[_FLAGS_AT] & Flag.RESPONSE)


class Early:
    """The answers that one trip to the disk makes due: `send` is called in a thread after it, `end`
    on the loop, which may come first."""

    def __init__(self, entries: Iterable[Entry], send: SendAlone) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._over = False
        self._answers: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.reply is not None and may_leave(entry):
                self._answers.setdefault(entry.reply[0], []).append(entry)
        self.sent: list[tuple[int, int]] = []
        """Connections, and how many of their requests were answered; once it has ended."""

    def __bool__(self) -> bool:
        """Whether there are some, and not so many that the loop is awake anyway."""
        return 0 < sum(map(len, self._answers.values())) <= MOST_ANSWERS

    def send(self) -> None:
        """Sends what can be sent."""
        with self._lock:
            for connection, entries in self._answers.items() if not self._over else ():
                answers = [entry.reply[1] for entry in entries if entry.reply is not None]
                together = b"".join(answers)
                if len(together) <= MOST_BYTES and self._send(connection, together):
                    asked = sum(map(is_answer, answers))
                    self.sent.append((connection, asked))
                    for entry in entries:
                        entry.answered = True

    def end(self) -> None:
        """From now on nothing is sent any more, and `answered` of the entries says what was."""
        with self._lock:
            self._over = True


class Known(Early):
    """The same for a push whose sync begins before the core works on it: what will be sent is known
    before there are entries that wait for it. They are given to it as soon as there are."""

    def __init__(
        self, replies: Sequence[tuple[int, bytes]], send: SendAlone, file: str, end: int
    ) -> None:
        super().__init__((), send)
        self.file = file  # that is synced
        self.until = end  # the position in the journal up to which that was written
        self._replies = replies
        self._left: list[tuple[int, bytes]] = []
        self.entries: Sequence[Entry] = ()
        self.sync: Sync | None = None  # that is run

    def __bool__(self) -> bool:
        return True

    def send(self) -> None:
        with self._lock:
            for connection, answer in self._replies:
                if self._over or not self._send(connection, answer):
                    return
                self._left.append((connection, answer))
                self.sent.append((connection, int(is_answer(answer))))

    def end(self) -> None:
        super().end()
        for entry in self.entries:
            entry.answered = entry.answered or entry.reply in self._left
