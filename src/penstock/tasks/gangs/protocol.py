"""What a worker of gangs and the process of a member say to each other."""

from __future__ import annotations

import msgspec

from penstock.tasks.blobs.carrier import GetPiece, Piece, PutPiece
from penstock.tasks.gangs.running import MemberWork
from penstock.tasks.worker.protocol import Broken, Ready, Setup


class _Message(msgspec.Struct, tag=True, array_like=True):
    """Base of messages."""


class Meet(_Message):
    """The function waits for the other members. Answered by Met or NotMet."""

    value: bytes
    timeout_s: float | None


class Returned(_Message):
    """The function has returned or raised: its status, and the packed outcome."""

    status: int
    outcome: bytes


class Met(_Message):
    """All members have come: their values, by rank."""

    values: list[bytes]


class NotMet(_Message):
    """They do not come, or must not: the code of the error, and what it says."""

    code: int
    text: str


ToChild = Setup | MemberWork | Met | NotMet | Piece
ToWorker = Ready | Broken | Meet | Returned | PutPiece | GetPiece
