"""The locality engine of one host: a state machine without clock, chance or I/O.

Events come in as method calls; what is to be done is collected, and the shell takes it and carries
it out. A task that was found leaves exactly once: by `Run`, or by a `Send` that was accepted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock.tasks.locality.decisions import Step, Turn, decide
from penstock.tasks.locality.directory import Directory

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Placed(Generic[T]):
    """A task in the hands of the engine."""

    task: T
    block: str
    moved: bool
    """Another host has sent it here."""
    turn: Turn = Turn.FOUND
    refused: bool = False
    """In this turn."""
    refused_by: str = ""


class Send(NamedTuple, Generic[T]):
    """Offer a task to a host; answer with `accepted` or `refused`."""

    placed: Placed[T]
    host: str


class Run(NamedTuple, Generic[T]):
    """Run a task here; its data is at `fetch_from`, if that is not empty."""

    task: T
    fetch_from: str = ""


class Engine(Generic[T]):
    """The local queue of one host, and what is on offer to others."""

    def __init__(self, here: str, directory: Directory) -> None:
        self._here = here
        self._directory = directory
        self._queue: deque[Placed[T]] = deque()
        self._offered: set[Placed[T]] = set()
        self._effects: list[Send[T] | Run[T]] = []

    def taken(self) -> list[Send[T] | Run[T]]:
        """What is to be done; it is the caller's to do it, in this order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def waiting(self) -> int:
        """Tasks in the local queue."""
        return len(self._queue)

    @property
    def held(self) -> int:
        """Tasks that have not left: those that wait, and those that are on offer."""
        return len(self._queue) + len(self._offered)

    def found(self, task: T, block: str = "", moved: bool = False) -> None:
        """A task was pulled from the main queue, or, if `moved`, from that of this host."""
        self._consider(Placed(task, block, moved))

    def accepted(self, placed: Placed[T]) -> None:
        """The other host has the task now."""
        self._offered.remove(placed)

    def refused(self, placed: Placed[T], host: str) -> None:
        """The other host has too much to do, or could not be reached."""
        self._offered.remove(placed)
        placed.refused, placed.refused_by = True, host
        if placed.turn is Turn.DUE:
            self._queue.appendleft(placed)  # it is still its turn
        else:
            self._consider(placed)

    def run(self, room: int) -> None:
        """There is room for so many tasks: begins those at the head of the local queue.

        One whose data is elsewhere is offered once more, and does not keep those behind it.
        """
        while room > 0 and self._queue:
            placed = self._queue.popleft()
            if placed.turn is Turn.FOUND:
                placed.turn, placed.refused = Turn.DUE, False
            room -= self._consider(placed)

    def drain(self) -> list[T]:
        """The tasks of the local queue, which are nobody's then; offers are still answered."""
        left = [placed.task for placed in self._queue]
        self._queue.clear()
        return left

    def _consider(self, placed: Placed[T]) -> bool:
        """Does what the table says; whether the task runs."""
        data, host = self._directory.find(placed.block, self._here, placed.refused_by)
        step = decide(placed.turn, data, placed.refused, placed.moved)
        if step is Step.SEND:
            self._offered.add(placed)
            self._effects.append(Send(placed, host))
        elif step is Step.QUEUE:
            self._queue.append(placed)
        else:
            self._effects.append(Run(placed.task, host if step is Step.FETCH else ""))
        return step in (Step.RUN, Step.FETCH)
