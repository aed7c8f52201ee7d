from collections.abc import Callable

from penstock.wire.buffers import Buffer

def send_alone(
    fileno: Callable[[], int],
    is_closing: Callable[[], bool],
    get_write_buffer_size: Callable[[], int],
    whole: bool,
    data: Buffer,
    /,
) -> bool: ...
