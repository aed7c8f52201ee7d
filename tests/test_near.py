"""The way to a node of the same machine that does not go through TCP."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Iterator

import pytest

import penstock
from penstock import aio, near
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.near import connect_near, listen_near, near_name

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such names are Linux only")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("near") / "data") as started:
        yield started


def families(pid: int) -> set[str]:
    """What kinds of connections a process has; those that it listens at do not count."""
    inodes = {
        link.removeprefix("socket:[").removesuffix("]")
        for name in os.listdir(f"/proc/{pid}/fd")
        if (link := os.readlink(f"/proc/{pid}/fd/{name}")).startswith("socket:")
    }
    found = set()
    with open("/proc/net/tcp") as table:
        found |= {"tcp" for line in table if line.split()[3] == "01" and line.split()[9] in inodes}
    with open("/proc/net/unix") as table:
        found |= {
            "near" for line in table
            if "@penstock/" in line and line.split()[5] == "03" and line.split()[6] in inodes
        }  # fmt: skip
    return found


def address_of(node: NodeProcess) -> tuple[str, int]:
    host, port = node.url.removeprefix("penstock://").rsplit(":", 1)
    return host, int(port)


def test_both_clients_take_the_near_way(node: NodeProcess) -> None:
    with penstock.connect(node.url) as fabric:
        fabric.queue("q").push(b"blocking")
        assert families(node.pid) == {"near"}

        async def test() -> None:
            async with aio.connect(node.url) as twin:
                queue = await twin.queue("q")
                message = await queue.pop()
                assert message is not None
                assert message.value == b"blocking"
                await message.ack(wait=True)
                assert families(node.pid) == {"near"}

        asyncio.run(test())


@pytest.mark.parametrize("size", [1, 100_000, 5_000_000])
def test_whatever_its_size_a_message_comes_through(node: NodeProcess, size: int) -> None:
    value = os.urandom(size)
    with penstock.connect(node.url) as fabric:
        queue = fabric.queue(f"sizes-{size}")
        queue.push_many([value] * 3)
        popped = [queue.pop() for _ in range(3)]
        assert [message and message.value for message in popped] == [value] * 3


def test_who_does_not_want_it_goes_over_tcp(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NEAR", "off")
    with penstock.connect(node.url) as fabric:
        fabric.queue("q").push(b"x")
        assert "tcp" in families(node.pid)
        fabric.queue("q").purge()


def test_who_listens_for_another_user_is_not_trusted(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stranger's socket only the name is right: not a byte is said to it."""
    host, port = "127.0.0.1", unused_port()
    listener = listen_near(host, port)
    assert listener is not None
    with listener:
        monkeypatch.setattr(near, "_ROOT", -1)  # the tests may be run by root
        with connect_near(host, port) or pytest.fail("the own user's was refused"):
            pass
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert connect_near(host, port) is None
        with penstock.connect(node.url) as fabric:  # the node is a stranger's, too
            fabric.queue("q").push(b"x")
            assert "tcp" in families(node.pid)
            fabric.queue("q").purge()


def test_a_name_that_is_taken_costs_the_near_way_only() -> None:
    host, port = "127.0.0.1", unused_port()
    first = listen_near(host, port)
    assert first is not None
    with first:
        assert listen_near(host, port) is None
    again = listen_near(host, port)
    assert again is not None
    again.close()


def test_a_process_that_may_open_nothing_more_has_no_near_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is to connect says what is wrong then, as without it."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    assert connect_near("127.0.0.1", 7411) is None
    assert listen_near("127.0.0.1", 7411) is None


def test_only_ports_of_the_loopback_interface_have_one() -> None:
    assert near_name("127.0.0.1", 7411) == "\0penstock/127.0.0.1:7411"
    assert near_name("::1", 7411) == "\0penstock/::1:7411"
    for host in ("0.0.0.0", "10.0.0.1", "localhost", "example.org"):
        assert near_name(host, 7411) is None
    assert connect_near("127.0.0.1", unused_port()) is None


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
