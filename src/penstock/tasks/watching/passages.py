"""How long the tasks of each function waited and ran in one worker. Costs little for each task."""

from __future__ import annotations

import msgspec

from penstock.tasks.watching.spans import Buckets, added, folded

MAX_FUNCTIONS = 50  # that are told of by name
OTHERS = "others"
_FOLD = 4096  # numbers that wait to be counted


class Passage(msgspec.Struct, array_like=True):
    """The attempts of one function: from when they were ready until they began, and to the end."""

    attempts: int = 0
    failed: int = 0
    waited: Buckets = {}  # msgspec gives every Struct a dict of its own
    took: Buckets = {}

    def add(self, more: Passage) -> None:
        """Takes another worker's figures in."""
        self.attempts += more.attempts
        self.failed += more.failed
        added(self.waited, more.waited)
        added(self.took, more.took)


class Passages:
    """Figures since the worker started; of functions beyond the first few together."""

    def __init__(self) -> None:
        self._samples: dict[str, list[int]] = {}  # waited, took, waited, took, ...
        self._told: dict[str, Passage] = {}

    def ended(self, function: str, waited_us: int, took_us: int) -> None:
        """An attempt is over."""
        samples = self._samples.get(function)
        if samples is None:
            if len(self._samples) >= MAX_FUNCTIONS and function != OTHERS:
                self.ended(OTHERS, waited_us, took_us)
                return
            samples = self._samples[function] = []
        samples.append(waited_us)
        samples.append(took_us)
        if len(samples) >= _FOLD:
            self._fold(function, samples)

    def failed(self, function: str) -> None:
        """The last attempt of the function has failed."""
        name = function if function in self._samples else OTHERS
        self._told.setdefault(name, Passage()).failed += 1

    def broken(self, function: str) -> None:
        """An attempt was ended from outside, or its executor has died: how long it took is not
        known."""
        known = function in self._samples or len(self._samples) < MAX_FUNCTIONS
        name = function if known else OTHERS
        self._samples.setdefault(name, [])
        passage = self._told.setdefault(name, Passage())
        passage.attempts += 1
        passage.failed += 1

    def told(self) -> dict[str, Passage]:
        """All figures. Do not keep them: they are counted on."""
        for function, samples in self._samples.items():
            if samples:
                self._fold(function, samples)
        return self._told

    def _fold(self, function: str, samples: list[int]) -> None:
        passage = self._told.setdefault(function, Passage())
        passage.attempts += len(samples) // 2
        folded(samples[::2], passage.waited)
        folded(samples[1::2], passage.took)
        samples.clear()
