"""What members of a gang do when something happens to one of them. Pure: no I/O, no clock.

Two kinds of members: the manager collects what the others write, and decides how the gang ends;
the others follow. Both take events and leave effects, in order, until somebody takes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidError
from penstock.tasks.gangs.names import DONE, HERE, MEET, MET, OVER, read_member


class EndKind(IntEnum):
    """How an attempt of a gang has ended."""

    DONE = 0  # every member's function has returned
    FAILED = 1  # a member's function has raised
    LOST = 2  # a member is gone, or the lease


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """The end of an attempt, as the manager tells it."""

    kind: int
    rank: int = -1
    """Of the member that failed or is gone; -1: of none."""
    reason: str = ""
    outcomes: list[bytes] = []  # msgspec gives every Struct a list of its own
    """What the functions returned, by rank; of a failure, what the failed one left. Only the
    manager has them."""


class Put(NamedTuple):
    """Write an entry, bound to this member's session: by the manager under `down`, by the others
    under their rank."""

    word: bytes
    value: bytes


class Met(NamedTuple):
    """Everybody has come to the meeting that this member waits at: all values, by rank."""

    values: list[bytes]


class Look(NamedTuple):
    """The manager is gone: has it said how the gang ended?"""


class End(NamedTuple):
    """The attempt is over for this member."""

    ending: Ending


Effect = Put | Met | Look | End

_pack = msgspec.msgpack.Encoder().encode
_read_meeting = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
_read_met = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode
_read_done = msgspec.msgpack.Decoder(tuple[bool, bytes]).decode
_read_ending = msgspec.msgpack.Decoder(Ending).decode


def pack_over(ending: Ending) -> bytes:
    """The value of the entry that says how a gang ended; outcomes stay with the manager."""
    return _pack(msgspec.structs.replace(ending, outcomes=[]))


class Part(ABC):
    """One member's knowledge of its gang. Nothing happens any more once it has ended."""

    def __init__(self, late_us: int) -> None:
        """Who has not joined at `late_us` is gone."""
        self.ended: Ending | None = None
        self._late_us = late_us
        self._meetings = 0  # that are over
        self._waits = False  # for the next one
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """What is to be done since the last time."""
        effects, self._effects = self._effects, []
        return effects

    def meet(self, value: bytes) -> None:
        """This member has come to its next meeting. InvalidError if it is at one already."""
        if self._waits:
            raise InvalidError("this member of the gang waits at a meeting already")
        if self.ended is None:
            self._waits = True
            self._came(value)

    def lost(self, rank: int, reason: str) -> None:
        """A member is gone, or (rank -1) the gang's lease."""
        self._end(Ending(EndKind.LOST, rank, reason))

    def _end(self, ending: Ending) -> None:
        if self.ended is None:
            self.ended = ending
            self._effects.append(End(ending))

    def _met(self, values: list[bytes]) -> None:
        self._meetings += 1
        if self._waits:
            self._waits = False
            self._effects.append(Met(values))

    @abstractmethod
    def changed(self, word: bytes, value: bytes | None) -> None:
        """An entry that this member watches was written, or (None) is gone. The same news may come
        twice."""

    @abstractmethod
    def finish(self, well: bool, outcome: bytes) -> None:
        """This member's function has returned, or raised."""

    @abstractmethod
    def tick(self, now_us: int) -> None:
        """Time passes."""

    @abstractmethod
    def _came(self, value: bytes) -> None:
        """To the next meeting."""


class ManagerPart(Part):
    """Rank 0."""

    def __init__(self, size: int, late_us: int) -> None:
        super().__init__(late_us)
        self.present: set[int] = set()  # other members that are there
        self._expected = set(range(1, size))  # those that have not been there yet
        self._size = size
        self._arrived: dict[int, bytes] = {}  # at the next meeting: rank and value
        self._outcomes: dict[int, bytes] = {}

    def changed(self, word: bytes, value: bytes | None) -> None:
        """What a member wrote under `up`."""
        known = read_member(word)
        if known is None or not 0 < known[0] < self._size:
            return
        rank, what = known
        if what == HERE:
            self._seen(rank, value is not None)
        elif value is None:
            return  # goes with its member
        elif what == MEET:
            number, said = _read_meeting(value)
            if number == self._meetings + 1:
                self._arrive(rank, said)
        else:
            self._finished(rank, *_read_done(value))

    def _seen(self, rank: int, there: bool) -> None:
        self._expected.discard(rank)
        if there:
            self.present.add(rank)
            return
        self.present.discard(rank)
        if rank not in self._outcomes:
            self.lost(rank, f"member {rank} is gone")

    def tick(self, now_us: int) -> None:
        """Members that have not joined by now never will."""
        if self._expected and now_us >= self._late_us:
            rank = min(self._expected)
            self.lost(rank, f"member {rank} has not joined")

    def finish(self, well: bool, outcome: bytes) -> None:
        """The manager's own function has returned, or raised."""
        self._finished(0, well, outcome)

    def give_up(self, reason: str, outcome: bytes) -> None:
        """The attempt has failed, and no member is to blame."""
        self._end(Ending(EndKind.FAILED, reason=reason, outcomes=[outcome]))

    def _finished(self, rank: int, well: bool, outcome: bytes) -> None:
        if not well:
            reason = f"the function of member {rank} raised"
            self._end(Ending(EndKind.FAILED, rank, reason, [outcome]))
            return
        self._outcomes[rank] = outcome
        if len(self._outcomes) == self._size:
            outcomes = [self._outcomes[each] for each in range(self._size)]
            self._end(Ending(EndKind.DONE, outcomes=outcomes))
        self._check_even()

    def _came(self, value: bytes) -> None:
        self._arrive(0, value)

    def _arrive(self, rank: int, value: bytes) -> None:
        self._arrived[rank] = value
        if len(self._arrived) == self._size:
            values = [self._arrived[each] for each in range(self._size)]
            self._arrived.clear()
            self._met(values)
            self._effects.append(Put(MET, _pack((self._meetings, values))))
        self._check_even()

    def _check_even(self) -> None:
        """Who waits for a member that has returned would wait for ever."""
        if self._arrived and self._outcomes:
            rank = min(self._outcomes)
            reason = f"member {rank} has returned, and others wait for it at a meeting"
            self._end(Ending(EndKind.FAILED, rank, reason))


class MemberPart(Part):
    """Any rank but 0."""

    def __init__(self, late_us: int) -> None:
        super().__init__(late_us)
        self._manager_seen = False

    def changed(self, word: bytes, value: bytes | None) -> None:
        """What the manager wrote under `down`."""
        if word == HERE and value is not None:
            self._manager_seen = True
        elif word == HERE and self.ended is None:
            self._effects.append(Look())
        elif word == MET and value is not None:
            number, values = _read_met(value)
            if number == self._meetings + 1:
                self._met(values)
        elif word == OVER and value is not None:
            self._end(_read_ending(value))

    def tick(self, now_us: int) -> None:
        """A manager that has not joined by now never will."""
        if not self._manager_seen and now_us >= self._late_us and self.ended is None:
            self._effects.append(Look())

    def manager_lost(self) -> None:
        """The manager is gone, and has said nothing."""
        self.lost(0, "the manager is gone")

    def finish(self, well: bool, outcome: bytes) -> None:
        """The manager hears of it, and waits for the others."""
        if self.ended is None:
            self._effects.append(Put(DONE, _pack((well, outcome))))

    def _came(self, value: bytes) -> None:
        self._effects.append(Put(MEET, _pack((self._meetings + 1, value))))


def part_of(rank: int, size: int, late_us: int) -> ManagerPart | MemberPart:
    """The part of a member of this rank."""
    return MemberPart(late_us) if rank else ManagerPart(size, late_us)
