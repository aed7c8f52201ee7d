"""Stages: what is pushed under one is seen by nobody until it is published with all the rest."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.client.inputs import milliseconds
from penstock.client.messages import Receipt, Receipts
from penstock.client.push import Place, extra_bytes
from penstock.client.rows import RowsT
from penstock.client.state import PushTarget, QueueState, TopicState
from penstock.client.steps import Steps
from penstock.errors import ConflictError, InvalidError
from penstock.wire.frames import PushExtra

STAGE_BYTES = 16
DAY_S = 86_400.0


class StageToken(msgspec.Struct, frozen=True, array_like=True):
    """What a stage has, and where: whoever publishes it needs no more. It can be pickled, and sent
    as bytes to another process."""

    stage: bytes
    parts: tuple[tuple[int, int], ...]  # shard, messages

    @property
    def messages(self) -> int:
        """In all shards."""
        return sum(messages for _, messages in self.parts)

    def __bytes__(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, data: bytes) -> StageToken:
        """The token that these bytes were made of; InvalidError if they were made of none."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidError(f"not a token of a stage: {error}") from error


class StageState(PushTarget):
    """A stage that this client writes. After an error it cannot be published any more: what of it
    is stored is not known."""

    def __init__(self, stream: QueueState | TopicState, expires: float) -> None:
        self._stream = stream
        self._fabric = stream._fabric
        self.id = secrets.randbits(8 * STAGE_BYTES).to_bytes(STAGE_BYTES, "little")
        self._expires_ms = max(milliseconds("expires", expires), 1)
        self._stored: dict[int, int] = {}  # shard: messages
        self._touched: set[int] = set()  # shards to which something was sent
        self._ids: set[bytes] = set()
        self._counting = threading.Lock()
        self._failed: BaseException | None = None
        self._run = lambda steps: stream._run(self._counted(steps))

    @property
    def messages(self) -> int:
        """How many are staged."""
        return sum(self._stored.values())

    @property
    def token(self) -> StageToken:
        """What is staged so far, for `publish_staged`; ConflictError after a failed push."""
        if self._failed is not None:
            raise ConflictError(
                f"a push to this stage failed: {self._failed}",
                advice="Discard it, and stage everything again.",
            )
        return StageToken(self.id, tuple(sorted(self._stored.items())))

    def _counted(self, steps: Steps[Any]) -> Steps[Any]:
        try:
            result = yield from steps
        except BaseException as error:
            self._failed = error
            raise
        if isinstance(result, Receipt | Receipts):
            with self._counting:
                for receipt in [result] if isinstance(result, Receipt) else result:
                    before = self._stored.get(receipt.shard, 0)
                    self._stored[receipt.shard] = before + receipt.count
        return result

    def _extra(self, message_id: bytes | None, hold: bool) -> bytes:
        if hold:
            raise InvalidError("what is staged cannot be held as well")
        if message_id is not None:
            with self._counting:
                if message_id in self._ids:
                    raise InvalidError(f"id {message_id!r} is in this stage already")
                self._ids.add(message_id)
        return extra_bytes(PushExtra(message_id, False, self.id, self._expires_ms))

    def _place_for(self, key: bytes | None, message_id: bytes | None) -> Place:
        place = self._stream._place_for(key, message_id)
        self._touched.add(place.shard)
        return place

    def _spread(self, rows: RowsT) -> Iterable[tuple[Place, RowsT]]:
        for place, part in self._stream._spread(rows):
            self._touched.add(place.shard)
            yield place, part

    def __repr__(self) -> str:
        return f"<stage {self.id.hex()} of {self._stream!r}: {self.messages:,} messages>"


def tokens_of(stages: Iterable[StageToken | StageState]) -> list[StageToken]:
    """Tokens, in order; InvalidError if a stage is named twice."""
    tokens = [each.token if isinstance(each, StageState) else each for each in stages]
    if not all(isinstance(each, StageToken) for each in tokens):
        raise InvalidError("stages are named by their tokens")
    if len({each.stage for each in tokens}) != len(tokens):
        raise InvalidError("a stage is named twice")
    return tokens

