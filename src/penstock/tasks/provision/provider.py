"""What the provisioner needs of whoever has machines: a cloud, a batch system, this computer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as its provider sees it."""

    worker: str
    """What the provider calls it."""
    ready: bool = False
    """It has begun to take tasks."""
    running: int = 0
    """Tasks that it has, as far as is known."""
    done: int = 0
    busy_s: float = 0.0
    """Time that it was busy: half of it, if half of what it can do at a time was done."""


class Provider(Protocol):
    """Starts workers of one task set. Its calls may take a moment, and raise Penstock's errors."""

    def start(self, stays: bool) -> str:
        """Starts a worker, and returns its name at once: it need not be ready. One that `stays`
        never ends by itself; others do, when they are idle and their paid time is nearly over."""

    def stop(self, worker: str) -> None:
        """Has a worker finish what it runs and end; returns at once. No error if it is gone."""

    def list(self) -> list[WorkerInfo]:
        """The workers that are there, those that start or finish among them."""
