"""What is done with a task, from where its data is: the whole table, in one function.

The table as people read it is among the tests; both must say the same.
"""

from __future__ import annotations

from enum import Enum


class Turn(Enum):
    """When the question is asked."""

    FOUND = "found"
    """The task has just been pulled from the main queue, or was sent by another host."""
    DUE = "due"
    """It has come to the head of the local queue: it would run now."""


class Data(Enum):
    """Where the task's data is, seen from this host, at the moment of the question."""

    NOWHERE = "nowhere"
    """It needs none, or nobody says to have it: every host is as good."""
    HERE = "here"
    THERE = "there"


class Step(Enum):
    """What is done."""

    QUEUE = "queue"
    """It goes to the end of the local queue."""
    SEND = "send"
    """It is offered to the host of its data, which takes it over or refuses."""
    RUN = "run"
    FETCH = "fetch"
    """It runs here, and its data is brought here."""


def decide(turn: Turn, data: Data, refused: bool, moved: bool) -> Step:
    """What is done with a task.

    `refused`: the host of its data was asked in this turn, and has too much to do. `moved`: another
    host has sent it here; it is never sent on, so that no task travels for ever.
    """
    sendable = data is Data.THERE and not refused and not moved
    if sendable:
        return Step.SEND
    if turn is Turn.FOUND:
        return Step.QUEUE
    return Step.FETCH if data is Data.THERE else Step.RUN
