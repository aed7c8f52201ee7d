"""Making a blocking connection: dialling, greeting, and patience."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.client.reconnect import CONNECT_S, IS_A_NODE_THERE, pause_s
from penstock.client.transport import Transport
from penstock.client.welcome import hello_frame, read_welcome
from penstock.errors import ClosedError, DeadlineError, UnavailableError
from penstock.wire.messages import Hello, Welcome

Dial = Callable[[float], Transport]
_BRIEFLY_S = 1.0  # for an attempt that nobody waits for: it keeps others from theirs


class Dialer:
    """Tries until a deadline. `strikes` counts attempts; whoever hears from the node resets it."""

    def __init__(self, dial: Dial, hello: Hello) -> None:
        self._dial = dial
        self._hello = hello
        self._stopped = threading.Event()
        self.strikes = 0
        self._in_vain = 0  # attempts of `connect_once` since there was a connection
        self._again_s = 0.0  # when it may try next

    def stop(self) -> None:
        """Ends a `connect` under way with ClosedError."""
        self._stopped.set()

    def connect(self, deadline: float) -> tuple[Transport, Welcome]:
        """A greeted connection; DeadlineError if there is none in time.

        The first attempt is made at once, unless the last connection brought no answer.
        """
        lost: UnavailableError | None = None
        while True:
            if self.strikes:
                self._pause(deadline, lost)
            self.strikes += 1
            self._again_s = time.monotonic() + pause_s(self.strikes)
            try:
                return self._attempt(deadline)
            except ClosedError:  # there is nothing to wait for
                raise
            except UnavailableError as error:
                lost = error

    def connect_once(self) -> tuple[Transport, Welcome] | None:
        """One short attempt, for what nobody waits for; None if it is too soon after the last one.

        There are the same pauses as in `connect`, but nobody sleeps through them here; and whoever
        calls `connect` next does not pay for what was in vain. UnavailableError: it was.
        """
        now = time.monotonic()
        if now < self._again_s:
            return None
        self._in_vain += 1
        self._again_s = now + pause_s(self._in_vain + self.strikes)
        made = self._attempt(now + _BRIEFLY_S)
        self.strikes += 1
        return made

    def _pause(self, deadline: float, lost: UnavailableError | None) -> None:
        seconds = pause_s(self.strikes)
        if time.monotonic() + seconds >= deadline:
            text = "the node takes no requests" if lost is None else lost.message
            raise DeadlineError(f"no connection: {text}", advice=IS_A_NODE_THERE) from lost
        if self._stopped.wait(seconds):
            raise ClosedError("the fabric is closed")

    def _attempt(self, deadline: float) -> tuple[Transport, Welcome]:
        seconds = max(min(deadline - time.monotonic(), CONNECT_S), 0.001)
        transport = self._dial(seconds)
        try:
            _greet(transport, hello_frame(self._hello))
            until = time.monotonic() + seconds
            while not (frames := transport.receive(max(until - time.monotonic(), 0.001))):
                if time.monotonic() >= until:
                    raise UnavailableError("the node did not answer the greeting")
            welcome = read_welcome(frames)
            self._in_vain = 0
            return transport, welcome
        except BaseException:
            transport.close()
            raise


def _greet(transport: Transport, hello: bytes) -> None:
    """A node that takes nobody says why and hangs up, perhaps before it is greeted: what it said
    counts more than that."""
    try:
        transport.send([hello])
    except UnavailableError:
        if frames := transport.receive(0.0):
            read_welcome(frames)
        raise
