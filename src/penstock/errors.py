"""The error tree. Every error has a code, says if a retry can help, and what to do.

    PenstockError
    ├── InvalidError           the request itself is wrong; nothing was changed
    │   ├── TooLargeError          over a documented limit
    │   └── ProtocolError          bytes that are not a frame, a batch or a known verb
    ├── NotFoundError          no such queue, topic, table, message or session
    ├── ExistsError            there already, with other settings
    ├── ConflictError          a precondition does not hold: version, lease, claim
    │   ├── LeaseLostError         the lease ran out or was superseded; the ack was refused
    │   ├── FencedError            a newer instance of this producer or claim exists
    │   ├── StaleError             the topic has grown since this was placed; nothing was stored
    │   ├── VersionError           this release cannot be a node of that cluster
    │   └── ForgottenError         this producer expired: a resend would look like a new push
    ├── LimitError             a bound was reached (depth, in flight, memory); back off and retry
    ├── UnavailableError       not now: node stopping, connection lost, disk refusing
    │   ├── StorageError           full or failing disk; nothing new is acknowledged, reads go on
    │   ├── DeadlineError          the call's deadline passed; the outcome may be unknown
    │   ├── ClosedError            used after close
    │   └── NotLeaderError         another node decides this; the error names it, if it is known
    ├── DamagedError           stored bytes fail their checksum; quarantined, see `penstock doctor`
    └── InUseError             another process has this data directory open
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Base of all errors raised by Penstock.

    `code` is stable and travels on the wire; `retriable` says whether the same call may succeed
    later; `advice` says what a person can do.
    """

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = "This is a defect in Penstock: please report it."

    def __init__(self, message: str = "", *, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = advice or self.advice

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidError(PenstockError):
    """The request itself is wrong; nothing was changed."""

    code = 10
    advice = "Correct the call; the same call will fail again."


class TooLargeError(InvalidError):
    """Over a documented limit on size or count."""

    code = 11
    advice = "Send less at once; the docs list all limits."


class ProtocolError(InvalidError):
    """Bytes that are not a frame, a batch or a known verb. The connection is closed."""

    code = 12
    advice = "Check that both ends speak the same version of Penstock."


class NotFoundError(PenstockError):
    """No such queue, topic, table, message or session."""

    code = 20
    advice = "Check the name, or create it first."


class ExistsError(PenstockError):
    """There already, with other settings."""

    code = 21
    advice = "Open it without settings, or delete it first."


class ConflictError(PenstockError):
    """A precondition does not hold; nothing was changed."""

    code = 30
    advice = "Read the current state and decide again."


class LeaseLostError(ConflictError):
    """The lease ran out or was superseded; the acknowledgement was refused. `rows`: of a delivery
    whose leases were to be extended, all whose leases are lost."""

    rows: tuple[int, ...] = ()
    code = 31
    advice = "Another delivery counts now; extend the lease during long work, or lengthen it."


class FencedError(ConflictError):
    """A newer instance of this producer or claim exists."""

    code = 32
    advice = "Stop this instance; the newer one has taken over."


class ForgottenError(ConflictError):
    """The producer's window expired: a resend cannot be told from a new push."""

    code = 33
    advice = "Check whether the data arrived, then push with a new producer."


class VersionError(ConflictError):
    """This release of Penstock does not speak what the cluster's nodes speak with each other, or
    does not read the layout of a data directory."""

    code = 34
    advice = "Start the node with the release of the other nodes."


class StaleError(ConflictError):
    """The topic has grown since a batch was placed in one of its partitions; nothing was stored."""

    code = 35
    advice = "The client asks how the topic is now and places it anew; a client of an older "\
             "release cannot publish keys to a topic that has grown."


class LimitError(PenstockError):
    """A bound was reached (depth, requests in flight, memory); nothing was stored."""

    code = 40
    retriable = True
    advice = "Back off and retry, consume faster, or raise the bound."


class UnavailableError(PenstockError):
    """Not now: the node is stopping, or the connection was lost."""

    code = 50
    retriable = True
    advice = "Retry; the client does so by itself until the deadline."


class MovedError(UnavailableError):
    """Another node owns this shard, or nobody does at the moment."""

    code = 55
    advice = "The client asks for a newer map of the cluster and tries the owner."


class StorageError(UnavailableError):
    """Full or failing disk: nothing new is acknowledged, reads go on."""

    code = 51
    advice = "Make room on the node's disk; it goes on by itself, no restart is needed."


class DeadlineError(UnavailableError):
    """The call's deadline passed; a write may or may not have been stored."""

    code = 52
    advice = (
        "What was sent may be carried out yet: look before you repeat it, or give every push an "
        "id, which makes repeating harmless. Or raise the timeout."
    )


class ClosedError(UnavailableError):
    """Used after close."""

    code = 53
    retriable = False
    advice = "Open a new connection."


class NotLeaderError(UnavailableError):
    """Another node decides this: `leader`, or None while there is none or on the far side."""

    code = 54
    advice = "Ask the leader, or retry when there is one."

    def __init__(
        self, message: str = "", *, advice: str | None = None, leader: int | None = None
    ) -> None:
        super().__init__(message, advice=advice)
        self.leader = leader


class DamagedError(PenstockError):
    """Stored bytes fail their checksum; they are quarantined and never served."""

    code = 60
    advice = "Run `penstock doctor DIR` to see what is damaged and what can be done."


class InUseError(PenstockError):
    """Another process has this data directory open."""

    code = 61
    retriable = True
    advice = "Stop the other process, or connect to it instead of opening the directory."


def said(error: BaseException) -> str:
    """What an exception says of itself; a deadline or a cancelled attempt says nothing."""
    return str(error) or "it took too long"


def _tree(root: type[PenstockError]) -> dict[int, type[PenstockError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_code(code: int, message: str, advice: str | None = None) -> PenstockError:
    """The error that a node sent; an unknown code (a newer node) becomes the base class."""
    return _tree(PenstockError).get(code, PenstockError)(message, advice=advice)
