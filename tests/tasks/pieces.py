"""Pieces of large values in a dictionary, for tests of those who ask others for them."""

from __future__ import annotations

from collections import deque

from penstock.tasks.blobs.carrier import GetPiece, Piece, PieceRequest


class Memory:
    """Answers in the reverse order, as far as it may; counts what is asked at a time."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.most = 0
        self._answers: deque[Piece] = deque()

    def ask(self, request: PieceRequest) -> None:
        if isinstance(request, GetPiece):
            self._answers.append(Piece(request.key, self.kept.get(request.key)))
        else:
            self.kept[request.key] = request.value
            self._answers.append(Piece(request.key))
        self.most = max(self.most, len(self._answers))

    def answer(self) -> Piece:
        return self._answers.pop()
