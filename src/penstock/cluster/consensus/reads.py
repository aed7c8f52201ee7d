"""Reads that see all that was committed before they were asked for, without an entry of the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.cluster.consensus.ready import ReadAnswer
from penstock.errors import LimitError


@dataclass(frozen=True, slots=True)
class _Read:
    token: int
    index: int  # nothing that was committed when it was asked lies above
    round: int  # a majority that answers this heartbeat knew no newer leader when it was asked


class Reads:
    """First a majority confirms the leader, then the state machine must reach the index."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._asked: deque[_Read] = deque()
        self._confirmed: list[_Read] = []
        self._answers: list[ReadAnswer] = []

    def ask(self, token: int, index: int, heartbeat: int) -> None:
        """LimitError if too many wait."""
        if len(self._asked) + len(self._confirmed) >= self.limit:
            raise LimitError(f"{self.limit} reads wait for the leader to be confirmed")
        self._asked.append(_Read(token, index, heartbeat))

    def confirm(self, heartbeat: int) -> None:
        """A majority has answered this round of heartbeats."""
        while self._asked and self._asked[0].round <= heartbeat:
            self._confirmed.append(self._asked.popleft())

    def lose(self) -> None:
        """Leadership is lost: what is not confirmed never will be."""
        self._answers += [ReadAnswer(read.token, None) for read in self._asked]
        self._asked.clear()

    def take(self, applied: int) -> list[ReadAnswer]:
        """What may be answered now."""
        answers, self._answers = self._answers, []
        answers += [ReadAnswer(r.token, r.index) for r in self._confirmed if r.index <= applied]
        self._confirmed = [read for read in self._confirmed if read.index > applied]
        return answers
