"""The cold verbs: requests and answers that travel as msgpack.

A request is one member of `Request`, tagged by its name; the answer's type stands in `ANSWERS`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidError, ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.cluster_calls import ClusterChange as ClusterChange
from penstock.wire.cluster_calls import ClusterJoin as ClusterJoin
from penstock.wire.cluster_calls import ClusterJoined as ClusterJoined
from penstock.wire.cluster_calls import ClusterMap as ClusterMap
from penstock.wire.cluster_calls import ClusterStatus as ClusterStatus
from penstock.wire.cluster_calls import WhereIs as WhereIs
from penstock.wire.frames import Settle, SettleItem
from penstock.wire.gangs import Park as Park
from penstock.wire.gangs import Seat as Seat
from penstock.wire.groups import Claim as Claim
from penstock.wire.groups import ClaimInfo as ClaimInfo
from penstock.wire.groups import Claims as Claims
from penstock.wire.groups import ClaimStatus as ClaimStatus
from penstock.wire.groups import Commit as Commit
from penstock.wire.groups import Committed as Committed
from penstock.wire.groups import Renew as Renew
from penstock.wire.groups import Unclaim as Unclaim
from penstock.wire.growth import Layout
from penstock.wire.holds import Held as Held
from penstock.wire.holds import HeldInfo as HeldInfo
from penstock.wire.holds import TxnHold as TxnHold
from penstock.wire.holds import TxnPush as TxnPush
from penstock.wire.holds import TxnWrite as TxnWrite
from penstock.wire.options import OPTION_TYPES as OPTION_TYPES
from penstock.wire.options import Options as Options
from penstock.wire.options import QueueOptions as QueueOptions
from penstock.wire.options import TableOptions as TableOptions
from penstock.wire.options import TopicOptions as TopicOptions
from penstock.wire.request import ColdRequest
from penstock.wire.reservations import FinishReservations as FinishReservations
from penstock.wire.reservations import ReadReserved as ReadReserved
from penstock.wire.reservations import Reservation as Reservation
from penstock.wire.reservations import Reservations as Reservations
from penstock.wire.reservations import Reserve as Reserve
from penstock.wire.reservations import ReservedPart as ReservedPart
from penstock.wire.reservations import SealReservation as SealReservation
from penstock.wire.reservations import Unreserve as Unreserve
from penstock.wire.sessions import SessionClose as SessionClose
from penstock.wire.sessions import SessionKeep as SessionKeep
from penstock.wire.sessions import SessionOpen as SessionOpen
from penstock.wire.stages import DiscardStages as DiscardStages
from penstock.wire.stages import ForgetPublication as ForgetPublication
from penstock.wire.stages import Publication as Publication
from penstock.wire.stages import Publications as Publications
from penstock.wire.stages import PublishStaged as PublishStaged
from penstock.wire.stages import StagedPart as StagedPart
from penstock.wire.stages import StagesOf as StagesOf
from penstock.wire.stages import publication_name as publication_name


class Peer(msgspec.Struct, frozen=True):
    """A node of a cluster, in one of its lives, to another."""

    node: int
    incarnation: int
    cluster: int
    lowest: int = 1  # the levels that it speaks with other nodes
    highest: int = 1
    release: str = ""
    level: int = 1  # of the cluster, as far as it knows


class Hello(msgspec.Struct):
    """First frame of a connection, from the client. It ends the connection that the same client
    (`origin`, a number by chance) had before; `attempt` counts, so that a late one ends nothing."""

    version: int
    client: str = ""
    features: list[str] = []
    auth: dict[str, bytes] = {}
    origin: int = 0  # 0: it does not say
    attempt: int = 0
    peer: Peer | None = None  # a node of the same cluster: the connection becomes a link


class Welcome(msgspec.Struct):
    """The node's answer to Hello."""

    version: int
    node: str
    cluster: int
    shards: int
    max_frame: int
    max_in_flight: int
    features: list[str] = []
    cluster_map: int = 0  # the version of the map; 0: not a cluster
    peer: Peer | None = None  # to a node
    number: int = 0  # the node's id in its cluster; 0: not a cluster


class StreamInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue, topic or table as the control log defines it. `id` is never used again."""

    id: int
    kind: str
    name: str
    namespace: str
    options: dict[str, Any]
    placement: list[int] = []  # topic: the shard of each partition
    growths: list[list[int]] = []  # topic: the parents of the partitions that each growth added

    @property
    def generation(self) -> int:
        """How often a topic has grown."""
        return len(self.growths)

    def layout(self) -> Layout:
        """Which partition of a topic has which keys."""
        added = sum(map(len, self.growths))
        return Layout(len(self.placement) - added, self.growths)


class Open(ColdRequest):
    """Find or create. Answer: StreamInfo."""

    kind: str
    name: str
    namespace: str = "default"
    options: dict[str, Any] | None = None
    create: bool = True


class Configure(ColdRequest):
    """Change settings that may change while it lives. Answer: StreamInfo."""

    stream: int
    options: dict[str, Any]


class Grow(ColdRequest):
    """A topic gets so many partitions; if it has them already, nothing happens. Answer:
    StreamInfo."""

    stream: int
    partitions: int


class Delete(ColdRequest):
    """Delete a stream and its data. Answer: bool, whether it was there."""

    kind: str
    name: str
    namespace: str = "default"


class Streams(ColdRequest):
    """Answer: list[StreamInfo]."""

    kind: str | None = None
    namespace: str = "default"


class Stats(ColdRequest):
    """Figures of the node. Answer: dict."""


class StreamStats(ColdRequest, omit_defaults=True):
    """Figures of one stream. Answer: dict. `partitions`: only of these of a topic, in this order;
    a node of a cluster is asked for those that it owns."""

    stream: int
    partitions: list[int] | None = None


class Purge(ColdRequest):
    """Drop all waiting messages of a queue (leased ones stay). Answer: int."""

    stream: int
    dead: bool = False


class Redrive(ColdRequest):
    """Move dead letters back to the queue. Answer: int."""

    stream: int
    limit: int = 1000


class Release(ColdRequest):
    """Make held or delayed messages available, by id. Answer: `released`, `done` or `unknown`, for
    each."""

    stream: int
    ids: list[bytes]


class Producer(ColdRequest):
    """Register a new instance of a named producer and fence older ones. Answer: ProducerInfo."""

    stream: int
    name: str
    partition: int = 0


class ProducerInfo(msgspec.Struct):
    """Identity of a named producer: where it pushes and how many messages it has stored there."""

    producer: int
    instance: int
    shard: int
    stored: int


class Offsets(ColdRequest, omit_defaults=True):
    """Answer: list of (first, next) per partition; of all, or of those given, in their order."""

    stream: int
    partitions: list[int] | None = None


class Family(ColdRequest, omit_defaults=True):
    """Answer: list[Kinship] per partition; of all, or of those given, in their order."""

    stream: int
    partitions: list[int] | None = None


class Kinship(msgspec.Struct, frozen=True):
    """What a partition's own log says of where it began, and of where children took over: pairs
    of generation and offset."""

    origin: int | None  # None: it is not open yet
    splits: list[tuple[int, int]]


class OffsetAt(ColdRequest, omit_defaults=True):
    """First offset of each partition that arrived at or after a time. Answer: list[int]; of all, or
    of those given, in their order."""

    stream: int
    time_us: int
    partitions: list[int] | None = None


class Put(ColdRequest, omit_defaults=True):
    """Write an entry. Answer: int, its version. Carried out once for a producer and sequence (of
    the key's shard); a refusal uses up no number. Producer 0: a resend is a new write. Messages
    that wait for the entry are told its mark."""

    stream: int
    key: bytes
    value: bytes
    if_version: int | None = None  # 0: only if absent
    ttl_ms: int = 0
    session: int = 0
    append: bool = False
    producer: int = 0
    sequence: int = 0
    mark: int = 0


class Get(ColdRequest):
    """Answer: Entry or None."""

    stream: int
    key: bytes


class Remove(ColdRequest):
    """Delete an entry. Answer: bool, whether it was there. Producer and sequence as in Put: the
    number is used up by False, too."""

    stream: int
    key: bytes
    if_version: int | None = None
    producer: int = 0
    sequence: int = 0


class Scan(ColdRequest):
    """Entries whose key has a prefix, in key order, after a key. Answer: list[Entry]."""

    stream: int
    prefix: bytes = b""
    after: bytes | None = None
    limit: int = 1000
    values: bool = True


class Watch(ColdRequest):
    """EVENT frames for changes to keys with a prefix, under this request's id. Answer: int, 0."""

    stream: int
    prefix: bytes = b""


class Entry(msgspec.Struct, omit_defaults=True):
    """An entry of a table. In an event, `version` 0 means that it is gone."""

    key: bytes
    value: bytes
    version: int
    mark: int = 0


class Event(msgspec.Struct):
    """Body of EVENT frames. `lost`: the watcher was too slow and must read anew."""

    entries: list[Entry]
    lost: bool = False


class TxnSettle(msgspec.Struct, array_like=True):
    """End leases inside a transaction: `op` is `Settle.ACK`, or `Settle.DEAD` for the dead letters.

    With a mask (little endian), only those of the `count` positions whose bit is set.
    """

    stream: int
    shard: int
    grant: int
    position: int
    count: int
    op: int = int(Settle.ACK)
    mask: bytes = b""

    def item(self) -> SettleItem:
        """The same as a settlement; InvalidError if it is none that a transaction can have."""
        mask = int.from_bytes(self.mask, "little")
        if self.op not in (Settle.ACK, Settle.DEAD):
            raise InvalidError(f"a transaction acknowledges messages, or gives up: not {self.op}")
        if self.mask and not 0 < mask.bit_length() <= self.count:
            raise InvalidError(f"a mask of other messages than the {self.count} that it is about")
        return SettleItem(self.op, self.shard, self.count, self.grant, self.position, 0, mask)


class TxnCommit(msgspec.Struct, array_like=True):
    """Commit an offset, and a state with it, inside a transaction."""

    stream: int
    partition: int
    group: str
    offset: int
    token: int = 0
    state: bytes = b""


class Transact(ColdRequest, omit_defaults=True):
    """All or nothing. Answer: TxnReceipt."""

    producer: int
    sequence: int
    home: int
    acks: list[TxnSettle] = msgspec.field(default_factory=list)
    commits: list[TxnCommit] = msgspec.field(default_factory=list)
    pushes: list[TxnPush] = msgspec.field(default_factory=list)
    writes: list[TxnWrite] = msgspec.field(default_factory=list)
    holds: list[TxnHold] = msgspec.field(default_factory=list)


class TxnReceipt(msgspec.Struct):
    """Log number of the transaction in its home shard. `stale`: a topic has grown since it was
    placed; that does no harm, but whoever knows spares the nodes work."""

    home: int
    number: int
    duplicate: bool = False
    stale: bool = False


Request = (
    Open | Configure | Grow | Delete | Streams | Stats | StreamStats | Purge | Redrive | Release
    | Producer | Offsets | OffsetAt | Family | Commit | Committed | Claim | Unclaim | Renew | Claims
    | Put | Get | Remove | Scan | Watch | SessionOpen | SessionKeep | SessionClose | Transact
    | ClusterMap | ClusterStatus | ClusterChange | ClusterJoin | WhereIs | PublishStaged
    | DiscardStages | Publications | ForgetPublication | Reserve | SealReservation | ReadReserved
    | FinishReservations | Unreserve | Reservations | Held | Park
)  # fmt: skip

_decode_request = msgspec.msgpack.Decoder(Request).decode
pack = msgspec.msgpack.Encoder().encode


def read_request(body: Buffer) -> Request:
    """The request in the body of a CALL; ProtocolError if it is none."""
    try:
        request: Request = _decode_request(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a call that cannot be read: {error}") from error
    return request
