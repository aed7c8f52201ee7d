"""What has become of every task of a simulation, noted apart from the state that is checked."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

MAX_TOLD = 20
NEVER = -1


class Ledger:
    """Tasks by number: how long they take, what they come after, and what has happened to them."""

    def __init__(
        self, lengths_us: Sequence[int], parents: Sequence[Sequence[int]] | None = None
    ) -> None:
        """`parents`: for each task the numbers of those that it comes after."""
        self.count = len(lengths_us)
        self.lengths_us = lengths_us
        self.parents = parents
        self.submitted_us = array("q", [NEVER]) * self.count
        self.done_us = array("q", [NEVER]) * self.count  # when its client knows
        self.begun = bytearray(self.count)
        self.effects = bytearray(self.count)
        self.done = 0
        self.refused = 0
        self._wrong: list[str] = []

    @property
    def over(self) -> bool:
        """Whether clients have heard of every task."""
        return self.done == self.count

    def began(self, task: int) -> None:
        """An executor begins a task: everything that it comes after must have had its effect."""
        if self.begun[task] < 255:
            self.begun[task] += 1
        if self.parents is not None:
            for parent in self.parents[task]:
                if not self.effects[parent]:
                    self._note(f"task {task} began before {parent} was over")

    def committed(self, tasks: Iterable[int]) -> None:
        """The outcomes of tasks are in the log: this is their effect."""
        for task in tasks:
            if self.effects[task]:
                self._note(f"task {task} had its effect again")
            else:
                self.effects[task] = 1

    def heard(self, tasks: Iterable[int], now_us: int) -> None:
        """A client has the outcomes of tasks."""
        for task in tasks:
            if self.done_us[task] == NEVER:
                self.done_us[task] = now_us
                self.done += 1
            else:
                self._note(f"the outcome of task {task} came twice")

    def problems(self) -> list[str]:
        """What is wrong at the end."""
        effects = np.frombuffer(self.effects, np.uint8)
        begun = np.frombuffer(self.begun, np.uint8)
        never, unbegun = int((effects == 0).sum()), int((begun < effects).sum())
        found = [f"{never:,} tasks had no effect"] if never else []
        found += [f"{unbegun:,} tasks had an effect and were not begun"] if unbegun else []
        found += [f"{self.count - self.done:,} outcomes never came"] if not self.over else []
        return found + self._wrong

    def _note(self, text: str) -> None:
        if len(self._wrong) < MAX_TOLD:
            self._wrong.append(text)

    # --- figures ---------------------------------------------------------------------------

    @property
    def repeated(self) -> int:
        """Tasks that were begun more than once."""
        return int((np.frombuffer(self.begun, np.uint8) > 1).sum())

    def span_us(self) -> int:
        """From the first submission to the last outcome."""
        return max(self.done_us) - min(self.submitted_us)

    def rate(self) -> float:
        """Tasks a second."""
        return self.count / (self.span_us() / 1e6)

    def work_us(self) -> int:
        """The length of all tasks together."""
        return sum(self.lengths_us)

    def latencies_us(self) -> npt.NDArray[np.int64]:
        """From submission to outcome."""
        return np.frombuffer(self.done_us, np.int64) - np.frombuffer(self.submitted_us, np.int64)
