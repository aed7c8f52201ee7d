"""Raw frames to one node: no routing, no resends."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.changes import Op
from penstock.near import near_name
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    FRAME,
    FRAME_BYTES,
    GRANT,
    POP,
    PROTOCOL_VERSION,
    PUSH,
    RECEIPT,
    SETTLE_HEAD,
    SETTLE_ITEM,
    Flag,
    Verb,
    frame,
    read_error,
)


class RawClient:
    """A connection on which one request follows the other."""

    def __init__(
        self, address: tuple[str, int], timeout: float = 10.0, features: Sequence[str] = (),
        near: bool = False,
    ) -> None:  # fmt: skip
        """`near`: by the socket beside the port."""
        if near:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(timeout)
            self._socket.connect(near_name(*address) or "")
        else:
            self._socket = socket.create_connection(address, timeout)
        self._requests = 0
        hello = m.pack(m.Hello(PROTOCOL_VERSION, features=list(features)))
        self.welcome = msgspec.msgpack.decode(self.request(Verb.HELLO, hello), type=m.Welcome)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def request(self, verb: int, body: bytes) -> bytes:
        """The answer's body; raises the error if it is one."""
        self._requests += 1
        self._socket.sendall(frame(verb, self._requests, 0, body))
        while True:
            _, flags, found, answer = self.next_frame()
            if found == self._requests:
                break
        if flags & Flag.ERROR:
            raise read_error(answer)
        return answer

    def next_frame(self) -> tuple[int, int, int, bytes]:
        """Verb, flags, request and body of what comes next."""
        length, verb, flags, _, request = FRAME.unpack(self._exactly(FRAME_BYTES))
        return verb, flags, request, self._exactly(length - FRAME_BYTES)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return data

    def call(self, call: m.Request) -> Any:
        return msgspec.msgpack.decode(self.request(Verb.CALL, m.pack(call)))

    def open(self, name: str, **options: Any) -> dict[str, Any]:
        info: dict[str, Any] = self.call(m.Open("queue", name, options=options or None))
        return info

    def push(self, stream: int, shard: int, value: bytes, producer: int, sequence: int) -> bool:
        """Whether it was new; the receipt has come."""
        batch = encode_batch([value], timestamp_us=5, producer=producer, sequence=sequence)
        head = PUSH.pack(stream, 0, shard, 0, 0)
        return not RECEIPT.unpack(self.request(Verb.PUSH, head + bytes(batch)))[4]

    def pop(
        self, stream: int, messages: int = 100, wait_ms: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Values, each with what acknowledges it."""
        asked = POP.pack(stream, messages, 1 << 20, wait_ms, 0, 0)
        body = memoryview(self.request(Verb.POP, asked))
        grants, _ = COUNT.unpack_from(body)
        heads = [GRANT.unpack_from(body, COUNT.size + GRANT.size * n) for n in range(grants)]
        at = COUNT.size + GRANT.size * grants
        found: list[tuple[bytes, bytes]] = []
        for grant, position, count, shard, _, length, _ in heads:
            for row, value in enumerate(Batch.parse(body[at : at + length]).values[:count]):
                item = SETTLE_ITEM.pack(Op.ACK, shard, 1, grant, position + row, 0)
                found.append((value, SETTLE_HEAD.pack(stream, 1) + item))
            at += length
        return found

    def ack(self, token: bytes) -> bool:
        accepted, _ = COUNT.unpack_from(self.request(Verb.SETTLE, token))
        return bool(accepted == 1)
