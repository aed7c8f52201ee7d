"""What a member has claimed, and until when it may rely on that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from penstock.consumers.looks import NEVER_US


class Phase(Enum):
    """Where a claim stands. They follow each other; a hand-over can be called off."""

    HELD = "held"
    MOVING = "being handed over"
    RELEASING = "being released"


@dataclass(slots=True)
class Holding:
    """One claim."""

    partition: int
    token: int
    until_us: int  # it may be processed before that, by the member's own clock
    phase: Phase = Phase.HELD
    running: bool = False  # it is being processed
    heir: str = ""  # for whom it is given up, if that is known
    since_us: int = 0  # in this phase
    resend_us: int = 0  # when a release without an answer is sent again


class Holdings:
    """All claims of a member, by partition."""

    def __init__(self) -> None:
        self._all: dict[int, Holding] = {}
        self._given_up: dict[int, int] = {}  # the last token of what was had and is not any more
        self._lapse_us = NEVER_US
        # In the order in which they began; dicts for sets.
        self.moving: dict[int, Holding] = {}
        self.releasing: dict[int, Holding] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, partition: int) -> bool:
        return partition in self._all

    def __iter__(self) -> Iterator[Holding]:
        """All of them; they may change meanwhile."""
        return iter(list(self._all.values()))

    def get(self, partition: int, token: int | None = None) -> Holding | None:
        """The claim on a partition, if there is one (and it is this one)."""
        held = self._all.get(partition)
        return held if held is not None and token in (None, held.token) else None

    def is_over(self, partition: int, token: int) -> bool:
        """Whether this claim was given up or lost before."""
        return token <= self._given_up.get(partition, 0)

    def add(self, partition: int, token: int, until_us: int) -> Holding:
        """A claim; one with a lower token is over by that."""
        self.drop(partition)
        held = self._all[partition] = Holding(partition, token, until_us)
        return held

    def drop(self, partition: int) -> None:
        """A claim is over."""
        held = self._all.pop(partition, None)
        if held is not None:
            self._given_up[partition] = held.token
            self.moving.pop(partition, None)
            self.releasing.pop(partition, None)

    def enter(self, held: Holding, phase: Phase, now_us: int, heir: str) -> None:
        """A claim comes into another phase."""
        self.moving.pop(held.partition, None)
        held.phase, held.since_us, held.heir = phase, now_us, heir
        if phase is Phase.MOVING:
            self.moving[held.partition] = held
        elif phase is Phase.RELEASING:
            self.releasing[held.partition] = held

    def run(self, held: Holding) -> None:
        """It is processed from now on."""
        held.running = True
        self._lapse_us = min(self._lapse_us, held.until_us)

    def may_process(self, partition: int, now_us: int) -> bool:
        """Whether a partition may be processed at this moment."""
        held = self._all.get(partition)
        return held is not None and held.running and now_us < held.until_us

    # --- leases ----------------------------------------------------------------------------

    @property
    def lapse_us(self) -> int:
        """When `lapsed` finds something, or before."""
        return self._lapse_us

    def lapsed(self, now_us: int) -> list[Holding]:
        """Those that are processed and may not be any more."""
        if now_us < self._lapse_us:
            return []
        running = [held for held in self._all.values() if held.running]
        over = [held for held in running if held.until_us <= now_us]
        left = (held.until_us for held in running if held.until_us > now_us)
        self._lapse_us = min(left, default=NEVER_US)
        return over

    def renewable(self) -> tuple[tuple[int, int], ...]:
        """(partition, token) of all that are not being released."""
        return tuple(
            (held.partition, held.token)
            for held in self._all.values()
            if held.phase is not Phase.RELEASING
        )

    def renewed(self, claims: Iterable[tuple[int, int]], until_us: int) -> list[Holding]:
        """Claims last until then, if they are the present ones: those that do."""
        found = [held for claim in claims if (held := self.get(*claim)) is not None]
        for held in found:
            held.until_us = max(held.until_us, until_us)
        return found
