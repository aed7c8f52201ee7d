"""Where the members of a gang write for each other: entries of a task set's control table.

All but the last word of a gang are bound to the session of the member that wrote them. Members
write under `up`, which the manager watches; the manager under `down`, which the others watch: so a
gang of n members costs n times as much as one of two, not n times n.
"""

from __future__ import annotations

from typing import NamedTuple

HERE = b"here"  # a member is there, for as long as this is
MET = b"met"  # the last meeting: its number and everybody's value
OVER = b"over"  # the gang has ended, and how; stays a while after the manager
MEET = b"meet"  # a member has come to a meeting: its number and the member's value
DONE = b"done"  # a member's function has returned or raised


class GangNames(NamedTuple):
    """The names of one grant of one gang: no other grant has the same."""

    base: bytes

    @classmethod
    def of(cls, gang: str, attempt: int, lease: int) -> GangNames:
        """`gang` names the gang, `lease` the grant within its queue."""
        return cls(f"gang/{gang}/{attempt}.{lease}/".encode())

    @property
    def up(self) -> bytes:
        """The prefix of what members write."""
        return self.base + b"up/"

    @property
    def down(self) -> bytes:
        """The prefix of what the manager writes."""
        return self.base + b"down/"

    def of_member(self, rank: int, word: bytes) -> bytes:
        """The name of something that a member writes."""
        return self.up + b"%d/%s" % (rank, word)

    def of_manager(self, word: bytes) -> bytes:
        """The same of the manager."""
        return self.down + word


def read_member(name: bytes) -> tuple[int, bytes] | None:
    """Rank and word of what a member wrote, from its name after `up`; None if it is none."""
    rank, _, word = name.partition(b"/")
    return (int(rank), word) if rank.isdigit() and word in (HERE, MEET, DONE) else None
