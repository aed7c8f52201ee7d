"""What a queue of gangs must do, in lists: who is granted what, and when."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Gang:
    """One gang, in whatever state."""

    name: bytes
    size: int
    priority: int
    number: int  # the order in which they came
    attempt: int = 0
    overtaken: int = 0


@dataclass
class Model:
    """Gangs that are ready, those that run, and parked workers; the longest waiting first."""

    most: int  # times that the first in line may be overtaken
    ready: list[Gang] = field(default_factory=list)
    running: dict[bytes, tuple[Gang, list[str]]] = field(default_factory=dict)
    parked: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    came: int = 0

    def push(self, name: bytes, size: int, priority: int) -> None:
        self.came += 1
        self.ready.append(Gang(name, size, priority, self.came))

    def park(self, worker: str) -> None:
        if worker in self.parked:
            self.parked.remove(worker)
        self.parked.append(worker)
        self.seen.add(worker)

    def leave(self, worker: str) -> None:
        if worker in self.parked:
            self.parked.remove(worker)

    def end(self, name: bytes, again: bool) -> None:
        gang, _ = self.running.pop(name)
        if again:
            self.ready.append(gang)

    def restart(self) -> None:
        """Who waits, and how often gangs were overtaken, is not known after a crash."""
        self.parked, self.seen = [], set()
        for gang in self.ready + [gang for gang, _ in self.running.values()]:
            gang.overtaken = 0

    def grants(self) -> list[tuple[bytes, int, list[str]]]:
        """What is granted now: name, attempt and members, by rank."""
        granted = []
        while (gang := self._next()) is not None:
            members, self.parked = self.parked[: gang.size], self.parked[gang.size :]
            self.ready.remove(gang)
            gang.attempt += 1
            self.running[gang.name] = (gang, members)
            granted.append((gang.name, gang.attempt, members))
        return granted

    def _next(self) -> Gang | None:
        line = sorted(self.ready, key=lambda gang: (-gang.priority, gang.number))
        fitting = [gang for gang in line if gang.size <= len(self.parked)]
        if not fitting:
            return None
        at_work = sum(gang.size for gang, _ in self.running.values())
        workers = max(len(self.parked) + at_work, len(self.seen))
        first = next(gang for gang in line if gang.size <= workers)
        if first is fitting[0]:
            return first
        if first.overtaken >= self.most:
            return None
        first.overtaken += 1
        return fitting[0]
