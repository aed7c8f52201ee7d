"""Watches: connections that hear of changes to the keys of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.effects import Send
from penstock.core.kernel import Kernel
from penstock.errors import LimitError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.frames import Verb, frame

MAX_WATCHES = 10_000
TELL_AFTER_US = 20_000


@dataclass(slots=True, eq=False)
class Watcher:
    """A connection that wants to hear of changes."""

    connection: int
    request: int
    stream: int
    prefix: bytes
    over: bool = False
    paused: bool = False
    lost: bool = False


class Watches:
    """All watches of a node, by table: a change costs what its own watchers cost."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._watchers: dict[int, list[Watcher]] = {}
        self._untold: list[Watcher] = []  # they have missed something, and hear it in a moment
        self._telling = False

    def add(self, connection: int, request: int, call: m.Watch) -> Watcher:
        """Tells a connection of all changes to keys with a prefix."""
        self.kernel.stream(call.stream, "table")
        if self._count() >= MAX_WATCHES:
            for stream in list(self._watchers):
                self._alive(stream)
        if self._count() >= MAX_WATCHES:
            raise LimitError(f"{MAX_WATCHES:,} watches exist already")
        watcher = Watcher(connection, request, call.stream, call.prefix)
        self._watchers.setdefault(call.stream, []).append(watcher)
        return watcher

    def _count(self) -> int:
        return sum(map(len, self._watchers.values()))

    def _alive(self, stream: int) -> list[Watcher]:
        """The watchers of a table; those that are over are forgotten."""
        watchers = self._watchers.get(stream, [])
        if any(watcher.over for watcher in watchers):
            watchers = [watcher for watcher in watchers if not watcher.over]
            self._watchers[stream] = watchers
        if not watchers:
            self._watchers.pop(stream, None)
        return watchers

    def tell(self, stream: int, entries: list[m.Entry]) -> None:
        """Entries of a table changed, and that is safe now."""
        if stream not in self._watchers:
            return
        for watcher in self._alive(stream):
            wanted = [entry for entry in entries if entry.key.startswith(watcher.prefix)]
            if wanted and watcher.paused:  # too slow: nothing is kept for it, it must read anew
                watcher.lost = True
            elif wanted:
                self._send(watcher, wanted)

    def _send(self, watcher: Watcher, entries: list[m.Entry]) -> None:
        event = m.pack(m.Event(entries, watcher.lost))
        watcher.lost = False
        whole = frame(Verb.EVENT, watcher.request, 0, event)
        self.kernel.effects.append(Send(watcher.connection, [whole]))

    def pause(self, watcher: Watcher, paused: bool) -> None:
        """A watcher takes no more for now; or takes it again, and hears if it missed anything."""
        watcher.paused = paused
        if watcher.lost and not paused:
            self._send(watcher, [])

    def taken_over(self, streams: Iterable[int]) -> None:
        """This node owns a shard with entries of these tables from now on. What its owner before
        did not tell of, nobody will: watchers must read anew. They hear it soon, and once for the
        shards that are taken over together."""
        watched = [stream for stream in streams if stream in self._watchers]
        for watcher in [each for stream in watched for each in self._alive(stream)]:
            if not watcher.lost:
                watcher.lost = True
                self._untold.append(watcher)
        if self._untold and not self._telling:
            self._telling = True
            self.kernel.timers.at(self.kernel.now_us + TELL_AFTER_US, self._tell_lost)

    def _tell_lost(self) -> None:
        untold, self._untold, self._telling = self._untold, [], False
        for watcher in untold:
            if watcher.lost and not (watcher.over or watcher.paused):
                self._send(watcher, [])

    def closed(self, stream: int) -> None:
        """A table was deleted: whoever watches it is told."""
        for watcher in self._watchers.pop(stream, ()):
            if not watcher.over:
                watcher.over = True
                error = NotFoundError("this table was deleted")
                self.kernel.fail(watcher.connection, Verb.EVENT, watcher.request, error)
