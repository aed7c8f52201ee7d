"""What travels for a gang, and what is to be done when an attempt of it has ended."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidError, ProtocolError
from penstock.tasks.envelope import MAX_BACKOFF_MS, TaskCall
from penstock.tasks.gangs.parts import Ending, EndKind
from penstock.tasks.names import shown
from penstock.wire.buffers import Buffer

MAX_RESTARTS = 16  # after members were lost, besides the retries of the function
RESTART, END = "restart", "end"


class GangCall(msgspec.Struct, array_like=True):
    """The value of a message of a task set's queue of gangs. The function is called once on every
    member, with a `Gang` before its arguments."""

    call: TaskCall
    on_loss: str = RESTART
    """What the death of a member means: `restart`, the gang is granted again; `end`, it has
    failed."""

    @property
    def name(self) -> str:
        """As it is called in the control table."""
        return shown(self.call.task)


class Verdict(Enum):
    """What becomes of the gang."""

    FINISH = "finish"  # with the results of all members
    AGAIN = "again"
    GIVE_UP = "give up"


class Decision(NamedTuple):
    """A verdict; `delay_ms`: before the gang is granted again."""

    verdict: Verdict
    delay_ms: int = 0


def decide(gang: GangCall, attempt: int, ending: Ending, chance: float) -> Decision:
    """What becomes of a gang after an attempt. A function that raises is tried again as often as
    its task has retries, later each time; `chance` (0 to 1) takes off up to half of that. A member
    that is lost costs none of them, up to MAX_RESTARTS attempts."""
    call = gang.call
    if ending.kind == EndKind.DONE:
        return Decision(Verdict.FINISH)
    if ending.kind == EndKind.LOST:
        again = gang.on_loss == RESTART and attempt <= call.retries + MAX_RESTARTS
        return Decision(Verdict.AGAIN if again else Verdict.GIVE_UP)
    if attempt > call.retries:
        return Decision(Verdict.GIVE_UP)
    doubled_ms = call.backoff_ms << min(attempt - 1, 32)
    return Decision(Verdict.AGAIN, int(min(doubled_ms, MAX_BACKOFF_MS) * (1 - chance / 2)))


_pack = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(GangCall).decode


def pack_gang(call: TaskCall, on_loss: str = RESTART) -> bytes:
    """The message of a gang."""
    if on_loss not in (RESTART, END):
        raise InvalidError(f"on_loss {on_loss!r}: use {RESTART!r} or {END!r}")
    return _pack(GangCall(call, on_loss))


def read_gang(packed: Buffer) -> GangCall:
    """The gang in a message; ProtocolError if it is none."""
    try:
        return _read(packed)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a gang that cannot be read: {error}") from error
