from collections.abc import Callable

from penstock.wire.buffers import Buffer

def peek(
    frame: Buffer, digest: Callable[[Buffer], int], /
) -> tuple[int, int, int, int, int, int, int] | None: ...
def promised(
    frame: bytearray,
    digest: Callable[[Buffer], int],
    base: int,
    epoch: int,
    now_us: int,
    number: int,
    grant: int,
    lease_us: int,
    level: int,
    taker: int,
    request: int,
    position: int,
    synced: int,
    /,
) -> tuple[bytes, bytes, bytes | None]: ...
