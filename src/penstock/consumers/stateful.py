"""What a user writes: how an object of a key is opened, changed, finished, and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.consumers.fragments import Fragment
from penstock.errors import InvalidError
from penstock.wire.columns import Longs

S = TypeVar("S")

Flags = npt.NDArray[np.bool_]
Reason = Literal["end", "timeout", "count"]
LatePolicy = Literal["ignore", "side", "reopen"]

MAX_TICKS = 10_000  # of an object's periodic timer within its timeout


@dataclass(frozen=True, slots=True)
class Completion:
    """When an object is over: at a marker, after a silence, at a count; whichever comes first.

    Times are in seconds. `time` is the clock that counts: "event" (the message's timestamp) or
    "arrival" (when the node got it; nothing is late then, and `delay` must be 0). `delay` is how
    far fragments may be behind the latest one and still be in time. `idle_after`: with event time,
    after so long without messages time goes on with the clock. `period`: of `on_timer`.
    """

    marker: Callable[[Fragment], bool] | None = None
    timeout: float | None = None
    count: int | None = None
    time: Literal["event", "arrival"] = "event"
    delay: float = 0.0
    idle_after: float | None = None
    period: float | None = None
    late: LatePolicy = "ignore"

    def __post_init__(self) -> None:
        if self.marker is None and self.timeout is None and self.count is None:
            raise InvalidError("an object needs a marker, a timeout or a count to be over")
        if (self.timeout is not None and self.timeout <= 0) or self.delay < 0:
            raise InvalidError("a timeout must be above 0, a delay not below")
        if self.count is not None and self.count < 1:
            raise InvalidError("a count must be at least 1")
        if self.time == "arrival" and (self.delay or self.late != "ignore"):
            raise InvalidError("by arrival nothing is late: leave out delay and late")
        if self.period is not None and (
            self.timeout is None or not 0 < self.timeout <= self.period * MAX_TICKS
        ):
            raise InvalidError(f"a period needs a timeout of at most {MAX_TICKS:,} periods")


class About(NamedTuple):
    """What is known of an object that is over; the same on every replay."""

    partition: int
    key: bytes
    reason: Reason
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    first_us: int
    last_us: int
    first_offset: int
    last_offset: int


class Output(NamedTuple):
    """A result with a key of its own; plain bytes get the object's key. `to` names where it goes,
    if results go to several places; the first of them otherwise."""

    value: bytes
    key: bytes
    to: str = ""


class Run(NamedTuple):
    """Consecutive fragments of one object, by (time, offset). Columns; not to be changed."""

    key: bytes
    values: list[bytes]
    times_us: Longs
    offsets: Longs


class Stateful(Generic[S]):
    """The base of classes that assemble objects from the fragments of a key.

    The calls must depend on nothing but their arguments: after a crash fragments are folded again,
    and must give the same. A call that raises must leave the state as it was, if errors are to be
    retried or skipped. The state that is passed in belongs to the call; the one that is returned,
    or the same one, changed in place, if None is returned, is kept.
    """

    completion: Completion
    state_type: ClassVar[Any] = Any  # what `decode` makes: a dataclass, a msgspec.Struct...

    def open(self, key: bytes) -> S:
        """The state of a new object."""
        raise NotImplementedError

    def on_message(self, state: S, fragment: Fragment) -> S | None:
        """The state with one more fragment; by (time, offset) if all come within the delay."""
        raise NotImplementedError

    def on_timer(self, state: S) -> S | None:
        """Called each time that an object's time has gone on by the period."""
        return None

    def finish(self, state: S, about: About) -> Iterable[Output | bytes]:
        """The results of an object that is over."""
        raise NotImplementedError

    def encode(self, state: S) -> bytes:
        """The state in a snapshot."""
        return msgspec.msgpack.encode(state)

    def decode(self, packed: bytes) -> S:
        """The state from a snapshot."""
        state: S = msgspec.msgpack.decode(packed, type=self.state_type)
        return state

    def size(self, state: S) -> int:
        """Bytes that a state takes; asked for only where a limit on them is set."""
        return len(self.encode(state))


class BulkStateful(Stateful[S]):
    """A class that can also take several fragments of an object at once."""

    def on_run(self, state: S, run: Run) -> S | None:
        """The same as `on_message` for each fragment of the run in turn."""
        raise NotImplementedError

    def ends(self, values: list[bytes]) -> Flags:
        """The completion's marker for many values at once; it sees nothing but the value."""
        raise NotImplementedError


class FunctionalStateful(Stateful[S]):
    """The same from functions."""

    def __init__(
        self,
        completion: Completion,
        open: Callable[[bytes], S],
        on_message: Callable[[S, Fragment], S | None],
        finish: Callable[[S, About], Iterable[Output | bytes]],
        on_timer: Callable[[S], S | None] | None = None,
        encode: Callable[[S], bytes] | None = None,
        decode: Callable[[bytes], S] | None = None,
    ) -> None:
        if (encode is None) != (decode is None):
            raise InvalidError("give encode and decode together")
        self.completion = completion
        given: dict[str, Any] = {
            "open": open,
            "on_message": on_message,
            "finish": finish,
            "on_timer": on_timer,
            "encode": encode,
            "decode": decode,
        }
        # Set on the instance, a function is called directly instead of through a method.
        vars(self).update({name: call for name, call in given.items() if call is not None})


def no_marks(values: list[bytes]) -> Flags:
    """The marks of values of which none is an end."""
    return np.zeros(len(values), np.bool_)
