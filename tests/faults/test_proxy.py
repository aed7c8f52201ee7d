"""The proxy of `make soak`: what it carries, cuts, holds and delays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock.cli.benchmarks.processes import Child


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(connection: socket.socket) -> None:
            with connection, suppress(ConnectionResetError):
                while data := connection.recv(4096):
                    connection.sendall(data)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield "{}:{}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: str, tmp_path: Path) -> Iterator[Child]:
    with Child("penstock.cli.soaking.proxy", echo, log=tmp_path / "log") as child:
        yield child


def order(proxy: Child, text: str) -> None:
    proxy.say(text)
    assert proxy.answer() == "done"


def dial(proxy: Child) -> socket.socket:
    host, _, port = proxy.line.partition(":")
    return socket.create_connection((host, int(port)), 5.0)


def echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def test_it_carries(proxy: Child) -> None:
    with closing(dial(proxy)) as connection:
        assert echoed(connection, b"one") == b"one"
        assert echoed(connection, b"two") == b"two"


def test_a_cut_resets_what_is_there_and_what_comes(proxy: Child) -> None:
    with closing(dial(proxy)) as before:
        assert echoed(before, b"one") == b"one"
        order(proxy, "cut")
        with pytest.raises(ConnectionResetError):
            before.recv(1)
    with pytest.raises(ConnectionResetError), closing(dial(proxy)) as during:
        during.recv(1)
    order(proxy, "carry")
    with closing(dial(proxy)) as after:
        assert echoed(after, b"two") == b"two"


def test_what_is_held_comes_later(proxy: Child) -> None:
    with closing(dial(proxy)) as connection:
        order(proxy, "hold")
        connection.sendall(b"one")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        order(proxy, "carry")
        connection.settimeout(5.0)
        assert connection.recv(100) == b"one"


def test_delays_are_felt_both_ways(proxy: Child) -> None:
    with closing(dial(proxy)) as connection:
        assert echoed(connection, b"one") == b"one"
        order(proxy, "delay 0.1")
        started = time.monotonic()
        assert echoed(connection, b"two") == b"two"
        assert time.monotonic() - started >= 0.2
