"""Large values for those who run functions, and have no connection: others carry the pieces.

An executor asks its puller, a member of a gang its worker. Few pieces are on their way at a time,
so that nobody but the function's own process has to hold the whole.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from penstock.errors import PenstockError, from_code
from penstock.tasks.blobs.blob import Blob, Joining, cut, new_blob
from penstock.tasks.blobs.files import Directory
from penstock.tasks.blobs.pieces import PatientPieces
from penstock.tasks.blobs.store import needed, there
from penstock.wire.buffers import Buffer

MOST_ASKED = 4  # pieces at a time


class PutPiece(msgspec.Struct, tag=True, array_like=True):
    """Write this. Answered by Piece, without a value."""

    key: bytes
    value: bytes
    ttl_s: float


class GetPiece(msgspec.Struct, tag=True, array_like=True):
    """Read that. Answered by Piece."""

    key: bytes


class Piece(msgspec.Struct, tag=True, array_like=True):
    """A piece was written, or read (None: it is not there any more), or (code) could not be."""

    key: bytes
    value: bytes | None = None
    code: int = 0
    text: str = ""


PieceRequest = PutPiece | GetPiece


class Carrier:
    """Writes and reads large values by asking for one piece after the other. Of one thread at a
    time."""

    def __init__(
        self,
        ask: Callable[[PieceRequest], None],
        answer: Callable[[], Piece],
        directory: Directory | None = None,
    ) -> None:
        """`ask` returns at once; `answer` waits for the next of the answers, in any order."""
        self._ask = ask
        self._answer = answer
        self._directory = directory

    def write(self, task: bytes, packed: Buffer, keep_s: float, once: bool) -> Blob:
        """Stores a task's result; durable when it returns. TooLargeError if it is beyond limits."""
        files = self._directory is not None
        blob = new_blob(task, len(packed), time.time() + keep_s, files, "the result", once)
        if not blob.piece:
            needed(self._directory, blob).write(blob, packed)
            return blob
        asked = 0
        for key, piece in cut(blob, packed):
            if asked == MOST_ASKED:
                self._next()
                asked -= 1
            self._ask(PutPiece(key, piece, keep_s))
            asked += 1
        for _ in range(asked):
            self._next()
        return blob

    def read(self, blob: Blob) -> Buffer:
        """The value; TaskError if it is not there any more."""
        if not blob.checked().piece:
            return there(needed(self._directory, blob).read(blob), blob)
        joining, asked = Joining(blob), 0
        for key in blob.keys:
            if asked == MOST_ASKED:
                self._take(joining)
                asked -= 1
            self._ask(GetPiece(key))
            asked += 1
        for _ in range(asked):
            self._take(joining)
        return there(joining.whole, blob)

    def _take(self, joining: Joining) -> None:
        piece = self._next()
        joining.add(piece.key, piece.value)

    def _next(self) -> Piece:
        piece = self._answer()
        if piece.code:
            raise from_code(piece.code, piece.text)
        return piece


async def carry(pieces: PatientPieces, request: PieceRequest) -> Piece:
    """Does what was asked for; the answer."""
    try:
        if isinstance(request, GetPiece):
            return Piece(request.key, await pieces.get(request.key))
        await pieces.put(request.key, request.value, request.ttl_s)
    except PenstockError as error:
        return Piece(request.key, None, error.code, error.message)
    return Piece(request.key)


class CarriedAside:
    """Carries pieces on the event loop that made it, for a thread beside that."""

    def __init__(self, pieces: PatientPieces) -> None:
        self._pieces = pieces
        self._loop = asyncio.get_running_loop()
        self._asked: deque[Future[Piece]] = deque()

    def ask(self, request: PieceRequest) -> None:
        """Begins."""
        work = carry(self._pieces, request)
        self._asked.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    def answer(self) -> Piece:
        """Waits for the oldest answer."""
        return self._asked.popleft().result()
