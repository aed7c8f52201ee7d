"""One fabric, six ways: in the program, on one node, on a cluster of three; blocking and asyncio.

Scripts use the blocking names. For the asyncio shell, `Driven` stands before its objects: it calls
them on an event loop in a thread of its own, and waits.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.node.conftest import NodeProcess
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock import aio
from penstock.errors import NotFoundError

TIMEOUT_S = 20.0
WAYS = [(where, shell) for where in ("embedded", "node", "cluster") for shell in ("sync", "aio")]
_numbers = count(1)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a function returns there, awaited if it can be."""

        async def called() -> Any:
            found = act(*args, **kwargs)
            return await found if inspect.isawaitable(found) else found

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Driven:
    """An object of the asyncio shell, used as one of the blocking shell."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return self._shown(value)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = {key: _plain(each) for key, each in kwargs.items()}
            return self._shown(self._loop.call(value, *map(_plain, args), **plain))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_loop", "_inner"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    def _shown(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shown(each) for each in value]
        if isinstance(value, penstock.GangSeat):
            return value._replace(message=self._shown(value.message))
        kind = type(value)
        known = kind.__module__.startswith("penstock.client.aio") or (
            kind.__module__.startswith("penstock.tasks.") and kind.__name__.startswith("Async")
        )
        return Driven(self._loop, value) if known or inspect.isasyncgen(value) else value

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self._inner, "__anext__"):
            yield from map(self._shown, self._inner)
            return
        while (found := self._next()) is not None:
            yield found

    def __next__(self) -> Any:
        return self._next()

    def _next(self) -> Any:
        return self._shown(self._loop.call(anext, self._inner, None))

    def __enter__(self) -> Driven:
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.call(self._inner.__aexit__, *error)


def refuses(act: Callable[[], Any]) -> None:
    """NotFoundError, at once or, from a node that has not heard of it yet, in a moment."""

    def refused() -> bool:
        try:
            act()
        except NotFoundError:
            return True
        return False

    assert wait_for(refused, 5.0)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        plain = map(_plain, value)
        return type(value)._make(plain) if hasattr(value, "_make") else tuple(plain)
    return value._inner if isinstance(value, Driven) else value


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end()


@pytest.fixture(scope="package")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    yield process.start()
    process.end()


@pytest.fixture(scope="package")  # an idle cluster costs, too
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    nodes = Nodes(tmp_path_factory.mktemp("cluster"))
    try:
        nodes.start(1, 2, 3)
        wait_for(lambda: nodes.whole(1, 2, 3), 60.0)
        yield "penstock://" + ",".join(process.listen for process in nodes.processes.values())
    finally:
        nodes.end()


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there may be too new for a node to know: clients ask again only for so long."""
    monkeypatch.setattr("penstock.client.routing._OPENED_S", 0.3)


Connect = Callable[[str], Any]


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def connect(request: pytest.FixtureRequest, tmp_path: Path, loop: Loop) -> Iterator[Connect]:
    """Connects to a namespace; all that is connected is closed in the end."""
    where, shell = request.param
    module = penstock if shell == "sync" else aio
    url = {"node": "one_node", "cluster": "three_nodes"}.get(where)
    target = str(tmp_path) if url is None else request.getfixturevalue(url)
    reach: Any = module.open if url is None else module.connect
    opened: list[Any] = []

    def open_fabric(namespace: str) -> Any:
        if shell == "sync":
            opened.append(reach(target, timeout=TIMEOUT_S, namespace=namespace))
        else:
            made = loop.call(reach, target, timeout=TIMEOUT_S, namespace=namespace)
            opened.append(Driven(loop, made))
        return opened[-1]

    yield open_fabric
    for each in opened:
        each.close()


@pytest.fixture
def fabric(connect: Connect) -> Any:
    """A fabric in a namespace that no other test uses."""
    return connect(f"test-{next(_numbers)}")
