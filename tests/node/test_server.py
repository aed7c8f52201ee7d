"""A real node: strangers, slow readers, kills. None of them may harm it or lose anything."""

from __future__ import annotations

import random
import resource
import signal
import socket
import struct
import threading
from contextlib import closing

import pytest
from tests.node.conftest import NodeProcess

from penstock.errors import DeadlineError, InUseError, ProtocolError
from penstock.node.files import FileDisk
from penstock.wire.frames import (
    FETCH,
    FRAME,
    POP,
    PUSH,
    Flag,
    Verb,
    frame,
    read_error,
)
from penstock.wire.messages import Hello, Stats, pack

HELLO = frame(Verb.HELLO, 1, 0, pack(Hello(1)))


def talk(node: NodeProcess, data: bytes) -> bytes:
    """Sends bytes as a stranger would; everything that comes back until the node closes."""
    with closing(socket.create_connection(node.address, 10)) as connection:
        connection.settimeout(10)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def still_works(node: NodeProcess) -> None:
    with node.connect() as fabric:
        queue = fabric.queue("health")
        queue.push(b"fine")
        message = queue.pop(timeout=5)
        assert message is not None
        assert message.value == b"fine"
        message.ack(wait=True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 64,
        struct.pack("<I", 0xFFFFFFFF) + b"x" * 100,
        frame(Verb.PUSH, 1, 0, b"no hello"),
        frame(Verb.HELLO, 1, 0, b"\xc1"),
        frame(Verb.HELLO, 1, 0, pack(Hello(99))),
        HELLO + frame(200, 2, 0, b""),
        HELLO + frame(Verb.CALL, 2, 0, b"\x93junk"),
        HELLO + frame(Verb.CALL, 2, 0, b"\x91" * 5000),
        HELLO + frame(Verb.PUSH, 2, 0, PUSH.pack(1, 0, 0, 0, 0) + b"PSB1" + b"\xff" * 200),
        HELLO + frame(Verb.POP, 2, 0, b"short"),
        HELLO + frame(Verb.SETTLE, 2, 0, struct.pack("<II", 1, 1 << 31)),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_bytes_get_an_error_and_a_closed_connection(
    node: NodeProcess, data: bytes
) -> None:
    answer = talk(node, data)
    last = b""
    while answer:
        length = struct.unpack_from("<I", answer)[0]
        last, answer = answer[:length], answer[length:]
    _, _, flags, _, _ = FRAME.unpack_from(last)
    assert flags == Flag.RESPONSE | Flag.ERROR
    assert isinstance(read_error(last[16:]), ProtocolError)
    still_works(node)


def test_random_bytes_never_harm_the_node(node: NodeProcess) -> None:
    chance = random.Random(7)
    for _ in range(60):
        body = chance.randbytes(chance.randrange(0, 300))
        talk(node, HELLO + frame(chance.randrange(12), 2, chance.randrange(8), body))
    still_works(node)


def test_a_client_that_vanishes_in_the_middle_of_a_frame(node: NodeProcess) -> None:
    with closing(socket.create_connection(node.address, 10)) as connection:
        connection.sendall(HELLO + struct.pack("<IBBHQ", 1 << 20, Verb.PUSH, 0, 0, 2) + b"part")
    still_works(node)


def test_frames_of_all_sizes_take_turns(node: NodeProcess) -> None:
    """Of large ones only the beginning is received where the small ones are."""
    sizes = [3 << 20, 10, 5 << 20, 1 << 20, (1 << 20) + 1, 70_000, 3 << 20, 1, 2 << 20, 100_000]
    values = [bytes([at]) * size for at, size in enumerate(sizes)] * 2
    with node.connect() as fabric:
        queue = fabric.queue("sizes", ordered=True)
        for value in values:
            queue.push(value)
        queue.push_many(values, batch=1)
        for value in 2 * values:
            message = queue.pop(timeout=10)
            assert message is not None
            assert message.value == value
            message.ack(wait=True)


def test_a_slow_reader_does_not_hold_up_others(node: NodeProcess) -> None:
    with node.connect() as fabric:
        queue = fabric.queue("big", durability="written")
        queue.push_many([b"x" * 100_000] * 200, batch=20)
        with closing(socket.create_connection(node.address, 10)) as slow:
            stream = queue.info.id
            body = POP.pack(stream, 1000, 1 << 23, 0, 60_000, 0)
            asks = [frame(Verb.POP, number, 0, body) for number in range(2, 200)]
            slow.sendall(HELLO + b"".join(asks))  # and never reads
            still_works(node)


def test_two_processes_cannot_share_a_directory(node: NodeProcess) -> None:
    with pytest.raises(InUseError):
        FileDisk(node.data)


def test_a_clean_stop_and_a_restart(node: NodeProcess) -> None:
    with node.connect() as fabric:
        fabric.queue("q").push_many([b"a", b"b"])
    assert node.end(signal.SIGTERM) == 0
    node.start()
    with node.connect() as fabric:
        assert sorted(m.value for m in fabric.queue("q").pop_many(5)) == [b"a", b"b"]


def test_pushes_survive_kills_and_are_stored_once(node: NodeProcess) -> None:
    """A producer that goes on while the node is killed and restarted, again and again."""
    total = 3000
    stored: list[int] = []

    def produce() -> None:
        with node.connect(timeout=60) as fabric:
            queue = fabric.queue("q")
            for number in range(total):
                queue.push(b"%d" % number)
                stored.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    for kill in range(1, 4):
        while len(stored) < kill * total // 4 and producer.is_alive():
            producer.join(0.005)
        node.end(signal.SIGKILL)
        node.start()
    producer.join(60)
    assert len(stored) == total
    with node.connect() as fabric:
        found: list[int] = []
        queue = fabric.queue("q")
        while messages := queue.pop_many(1000, timeout=0.2):
            found += [int(message.value) for message in messages]
        assert sorted(found) == list(range(total))


def test_a_call_has_a_deadline(node: NodeProcess) -> None:
    with node.connect(timeout=1.0) as fabric:
        queue = fabric.queue("q")
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineError):
                queue.push(b"x")
        finally:
            node.process.send_signal(signal.SIGCONT)


def test_many_cancelled_pops_do_not_use_up_a_connection(node: NodeProcess) -> None:
    with node.connect() as fabric:
        stream = fabric.queue("empty").info.id
    pop = POP.pack(stream, 1, 0, 60_000, 0, 0)
    asks = b"".join(
        frame(Verb.POP, number, 0, pop) + frame(Verb.CANCEL, number) for number in range(2, 3000)
    )
    with closing(socket.create_connection(node.address, 10)) as connection:
        connection.settimeout(10)
        connection.sendall(HELLO + asks + frame(Verb.CALL, 5000, 0, pack(Stats())))
        data, request = b"", 0
        while request != 5000:
            data += connection.recv(65536)
            while len(data) >= 16 and len(data) >= FRAME.unpack_from(data)[0]:
                length, _, _, _, request = FRAME.unpack_from(data)
                data = data[length:]


def test_what_arrives_together_is_bounded_like_what_does_not(node: NodeProcess) -> None:
    """Thousands of fetches fit into one read; each of these is answered with 8 MiB."""
    with node.connect() as fabric:
        topic = fabric.topic("t", partitions=1, durability="written")
        topic.publish_many([b"x" * 100_000] * 300, batch=10)  # more than is kept in memory
        fetch = FETCH.pack(topic.info.id, 0, 0, 8 << 20, 0)
        asks = b"".join(frame(Verb.FETCH, number, 0, fetch) for number in range(2, 62))
        assert node.process is not None
        before = resident_bytes(node.process.pid)
        with closing(socket.create_connection(node.address, 10)) as slow:
            slow.sendall(HELLO + asks)  # and never reads
            still_works(node)
            assert resident_bytes(node.process.pid) - before < 150 << 20
    still_works(node)


def resident_bytes(process: int) -> int:
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
