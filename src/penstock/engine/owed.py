"""What is being read for connections, and the answers that must not overtake it."""

from __future__ import annotations

from penstock.core.effects import Deliver, Send, Serve
from penstock.engine.delivery import bytes_of


class Owed:
    """Reads under way, by the connection that waits for them."""

    def __init__(self) -> None:
        self._reads: dict[int, dict[int, int]] = {}  # by connection: numbers and bytes
        self._behind: dict[int, list[tuple[set[int], Send]]] = {}  # what each waits for
        self._begun = 0

    def begin(self, effect: Deliver | Serve) -> int:
        """Something is to be read; its number, for `end`."""
        self._begun += 1
        self._reads.setdefault(effect.connection, {})[self._begun] = bytes_of(effect)
        return self._begun

    def end(self, connection: int, number: int) -> list[Send]:
        """A read is over: what may be sent once its answer was."""
        reads = self._reads[connection]
        del reads[number]
        if not reads:
            del self._reads[connection]
        free: list[Send] = []
        for awaited, send in self._behind.get(connection, ()):
            awaited.discard(number)
            if not awaited:
                free.append(send)
        if free:
            kept = [each for each in self._behind.pop(connection) if each[0]]
            if kept:
                self._behind[connection] = kept
        return free

    def holds(self, send: Send) -> bool:
        """Whether an answer has to wait for what is being read for its connection; `end` gives it
        out then. As many can be held as a connection may have requests in flight."""
        reads = self._reads.get(send.connection)
        if not (send.behind and reads):
            return False
        self._behind.setdefault(send.connection, []).append((set(reads), send))
        return True

    def bytes_for(self, connection: int) -> int:
        """How much is being read for a connection."""
        reads = self._reads.get(connection)
        return sum(reads.values()) if reads else 0
