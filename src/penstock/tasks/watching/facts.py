"""What can be found out about one task, before anything is concluded from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.tasks.envelope import Status, TaskCall, TaskOutcome
from penstock.tasks.watching.reports import Begun, WorkerReport

ENDINGS = [status.name.lower() for status in Status]
"""States of tasks that are over, by their status."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A task's message, as it was seen in a queue."""

    state: str
    """"ready", "delayed", "leased", "held" or "dead"."""
    call: TaskCall
    deliveries: int = 0
    until_us: int = 0
    """When its delay or lease ends."""
    ahead: int = 0
    """Of one that is ready: messages that are before it, at least."""
    gang: int = 0
    """Of a gang: its members."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker that says that it has the task, and what it runs it since."""

    report: WorkerReport
    begun: Begun | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found about one task."""

    task: bytes
    now_us: int
    outcome: TaskOutcome | None = None
    seen: Sighting | None = None
    waits_for: tuple[bytes, ...] = ()
    """Of a held one: tasks whose outcome is not there, the first of them."""
    waits: int = 0
    """How many they are."""
    parents: dict[bytes, str] = field(default_factory=dict)
    """States of tasks that it comes after, as far as they were looked for."""
    children: tuple[bytes, ...] = ()
    workers: tuple[WorkerReport, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """Figures of the queue that it is in: ready, delayed, leased, held, dead, parked."""
    free_us: int = 0
    """When the next start of its function is free, if that has a rate that somebody used."""
    cancelled: bool = False
    """Whether somebody has asked that it be cancelled."""
    whole: bool = True
    """Whether all messages of the queue could be looked at."""

    @property
    def state(self) -> str:
        """Where it is: as a message of the queue, if it is one; else as its outcome says.

        A message goes in the same step in which the outcome is written. If both are there, the task
        was sent again, unless it is a dead letter.
        """
        if self.seen is not None and self.seen.state != "dead":
            running = self.seen.state == "leased" and self.holder and self.holder.begun
            return "running" if running else self.seen.state
        if self.outcome is not None:
            return ENDINGS[self.outcome.status]
        if self.seen is not None:
            return self.seen.state
        if self.waits:
            return "held"
        if self.holder is not None:
            return "running" if self.holder.begun else "leased"
        return "unknown"

    @property
    def over(self) -> bool:
        """Whether it has ended, and is not to be run again."""
        return self.state in ENDINGS

    @property
    def holder(self) -> Holder | None:
        """The worker that says that it has it."""
        for report in self.workers:
            for begun in report.running:
                if begun.task == self.task:
                    return Holder(report, begun)
            if self.task in report.waiting:
                return Holder(report)
        return None

    @property
    def function(self) -> str:
        """What it calls; empty if nobody knows."""
        if self.seen is not None:
            return self.seen.call.function
        if self.outcome is not None:
            return self.outcome.function
        holder = self.holder
        return "" if holder is None or holder.begun is None else holder.begun.function

    @property
    def after(self) -> list[bytes]:
        """Tasks that it comes after, as far as they are known."""
        if self.seen is not None:
            return self.seen.call.after
        return list(self.waits_for) if self.outcome is None else self.outcome.after
