"""The reference to a large value, and how it is cut into pieces. No I/O here."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from penstock.errors import TooLargeError
from penstock.tasks.names import TASK_BYTES, shown
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_TABLE_VALUE_BYTES

INLINE_BYTES = 256 << 10  # what is packed into no more than that travels with its message
PIECE_BYTES = 512 << 10
MAX_TABLE_BYTES = 64 << 20  # of one value in the table: tables lie in the memory of nodes
MAX_FILE_BYTES = 2 << 30
MARGIN_S = 600.0  # that pieces outlive what refers to them: they are written before it
ARGUMENTS_S = 7 * 86_400.0  # that large arguments wait for their task to be over
_NONCE_BYTES = 8
_INDEX_BYTES = 4


class Blob(msgspec.Struct, array_like=True, frozen=True):
    """Where a large value is: in pieces in a table, or in a file of a directory.

    Its name is one that no other attempt of the task has, so that a late twin changes nothing.
    """

    name: bytes
    """The id of the task that it belongs to, and chance."""
    size: int
    piece: int
    """Bytes of every piece but the last; 0: it is a file."""
    expires_s: int
    """By the wall clock, in seconds. Then it is gone, if it was not removed before."""
    once: bool = False
    """Whether nobody but the one who waits will ever read it, and can remove it then."""

    @property
    def task(self) -> bytes:
        """The id of the task that it belongs to."""
        return self.name[:TASK_BYTES]

    @property
    def keys(self) -> list[bytes]:
        """Of its pieces in the table, in order; none if it is a file."""
        count = -(-self.size // self.piece) if self.piece else 0
        return [self.name + index.to_bytes(_INDEX_BYTES, "big") for index in range(count)]

    @property
    def file_name(self) -> str:
        """Of its file; it says when that may be removed."""
        return f"{self.name.hex()}.{self.expires_s}.blob"

    def ttl_s(self, now_s: float) -> float:
        """How long it has to live, from now on."""
        return max(self.expires_s - now_s, 1.0)

    def checked(self) -> Blob:
        """Itself; TooLargeError if it claims to be what no blob is. It may come from a stranger."""
        sound = len(self.name) == TASK_BYTES + _NONCE_BYTES and self.size > 0
        if self.piece:
            sound = sound and PIECE_BYTES <= self.piece <= MAX_TABLE_VALUE_BYTES
            sound = sound and self.size <= MAX_TABLE_BYTES
        if not sound or self.size > MAX_FILE_BYTES:
            raise TooLargeError(f"a reference to a value of {self.size:,} bytes that cannot be")
        return self


Large = tuple[Blob, Buffer]  # a value that is to be stored, and where


def new_blob(
    task: bytes, size: int, ends_s: float, files: bool, what: str, once: bool = False
) -> Blob:
    """The reference under which a task's value is about to be stored, until `ends_s`. `files`:
    whether there is a directory for those that the table does not take. TooLargeError says what the
    limit is."""
    large = size > MAX_TABLE_BYTES
    limit = MAX_FILE_BYTES if files else MAX_TABLE_BYTES
    if size > limit:
        advice = "Write it to files of your own, and send where it is."
        if not files:
            advice = "Give client and workers a directory that they share (directory=, --directory)"
        raise TooLargeError(
            f"{what} of task {shown(task)}: {size:,} bytes; the limit is {limit:,}", advice=advice
        )
    name = task + secrets.token_bytes(_NONCE_BYTES)
    return Blob(name, size, 0 if large else PIECE_BYTES, int(ends_s) + 1, once)


def cut(blob: Blob, packed: Buffer) -> Iterator[tuple[bytes, bytes]]:
    """Keys and pieces; only the piece that is taken is copied."""
    view = memoryview(packed)
    for number, key in enumerate(blob.keys):
        yield key, bytes(view[number * blob.piece : (number + 1) * blob.piece])


class Joining:
    """Pieces on their way back to a whole, in any order; each is copied to its place once."""

    def __init__(self, blob: Blob) -> None:
        self._piece = blob.piece
        self._size = blob.size
        self._whole = bytearray(blob.size)
        self._missing = {key: number for number, key in enumerate(blob.keys)}

    def add(self, key: bytes, piece: bytes | None) -> None:
        """A piece came, or is not there any more: `whole` will be None."""
        number = self._missing.get(key)
        if number is None or piece is None:
            return
        at = number * self._piece
        if len(piece) == min(self._piece, self._size - at):
            self._whole[at : at + len(piece)] = piece
            del self._missing[key]

    @property
    def whole(self) -> memoryview | None:
        """The value, not to be written to; None as long as a piece is missing."""
        return None if self._missing else memoryview(self._whole).toreadonly()
