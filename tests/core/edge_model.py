"""What held messages do, said as simply as possible: no shards, no log, no outbox."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.wire.holds import Policy


@dataclass
class Model:
    """Keys with marks, and messages that wait for them."""

    marks: dict[bytes, int] = field(default_factory=dict)  # of the entries that exist
    waiting: dict[bytes, set[bytes]] = field(default_factory=dict)  # id: keys that are left
    policies: dict[bytes, int] = field(default_factory=dict)
    ready: set[bytes] = field(default_factory=set)
    failed: set[bytes] = field(default_factory=set)

    def hold(self, name: bytes, after: set[bytes], policy: int) -> None:
        """A message; one whose id is known changes nothing. It falls back to an entry under its
        own id, marked as failed or skipped."""
        if name in self.policies:
            return
        self.policies[name] = policy
        self.waiting[name] = set(after)
        for key in sorted(after & self.marks.keys()):
            self._met(name, key, self.marks[key])
        if self.waiting.get(name) == set():
            self._ready(name)

    def put(self, key: bytes, mark: int) -> None:
        """An entry exists, or is written again."""
        self.marks[key] = mark
        for name in [name for name, keys in self.waiting.items() if key in keys]:
            self._met(name, key, mark)

    def remove(self, key: bytes) -> None:
        """An entry is gone; who has seen it has seen it."""
        self.marks.pop(key, None)

    def end(self, name: bytes) -> None:
        """A message is finished, and falls back."""
        if self.waiting.pop(name, None) is not None:
            self.failed.add(name)
            self.put(name, 2 if self.policies[name] == Policy.SKIP else 1)

    def _met(self, name: bytes, key: bytes, mark: int) -> None:
        left = self.waiting.get(name)
        if left is None:
            return
        left.discard(key)
        if mark and self.policies[name] != Policy.RUN:
            self.end(name)
        elif not left:
            self._ready(name)

    def _ready(self, name: bytes) -> None:
        del self.waiting[name]
        self.ready.add(name)
