"""How long functions take, as measured: a moving mean, and how far they stray from it."""

from __future__ import annotations

MAX_FUNCTIONS = 10_000  # beyond that, all are forgotten and measured anew
_MEAN_SHARE = 1 / 8  # of a new measurement in the mean, and
_SPREAD_SHARE = 1 / 4  # of its distance in the spread: a jump is believed after a few times
_OVERALL_SHARE = 1 / 32


class _Moving:
    """A moving mean and the mean distance from it."""

    __slots__ = ("mean", "share", "spread")

    def __init__(self, first: float, share: float) -> None:
        self.share = share
        self.mean = first
        self.spread = first / 2

    def add(self, measured: float) -> None:
        """Takes a measurement in."""
        distance = measured - self.mean
        self.mean += distance * self.share
        self.spread += (abs(distance) - self.spread) * min(2 * self.share, _SPREAD_SHARE)


class Times:
    """Run times of functions, in microseconds."""

    def __init__(self) -> None:
        self._functions: dict[str, _Moving] = {}
        self._overall: _Moving | None = None

    def took(self, function: str, us: int) -> None:
        """A call took so long."""
        known = self._functions.get(function)
        if known is not None:
            known.add(us)
        else:
            if len(self._functions) >= MAX_FUNCTIONS:
                self._functions.clear()
            self._functions[function] = _Moving(us, _MEAN_SHARE)
        if self._overall is None:
            self._overall = _Moving(us, _OVERALL_SHARE)
        else:
            self._overall.add(us)

    def expected_us(self, function: str) -> int | None:
        """What a call is likely to take at most: the mean and twice the spread. None: not known."""
        known = self._functions.get(function)
        return None if known is None else int(known.mean + 2 * known.spread) + 1

    def typical_us(self) -> float | None:
        """What a call of any function takes, in the mean; None before the first."""
        overall = self._overall
        return None if overall is None else overall.mean + 1
