"""When partitions may move only for the sake of balance."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidError

MAX_WINDOWS = 100


@dataclass(frozen=True, slots=True)
class Window:
    """Open from `start_us` (wall time) on for `length_us`, and again every `every_us`.

    Every night from two to four: `Window(2 * HOUR, 2 * HOUR, 24 * HOUR)`."""

    start_us: int
    length_us: int
    every_us: int

    def __post_init__(self) -> None:
        """InvalidError if it would never open."""
        if not 0 < self.length_us <= self.every_us:
            raise InvalidError("a window is open for some time, and at most until the next one")

    def opens_in_us(self, wall_us: int) -> int:
        """How long it is closed from now on; 0: it is open."""
        into_us = (wall_us - self.start_us) % self.every_us
        return 0 if into_us < self.length_us else self.every_us - into_us


@dataclass(frozen=True, slots=True)
class Schedule:
    """Partitions move for balance while a window is open; always, if there are no windows.

    What has no owner, and what somebody who drains gives away, does not wait for a window."""

    windows: tuple[Window, ...] = ()

    def __post_init__(self) -> None:
        """InvalidError if there are too many windows."""
        if len(self.windows) > MAX_WINDOWS:
            raise InvalidError(f"a schedule has at most {MAX_WINDOWS} windows")

    def opens_in_us(self, wall_us: int) -> int:
        """How long nothing moves for balance from now on; 0: it may at once."""
        return min((window.opens_in_us(wall_us) for window in self.windows), default=0)
