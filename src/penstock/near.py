"""A shorter way to a node of the same machine.

Beside its port on the loopback interface, a node listens at a Unix socket that is named after that
port. A client that is told the port tries that first: what goes this way does not pass through TCP,
which is a good part of the time that a small message takes. `PENSTOCK_NEAR=off` says no, to a node
or to a client.

Only on Linux, where such a name need not be a file: it belongs to the network namespace, as the
port does, and is gone with its process. Anybody on the machine may take a name that no node has. So
a client trusts it only if who listens there is the client's own user, or root; otherwise it goes by
the port, as it does if nobody listens.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.machine import is_off

BUFFER_BYTES = 4 << 20  # on its way; by default it is too little for a batch
BACKLOG = 1024
_HOSTS = frozenset({"127.0.0.1", "::1"})
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_ROOT = 0
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_NOBODY = 65534


def near_name(host: str, port: int) -> str | None:
    """What the socket beside a port is called; None if there is none."""
    if host not in _HOSTS or sys.platform != "linux" or is_off("PENSTOCK_NEAR"):
        return None
    return f"\0penstock/{host}:{port}"


def listen_near(host: str, port: int) -> socket.socket | None:
    """The socket beside a port that this process listens at; None if there can be none."""
    name = near_name(host, port)
    if name is None:
        return None
    try:
        with _closed_on_error(_new_socket()) as listener:
            listener.bind(name)
            listener.listen(BACKLOG)
    except OSError:  # somebody has the name: clients find out that it is not the node
        return None
    return listener


def connect_near(host: str, port: int) -> socket.socket | None:
    """A connection to the node at a port of this machine; does not wait. None if there is no such
    way, or who is there is not to be trusted."""
    name = near_name(host, port)
    if name is None:
        return None
    try:
        with _closed_on_error(_new_socket()) as near:
            near.connect(name)
            if not _is_trusted(near):
                raise PermissionError(f"{name[1:]} is another user's")
    except OSError:  # nobody is there, or too many others are, or a stranger
        return None
    return near


@contextmanager
def _closed_on_error(made: socket.socket) -> Iterator[socket.socket]:
    try:
        yield made
    except BaseException:
        made.close()
        raise


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    widen(made)
    return made


def widen(near: socket.socket) -> None:
    """Lets more be on its way from this end; one that was accepted has only what is usual."""
    if near.family == socket.AF_UNIX:
        with suppress(OSError):
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


def _is_trusted(near: socket.socket) -> bool:
    packed = near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return user != _overflow_user() and user in (os.geteuid(), _ROOT)


def _overflow_user() -> int:
    """As whom a user namespace shows all users that it does not know: that may be anybody."""
    try:
        return int(_OVERFLOW.read_text())
    except (OSError, ValueError):
        return _NOBODY
