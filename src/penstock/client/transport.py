"""Moving whole frames: the interface, and blocking TCP."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.client.spin import Spin
from penstock.errors import UnavailableError
from penstock.machine import may_spin
from penstock.near import connect_near
from penstock.wire.buffers import Buffer
from penstock.wire.frames import VERB_AT, Splitter, Verb
from penstock.wire.spares import Spares

_SCRATCH_BYTES = 64 << 10  # of what is larger, the rest is received where it stays
_MAX_PARTS = 512  # of one sendmsg; the kernel's own limit is 1024
_STALL_MS = 30_000  # a peer that reads nothing for so long is taken for lost
_SLICE_MS = 100
_SHORTEST_WAIT_S = 0.001  # that a socket can be told
_BRIEF_MS = 1  # what a shorter one is rounded up to
_NOW = int(socket.MSG_DONTWAIT)
_COMING = int(Verb.COMING)
_TIMEVAL = struct.Struct("@ll")


class Transport(Protocol):
    """A connection that carries frames. Sending and receiving may happen in different threads."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Sends frames, given in pieces; returns when the buffers may be changed again."""

    def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
        """Whole frames as they come; may return none early, and does after `timeout` seconds.

        `owed` says whether the peer owes an answer; if not, it speaks when it has something to say.
        """

    def close(self) -> None:
        """Ends it; a thread in `receive` or `send` gets UnavailableError."""


def watch_over(connection: socket.socket) -> None:
    """Has the kernel notice within half a minute that the peer's machine is gone."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not all systems can be told how often
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class SocketTransport:
    """A blocking connection, the near way or over TCP. UnavailableError from any method means that
    it is lost."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._socket = connect_near(host, port) or _connect(host, port, timeout)
        self._socket.settimeout(None)
        self._splitter = Splitter(unfilled=Spares().take)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._receiving = threading.Lock()
        self._inbox: list[bytearray] = []
        self._wait_s = 0.0
        # What comes by itself, and answers: they are waited for in turn, and take their own times.
        self._spins = (Spin(), Spin()) if may_spin() else None
        self._is_near = self._socket.family == socket.AF_UNIX

    def send(self, parts: Sequence[Buffer]) -> None:
        """Sends all parts. While the peer does not read, what it sends is taken in meanwhile."""
        if len(parts) > _MAX_PARTS:
            parts = [b"".join(parts)]
        try:
            sent = self._socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _lost(error) from error
        if sent != sum(map(len, parts)):
            self._send_rest(_unsent(parts, sent))

    def _send_rest(self, rest: Sequence[Buffer]) -> None:
        poll = select.poll()
        stalled_ms = 0
        while rest:
            # Both ends may be waiting for the other to read: whoever can, must.
            wanted = select.POLLOUT if self._receiving.locked() else select.POLLOUT | select.POLLIN
            try:
                poll.register(self._socket, wanted)
            except ValueError:  # another thread has closed it
                raise UnavailableError("the connection was lost") from None
            ready = poll.poll(_SLICE_MS)
            if not ready:
                stalled_ms += _SLICE_MS
                if stalled_ms >= _STALL_MS:
                    raise UnavailableError(f"the node has read nothing for {_STALL_MS // 1000} s")
                continue
            if ready[0][1] & select.POLLIN:
                self._take_in()
            try:
                rest = _unsent(rest, self._socket.sendmsg(rest, (), socket.MSG_DONTWAIT))
                stalled_ms = 0
            except BlockingIOError:
                continue
            except OSError as error:
                raise _lost(error) from error

    def _take_in(self) -> None:
        if self._receiving.acquire(blocking=False):
            try:
                self._inbox += self._receive_once(0.0, owed=True)
            finally:
                self._receiving.release()

    def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
        """Frames that have arrived; waits for the first bytes at most `timeout` seconds."""
        with self._receiving:
            if self._inbox:
                frames, self._inbox = self._inbox, []
                return frames
            return self._receive_once(timeout, owed)

    def _receive_once(self, timeout: float | None, owed: bool) -> list[bytearray]:
        rest = self._splitter.buffer()
        into = self._scratch if rest is None else rest
        try:
            if timeout is not None and timeout <= 0:
                count = self._socket.recv_into(into, 0, _NOW)
            elif timeout is not None and timeout < _SHORTEST_WAIT_S:
                count = self._wait(into, owed, self._receive_soon)
            else:
                self._limit_wait(timeout)
                count = self._wait(into, owed, self._socket.recv_into)
        except BlockingIOError:
            return []
        except OSError as error:
            raise _lost(error) from error
        if not count:
            raise UnavailableError("the node closed the connection")
        if rest is None:
            frames = self._splitter.feed(self._scratch[:count])
            if frames and frames[-1][VERB_AT] == _COMING and self._spins is not None:
                return self._receive_announced(frames[:-1], self._spins[owed])
            return frames
        whole = self._splitter.filled(count)
        return [] if whole is None else [whole]

    def _wait(self, into: memoryview, owed: bool, block: Callable[[memoryview], int]) -> int:
        if self._spins is None:
            return block(into)
        receive = self._socket.recv_into
        return self._spins[owed].wait(lambda: receive(into, 0, _NOW), lambda: block(into))

    def _receive_announced(self, frames: list[bytearray], spin: Spin) -> list[bytearray]:
        """The node has said that more comes in a moment: with that, if it does."""
        if frames or self._splitter.buffer() is not None:
            return frames  # something has come, or a large frame has begun to
        into, receive = self._scratch, self._socket.recv_into
        try:
            count = spin.wait_announced(lambda: receive(into, 0, _NOW))
        except OSError as error:
            raise _lost(error) from error
        return self._splitter.feed(into[:count]) if count else frames  # if it is over, that is seen

    def _receive_soon(self, into: memoryview) -> int:
        """As `recv_into`, for the last moment before a deadline. Whoever would look again and again
        instead takes the core from those that it waits for."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
        except ValueError:  # another thread has closed it
            raise UnavailableError("the connection was lost") from None
        poll.poll(_BRIEF_MS)
        return self._socket.recv_into(into, 0, _NOW)

    def make_way(self) -> None:
        """A request was sent that is waited for: a node on this machine may begin with it."""
        if self._is_near and self._spins is not None:
            self._spins[True].make_way()

    def _limit_wait(self, timeout: float | None) -> None:
        # The kernel keeps the time-out, so that a wait costs one system call and not two. It is
        # rounded down to a power of two: calls with about the same time-out do not set it again.
        wait_s = 0.0 if timeout is None else math.ldexp(0.5, math.frexp(timeout)[1])
        if wait_s == self._wait_s:
            return
        seconds = int(wait_s)
        value = _TIMEVAL.pack(seconds, int((wait_s - seconds) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._wait_s = wait_s

    def close(self) -> None:
        """Ends the connection and wakes a thread that waits on it."""
        with contextlib.suppress(OSError):  # it may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def leave(self) -> None:
        """Closes it in this process only: in another one, which it was forked from, it goes on."""
        self._socket.close()


class SeedDial:
    """Connects to one of several addresses: each time from the next one on, the first that
    answers. UnavailableError if none does."""

    def __init__(self, seeds: Sequence[tuple[str, int]]) -> None:
        self._seeds = seeds
        self._next = 0

    def __call__(self, seconds: float) -> SocketTransport:
        """One round over all of them."""
        last = len(self._seeds) - 1
        for tried in range(last + 1):
            host, port = self._seeds[self._next]
            self._next = (self._next + 1) % len(self._seeds)
            try:
                return SocketTransport(host, port, seconds / (last + 1))
            except UnavailableError:
                if tried == last:
                    raise
        raise UnavailableError("there is no address to connect to")


def _connect(host: str, port: int, timeout: float) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise UnavailableError(f"cannot connect to {host}:{port}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    watch_over(connection)
    return connection


def _lost(error: OSError) -> UnavailableError:
    return UnavailableError(f"the connection was lost: {error}")


def _unsent(parts: Sequence[Buffer], sent: int) -> list[Buffer]:
    """What is left of parts of which so many bytes were sent; nothing is copied."""
    rest: list[Buffer] = []
    for part in parts:
        if sent < len(part):
            rest.append(memoryview(part)[sent:])
        sent = max(0, sent - len(part))
    return rest
