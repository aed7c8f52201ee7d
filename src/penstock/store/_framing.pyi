from collections.abc import Callable

from penstock.wire.buffers import Buffer

def frame(
    digest: Callable[[Buffer], int],
    parts: list[Buffer],
    length: int,
    position: int,
    synced: int,
    shard: int,
    kind: int,
    epoch: int,
    number: int,
    meta: bytes,
    payload: Buffer | None,
    /,
) -> bool: ...
