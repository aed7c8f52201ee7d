"""A snapshot on its way to a peer that is too far behind for the log: one chunk at a time."""

from __future__ import annotations

from penstock.cluster.consensus.messages import Snapshot, SnapshotChunk
from penstock.cluster.consensus.progress import Progress
from penstock.cluster.consensus.state import State
from penstock.errors import ProtocolError


def next_chunk(state: State, peer: int, progress: Progress, snapshot: Snapshot) -> SnapshotChunk:
    """The bytes that the peer misses next."""
    end = progress.offset + state.settings.chunk_bytes
    return SnapshotChunk(
        state.node, peer, state.term, snapshot.index, snapshot.term, snapshot.membership,
        len(snapshot.data), progress.offset, snapshot.data[progress.offset : end],
    )  # fmt: skip


def chunk_arrived(progress: Progress, index: int, offset: int) -> None:
    """The peer goes on at `offset`, which lies before what was sent if it was restarted. What it
    said before that may arrive late and mislead, so its last word counts, whatever it is; the same
    word twice starts nothing, or every answer that was doubled would double all that follow."""
    snapshot = progress.snapshot
    if snapshot is None or snapshot.index != index:
        return
    if offset > len(snapshot.data):
        raise ProtocolError(f"a peer wants byte {offset} of a snapshot of {len(snapshot.data)}")
    if offset != progress.offset:
        progress.offset, progress.waiting = offset, False


class Assembly:
    """Chunks of one snapshot from one leader in one term: others may have packed it differently."""

    def __init__(self, first: SnapshotChunk) -> None:
        self._identity = _identity(first)
        self._parts: list[bytes] = []
        self.offset = 0

    def continued_by(self, chunk: SnapshotChunk) -> bool:
        """Whether the chunk is of the same snapshot."""
        return _identity(chunk) == self._identity

    def add(self, chunk: SnapshotChunk) -> None:
        """Takes what comes next; what came before, or too early, changes nothing."""
        if chunk.offset == self.offset:
            self._parts.append(chunk.data)
            self.offset += len(chunk.data)

    def whole(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The snapshot, if nothing is missing."""
        if self.offset < chunk.size:
            return None
        data = b"".join(self._parts)
        return Snapshot(chunk.index, chunk.snapshot_term, chunk.membership, data)


def _identity(chunk: SnapshotChunk) -> tuple[object, ...]:
    place = (chunk.index, chunk.snapshot_term, chunk.membership)
    return (chunk.source, chunk.term, chunk.size, *place)
