from collections.abc import Callable
from typing import TypeVar

from penstock.wire.buffers import Buffer

Head = TypeVar("Head")
Header = TypeVar("Header")
Digest = Callable[[memoryview], int]

def read_header(batch: Buffer, header: type[Header], digest: Digest, /) -> Header | None: ...
def read_push(
    body: Buffer, head: type[Head], header: type[Header], digest: Digest, /
) -> tuple[Head, Header] | None: ...
def one_value(
    value: bytes,
    timestamp_us: int,
    producer: int,
    sequence: int,
    instance: int,
    digest: Digest,
    /,
) -> bytearray | None: ...
