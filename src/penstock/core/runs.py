"""Runs: neighbouring positions of one batch that share a state, as a bit mask handled in C."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.wire.numeric import Rows, np


def full(count: int) -> int:
    """The mask of `count` messages, all in."""
    return (1 << count) - 1


@dataclass(slots=True)
class Run:
    """Messages at `position + i` for every bit i of the mask; delivered `deliveries` times so far.

    The lowest bit is always set: `position` is the first message.
    """

    position: int
    mask: int
    deliveries: int = 0

    @property
    def span(self) -> int:
        """Positions covered, gaps included."""
        return self.mask.bit_length()

    @property
    def messages(self) -> int:
        """Messages in it."""
        return self.mask.bit_count()

    @property
    def end(self) -> int:
        """The position after the last message."""
        return self.position + self.mask.bit_length()


def first_of(position: int, mask: int) -> int:
    """Where the first message of a mask is, which may not be where the mask begins."""
    return position + (mask & -mask).bit_length() - 1


def run_of(position: int, mask: int, deliveries: int) -> Run | None:
    """A run with the low empty bits of the mask dropped; None if there is no message in it."""
    if not mask:
        return None
    shift = (mask & -mask).bit_length() - 1
    return Run(position + shift, mask >> shift, deliveries)


def window(start: int, count: int, run_position: int) -> int:
    """The mask of positions start to start + count - 1, relative to a run's position."""
    shift = start - run_position
    if shift >= 0:
        return full(count) << shift
    return full(count) >> -shift


def bits_of(position: int, count: int, mask: int, origin: int) -> int:
    """`count` positions from one on, or those of a mask, relative to the start of a run."""
    bits, shift = mask or full(count), position - origin
    return bits << shift if shift >= 0 else bits >> -shift


def cut(run: Run, messages: int) -> tuple[Run, Run | None]:
    """The run's first `messages` messages, and the rest."""
    if run.messages <= messages:
        return run, None
    whole = run.mask == full(run.span)
    width = messages if whole else int(rows_of(run.mask)[messages - 1]) + 1
    low = full(width)
    return (
        Run(run.position, run.mask & low, run.deliveries),
        run_of(run.position + width, run.mask >> width, run.deliveries),
    )


def rows_of(mask: int) -> Rows:
    """The numbers of the bits that are set, ascending."""
    packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def mask_of(rows: Rows) -> int:
    """The mask in which these bits are set; they may come in any order, and more than once."""
    bits = np.zeros(int(rows.max()) + 1 if len(rows) else 0, np.uint8)
    bits[rows] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
