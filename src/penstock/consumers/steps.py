"""What comes out of a step over the fragments of a partition, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.consumers.calls import DeadLetter
from penstock.consumers.fragments import Fragment
from penstock.consumers.stateful import About


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one partition. Over `ignored` a snapshot is asked for; over the others it stops."""

    open_objects: int = 1_000_000
    held_fragments: int = 4_000_000
    held_bytes: int = 1 << 30
    state_bytes: int | None = None
    ignored: int = 1_000


class Result(NamedTuple):
    """One result of an object that is over, and where it comes from."""

    key: bytes
    value: bytes
    about: About
    number: int  # among the results of its object
    to: str = ""  # where it goes, if there are several places

    @property
    def id(self) -> str:
        """The same whenever this result is made again, and no other's within the topic."""
        return f"{self.about.partition}-{self.about.first_offset}-{self.number}"


class Late(NamedTuple):
    """A fragment that came behind the watermark and that no open object takes."""

    fragment: Fragment
    watermark_us: int


@dataclass(slots=True)
class Step:
    """What a batch of fragments, or time going on, led to; in an order that batching cannot change.

    Deliver it, then commit the assembler's `progress()`, which is what may be committed after it.
    `late` is filled under the policy "side"; `late_count` counts them under each.
    """

    results: list[Result] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    late_count: int = 0
    wants_snapshot: bool = False
