"""Operations of the fabric itself, written once for both shells (see `steps`)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from penstock.client.inputs import check_name, milliseconds, stream_options
from penstock.client.requests import ANY
from penstock.client.spread import ask_all, join_figures
from penstock.client.state import FabricState, StreamState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError
from penstock.wire.messages import (
    Configure,
    Delete,
    Open,
    SessionClose,
    SessionKeep,
    SessionOpen,
    Stats,
    StreamInfo,
    Streams,
    StreamStats,
)
from penstock.wire.sessions import home_of

_read_info = decoder(StreamInfo)
_read_infos = decoder(list[StreamInfo])
_read_bool = decoder(bool)
_read_int = decoder(int)
_read_figures = decoder(dict[str, Any])


def open_stream(
    fabric: FabricState, kind: str, name: str, options: Mapping[str, Any], create: bool = True
) -> Steps[StreamInfo]:
    """Finds a queue, topic or table, or creates it. ExistsError if it has other settings.

    Without `create`, NotFoundError if it is not there.
    """
    settings = stream_options(kind, options)
    request = Open(kind, check_name(name), fabric.namespace, settings, create)
    info: StreamInfo = yield from ask(request, _read_info)
    if fabric._routes is not None:
        fabric._routes.opened(time.monotonic())
    return info


def stream_stats(stream: StreamState) -> Steps[dict[str, Any]]:
    """Figures of one stream; in a cluster, of all nodes joined."""
    call = StreamStats(stream.info.id)
    if stream._routes is None:
        figures: dict[str, Any] = yield from ask(call, _read_figures)
        return figures
    told = yield from ask_all(stream._routes, call, _read_figures)
    return join_figures(told.values())


def configure(stream: StreamState, /, **options: Any) -> Steps[None]:
    """Changes settings; those that cannot change while it lives are refused."""
    settings = stream_options(stream.info.kind, options)
    if settings is None:
        raise InvalidError("configure needs at least one setting")
    stream._told((yield from ask(Configure(stream.info.id, settings), _read_info)))


def queues(fabric: FabricState) -> Steps[list[StreamInfo]]:
    """All queues of the namespace."""
    return ask(Streams("queue", fabric.namespace), _read_infos)


def topics(fabric: FabricState) -> Steps[list[StreamInfo]]:
    """All topics of the namespace."""
    return ask(Streams("topic", fabric.namespace), _read_infos)


def tables(fabric: FabricState) -> Steps[list[StreamInfo]]:
    """All tables of the namespace."""
    return ask(Streams("table", fabric.namespace), _read_infos)


def delete_queue(fabric: FabricState, name: str) -> Steps[bool]:
    """Deletes a queue and all its messages; whether it was there."""
    return ask(Delete("queue", check_name(name), fabric.namespace), _read_bool)


def delete_topic(fabric: FabricState, name: str) -> Steps[bool]:
    """Deletes a topic and all its messages; whether it was there."""
    return ask(Delete("topic", check_name(name), fabric.namespace), _read_bool)


def delete_table(fabric: FabricState, name: str) -> Steps[bool]:
    """Deletes a table and all its entries; whether it was there."""
    return ask(Delete("table", check_name(name), fabric.namespace), _read_bool)


def stats(fabric: FabricState) -> Steps[dict[str, Any]]:
    """Figures of the node; of a cluster, those of all nodes joined, and `nodes` has each."""
    if fabric._routes is None:
        figures: dict[str, Any] = yield from ask(Stats(), _read_figures)
        return figures
    told = yield from ask_all(fabric._routes, Stats(), _read_figures)
    return {**join_figures(told.values()), "node": "cluster", "nodes": list(told.values())}


def new_session(fabric: FabricState, ttl: float) -> Steps[int]:
    """A session that ends when it was not kept alive for `ttl` seconds; its id. In a cluster it
    lives in a shard that is chosen by chance."""
    return open_session(ttl, ANY if fabric._routes is None else secrets.randbelow(fabric.shards))


def open_session(ttl: float, shard: int = ANY) -> Steps[int]:
    """As `new_session`, in a given shard."""
    return ask(SessionOpen(max(milliseconds("ttl", ttl), 1), shard), _read_int, shard)


def keep_session(session: int) -> Steps[bool]:
    """Keeps a session alive; False if it has ended."""
    return ask(SessionKeep(session), _read_bool, _home(session))


def close_session(session: int) -> Steps[bool]:
    """Ends a session now; whether it was still there."""
    return ask(SessionClose(session), _read_bool, _home(session))


def _home(session: int) -> int:
    home = home_of(session)
    return ANY if home is None else home
