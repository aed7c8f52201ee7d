"""The first two frames of a connection."""

from __future__ import annotations

import secrets

from penstock.client.steps import body_of, decoder
from penstock.errors import ConflictError, ProtocolError
from penstock.wire.frames import (
    COMING,
    FRAME,
    MERGED,
    PROTOCOL_VERSION,
    Flag,
    Verb,
    frame,
    read_error,
)
from penstock.wire.messages import Hello, Welcome, pack

_read_welcome = decoder(Welcome)


def new_hello(name: str, wakes: bool = False) -> Hello:
    """What one client says on all its connections. `wakes`: it is of use to it to be told that
    something will come in a moment."""
    features = [MERGED, COMING] if wakes else [MERGED]
    return Hello(PROTOCOL_VERSION, name, features, origin=secrets.randbits(63) | 1)


def hello_frame(hello: Hello) -> bytes:
    """What the client says first on its next connection; request 0."""
    hello.attempt += 1
    return frame(Verb.HELLO, 0, 0, pack(hello))


def read_welcome(frames: list[bytearray]) -> Welcome:
    """The node's answer; raises what it refused the connection with."""
    _, verb, flags, _, request = FRAME.unpack_from(frames[0])
    if len(frames) != 1 or verb != Verb.HELLO or request != 0 or not flags & Flag.RESPONSE:
        raise ProtocolError("the node did not answer the greeting with a greeting")
    if flags & Flag.ERROR:
        raise read_error(body_of(frames[0]))
    welcome: Welcome = _read_welcome(body_of(frames[0]))
    if welcome.shards < 1 or welcome.max_in_flight < 1:
        raise ProtocolError("the node says that it has no shards, or takes no requests")
    return welcome


def is_of_cluster(welcome: Welcome) -> bool:
    """Whether there is more than the node that said this, though it may not know the others yet:
    one that was just started has no map before it has reached a majority."""
    return bool(welcome.cluster_map or welcome.number)


def check_same(before: Welcome | None, now: Welcome) -> None:
    """After a reconnect: sequences and stream ids mean nothing to another cluster."""
    if before is None:
        return
    if (before.cluster, before.shards) != (now.cluster, now.shards):
        raise ConflictError(
            "the address now leads to another cluster",
            advice="Open a new connection if that is meant.",
        )
