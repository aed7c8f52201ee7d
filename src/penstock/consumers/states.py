"""What a group commits with an offset of a partition, as bytes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import xxhash

from penstock.consumers.moved import Moved
from penstock.errors import ProtocolError
from penstock.wire.limits import MAX_STATE_BYTES

VERSION = 1
MAX_INLINE_BYTES = MAX_STATE_BYTES - (4 << 10)  # of progress and dump together, in a commit
MAX_DUMP_BYTES = 256 << 20  # a larger one is not made: the next owner reads again

_MARK = b"PG"


class ChunksRef(NamedTuple):
    """Bytes that are stored in pieces."""

    reference: str
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    size: int
    checksum: int


class Skip(NamedTuple):
    """Of what is made again from the progress on, so many have been delivered."""

    results: int = 0
    late: int = 0
    dead: int = 0


class Lineage(NamedTuple):
    """Where a partition stands among those that its topic got when it grew: the offset at which its
    log begins, the last growth that is dealt with, and the keys that left, as long as fragments of
    theirs might be read again."""

    origin: int = 0
    generation: int = 0
    moved: tuple[Moved, ...] = ()


class State(msgspec.Struct, array_like=True, frozen=True):
    """`dump` or `chunks`: everything that the owner knew when it stopped at `stopped_us`, for
    `heir` or for whoever comes. The progress serves where they are not there. Times are wall time.
    """

    version: int
    member: str
    at_us: int
    progress: bytes
    skip: Skip = Skip()
    dump: bytes = b""
    chunks: ChunksRef | None = None
    heir: str = ""
    stopped_us: int = 0
    lineage: Lineage = Lineage()

    def encode(self) -> bytes:
        """For a commit."""
        return _MARK + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, packed: bytes) -> State:
        """What `encode` made; ProtocolError if it is something else, or of a newer version."""
        if packed[: len(_MARK)] != _MARK:
            raise ProtocolError(
                "the group's state was not committed by a stateful consumer",
                advice="Use another group, or commit an offset without a state.",
            )
        try:
            state = msgspec.msgpack.decode(memoryview(packed)[len(_MARK) :], type=cls)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a group's state is damaged: {error}") from error
        if state.version != VERSION:
            raise ProtocolError(f"a group's state of version {state.version}, not known here")
        return state


def checksum(packed: bytes) -> int:
    """Of stored bytes; fits into 63 bits."""
    return xxhash.xxh3_64_intdigest(packed) >> 1


_read_parts = msgspec.msgpack.Decoder(list[bytes]).decode


def join_parts(parts: list[bytes]) -> bytes:
    """The parts of a dump as one."""
    return msgspec.msgpack.encode(parts)


def split_parts(packed: bytes) -> list[bytes]:
    """What `join_parts` joined; ProtocolError if it is something else."""
    try:
        return _read_parts(packed)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a dump is damaged: {error}") from error
