"""What a member of a group hears about claims, and what it wants done.

Every request names when it was made (`asked_us`, on the member's own clock), and its answer names
that again: an answer that comes late must not make a claim look younger than it is. Answers may be
late, lost, doubled and out of order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.consumers.membership import Member


class Claimed(NamedTuple):
    """A partition's claim as its node has it."""

    owner: str  # empty: nobody
    token: int  # 0: nobody ever had it
    left_us: int = 0  # of the lease; 0: it ran out


# --- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. To be given at the machine's `wake_us`, or sooner."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Somebody came, went, or changed its entry: a hint, which may be lost."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer to `Look`: members and claims, read after it was asked for.

    `claims` has those partitions whose nodes answered. `wall_us` is the time of the day, for drains
    and schedules. `loads` are figures of any unit."""

    members: Mapping[str, Member]
    partitions: Collection[int]
    claims: Mapping[int, Claimed]
    wall_us: int
    asked_us: int
    loads: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Granted:
    """The partition is this member's."""

    partition: int
    token: int
    asked_us: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Another has the partition."""

    partition: int
    owner: str
    asked_us: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """These claims (partition, token) last a whole lease again."""

    claims: tuple[tuple[int, int], ...]
    asked_us: int


@dataclass(frozen=True, slots=True)
class RenewalRefused:
    """These claims (partition, token) are over: others have the partitions, or had them."""

    claims: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What the next owner needs is with it, or is committed."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class Released:
    """This claim is given up, or was over already."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class Offered:
    """Another member has given these up for this one."""

    partitions: tuple[int, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Nudged:
    """Another member waits for something that this one has."""

    by: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Give everything up now, without handing over. To leave slowly, put a drain into the entry."""


Event = (
    Tick | MembersChanged | Looked | Granted | Refused | Renewed | RenewalRefused | HandedOver
    | Released | Offered | Nudged | Leave
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Read members and claims, both from their nodes: not what a watch remembers."""

    asked_us: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim a partition."""

    partition: int
    lease_us: int
    asked_us: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew claims (partition, token), all in one call for each node."""

    claims: tuple[tuple[int, int], ...]
    lease_us: int
    asked_us: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Processing has stopped: commit, and give the state to the next owner. Then `HandedOver`."""

    partition: int
    token: int
    to: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give a claim up."""

    partition: int
    token: int
    why: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell another member that this is free for it. One message, without an answer."""

    partition: int
    to: str


@dataclass(frozen=True, slots=True)
class Nudge:
    """Tell another member to look at the group. One message, without an answer."""

    to: str


@dataclass(frozen=True, slots=True)
class Start:
    """Process a partition from where the group stands, as long as `may_process` says so."""

    partition: int
    token: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop processing now. What is under way may still commit; the node refuses it if it must."""

    partition: int
    token: int
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """This member is not in the table: put its entry there (again)."""


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing is held any more: take the entry out of the table."""


Action = Look | Claim | Renew | HandOver | Release | Offer | Nudge | Start | Stop | Join | Left
