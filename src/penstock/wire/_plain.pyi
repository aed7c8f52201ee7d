from collections.abc import Callable

from penstock.wire.buffers import Buffer

Digest = Callable[[memoryview], int]
Fields = tuple[bytes | int, ...]

def read_header(batch: Buffer, digest: Digest, /) -> Fields | None: ...
def read_push(body: Buffer, digest: Digest, /) -> tuple[Fields, Fields] | None: ...
def one_value(
    value: bytes,
    timestamp_us: int,
    producer: int,
    sequence: int,
    instance: int,
    digest: Digest,
    /,
) -> bytearray | None: ...
def part_of(
    batch: Buffer, position: int, count: int, digest: Digest, /
) -> bytearray | None: ...
