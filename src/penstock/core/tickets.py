"""Questions to other nodes that wait for an answer: so many at most, each for so long at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.core.kernel import Kernel, Timer
from penstock.errors import LimitError

K = TypeVar("K")
A = TypeVar("A")


@dataclass(slots=True)
class _Ticket(Generic[K, A]):
    about: K
    then: Callable[[A], None]
    timer: Timer
    node: int = 0  # that was asked


class Tickets(Generic[K, A]):
    """What is asked about, by a number that the answer names. Without one in time, or if it cannot
    come any more, it is `late`."""

    def __init__(self, kernel: Kernel, late: A, wait_us: int, most: int) -> None:
        self._kernel = kernel
        self._late = late
        self._wait_us = wait_us
        self._most = most
        self._waiting: dict[int, _Ticket[K, A]] = {}
        self._last = 0

    def add(self, about: K, then: Callable[[A], None]) -> int:
        """A question; `then` is called once. LimitError if too many wait already."""
        self.check_room(1)
        self._last += 1
        number = self._last
        due_us = self._kernel.now_us + self._wait_us
        timer = self._kernel.timers.at(due_us, lambda: self.answered(number, self._late))
        self._waiting[number] = _Ticket(about, then, timer)
        return number

    def check_room(self, more: int) -> None:
        """LimitError if so many more cannot wait."""
        if len(self._waiting) + more > self._most:
            raise LimitError(f"{self._most:,} questions to other nodes wait for answers already")

    def asked(self, number: int, node: int) -> None:
        """A question is on its way to a node."""
        if (ticket := self._waiting.get(number)) is not None:
            ticket.node = node

    def unlinked(self, node: int) -> None:
        """The connection to a node is gone, with all questions and answers on the way."""
        for number in [n for n, ticket in self._waiting.items() if ticket.node == node]:
            self.answered(number, self._late)

    def answered(self, number: int, answer: A) -> None:
        """The answer. A second one, or one that comes too late, does nothing."""
        ticket = self._waiting.pop(number, None)
        if ticket is not None:
            self._kernel.timers.cancel(ticket.timer)
            ticket.then(answer)

    def answer_those(self, wanted: Callable[[K], bool], answer: A) -> None:
        """The same answer for all that are about something."""
        for number in [n for n, ticket in self._waiting.items() if wanted(ticket.about)]:
            self.answered(number, answer)
