"""What travels for a task: the call to a worker, the outcome back."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgspec

from penstock.errors import ProtocolError
from penstock.tasks.blobs.blob import Blob
from penstock.tasks.names import NOBODY
from penstock.wire.buffers import Buffer

MAX_BACKOFF_MS = 3_600_000
MAX_RETRIES = 1000
MAX_ERROR_TEXT = 32_000  # characters that are told of what an exception says
MAX_PARENTS_TOLD = 16  # in an outcome
MAX_STAMPED_BYTES = 64 << 10
_UNSIGNED = b"\xcf"  # msgpack: an integer of eight bytes follows, as every time in microseconds is
NOT_RUN = "penstock.tasks.errors.TaskSkippedError"  # the kind of such a failure


class Status(IntEnum):
    """How a task has ended."""

    DONE = 0
    FAILED = 1
    SKIPPED = 2
    CANCELLED = 3


def mark_of(status: int) -> str:
    """The mark of an outcome's entry in the results table: what it means to those who depend on
    the task."""
    return {Status.DONE: "ok", Status.FAILED: "failed"}.get(Status(status), "skipped")


class TaskCall(msgspec.Struct, array_like=True):
    """The value of a message of a task set's queue: a function, its arguments, and its terms."""

    function: str
    """"package.module:qualname", or the name that the task was declared with."""
    arguments: bytes
    """As `Codec.pack_call` makes it; parents' results stand there as references into `after`."""
    task: bytes
    """The task's id."""
    reply: int = NOBODY
    """The partition of the replies topic, or NOBODY."""
    submitted_us: int = 0
    retries: int = 0
    """Further attempts after the first."""
    backoff_ms: int = 0
    """Before the first retry; it doubles with each, with jitter, up to MAX_BACKOFF_MS."""
    timeout_ms: int = 0
    """Of one attempt; 0: none."""
    keep_ms: int = 0
    """How long the outcome is kept in the results table; 0: not at all."""
    after: list[bytes] = []  # msgspec gives every Struct a list of its own
    """Ids of the tasks whose results are arguments."""
    block: str = ""
    """The data that it works on, for locality."""
    large: Blob | None = None
    """Where the arguments are, if they are too large to stand here."""
    delay_ms: int = 0
    """After its submission, before it may run."""


class TaskOutcome(msgspec.Struct, array_like=True):
    """The value of a reply and of an entry of the results table; the key is the task's id."""

    status: int
    result: bytes
    """`Codec.pack` of the result; of a failure, `Failure.pack`."""
    attempt: int = 1
    worker: str = ""
    popped_us: int = 0
    started_us: int = 0
    ended_us: int = 0
    function: str = ""
    blobs: list[Blob] = []
    """Where large values are that `result` only refers to."""
    submitted_us: int = 0
    ready_us: int = 0
    """When its delay was over, or the last of those that it comes after was settled; 0: it could be
    leased at once."""
    after: list[bytes] = []  # msgspec gives every Struct a list of its own
    """Ids of the tasks that it came after: the first MAX_PARENTS_TOLD."""
    settled_us: int = 0
    """When its worker began to commit it; of a large outcome, when it ended. Must stay last: it is
    written into the packed outcome by `stamped`."""


def stamp_of(settled_us: int) -> bytes:
    """A time as `stamped` takes it."""
    return _UNSIGNED + settled_us.to_bytes(8, "big")


def stamped(packed: bytes, stamp: bytes) -> bytes:
    """A packed outcome with the time at which it is settled; a large one as it is, since this
    copies it."""
    if len(packed) > MAX_STAMPED_BYTES or packed[-9:-8] != _UNSIGNED:
        return packed
    return packed[:-9] + stamp


class Failure(msgspec.Struct, array_like=True):
    """What is told of an exception: never the object itself."""

    kind: str
    """The name of its class, with its module unless that is `builtins`."""
    text: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, traceback: str = "") -> Failure:
        """What is told of this one. Whatever it says, it can be told."""
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        name = f"{module}{kind.__qualname__}"
        return cls(*map(_as_text, (name, _said_by(error), traceback)))


def _said_by(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException as problem:  # the code of strangers
        return f"(what it says is not known: {type(problem).__qualname__})"
    return said if len(said) <= MAX_ERROR_TEXT else f"{said[:MAX_ERROR_TEXT]}…"


def _as_text(said: str) -> str:
    """Names of files, for one, may have halves of characters in them, which cannot be sent."""
    return said.encode("utf-8", "backslashreplace").decode()


encode: Callable[[msgspec.Struct], bytes] = msgspec.msgpack.Encoder().encode


def _reader(kind: type[Any], what: str) -> Callable[[Buffer], Any]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(packed: Buffer) -> Any:
        try:
            return decode(packed)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{what} that cannot be read: {error}") from error

    return read


read_call: Callable[[Buffer], TaskCall] = _reader(TaskCall, "a task")
read_outcome: Callable[[Buffer], TaskOutcome] = _reader(TaskOutcome, "a task's outcome")
read_failure: Callable[[Buffer], Failure] = _reader(Failure, "a task's failure")


def settled_of(packed: bytes) -> int:
    """The `settled_us` of a packed outcome; 0 if it tells none, or is none."""
    try:
        return read_outcome(packed).settled_us
    except ProtocolError:
        return 0
