"""Blocking TCP: frames of all sizes, time-outs, both ends busy, the end of a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.spin import Spin
from penstock.client.transport import SocketTransport, _unsent
from penstock.errors import ProtocolError, UnavailableError
from penstock.machine import may_spin
from penstock.wire.frames import VERB_AT, Verb, frame

LARGE = 5 << 20


class Peer:
    """The other end, as a plain socket."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.transport = SocketTransport("127.0.0.1", listener.getsockname()[1], 5)
            self.socket, _ = listener.accept()
        self.socket.settimeout(10)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return bytes(data)

    def close(self) -> None:
        self.socket.close()
        self.transport.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def receive(transport: SocketTransport, count: int, each_s: float = 5) -> list[bytes]:
    frames: list[bytearray] = []
    while len(frames) < count:
        frames += transport.receive(each_s)
    return [bytes(each) for each in frames]


def receive_until(transport: SocketTransport, size: int) -> list[bytes]:
    """All frames until one of that size."""
    frames: list[bytes] = []
    while not frames or len(frames[-1]) != size:
        frames += receive(transport, 1)
    return frames


def test_parts_arrive_as_one(peer):
    peer.transport.send([b"ab", bytearray(b"cd"), memoryview(b"ef")])
    assert peer.read(6) == b"abcdef"


def test_more_parts_than_one_call_takes(peer):
    peer.transport.send([b"%04d" % each for each in range(3000)])
    assert peer.read(12_000) == b"".join(b"%04d" % each for each in range(3000))


def test_what_the_kernel_does_not_take_at_once_is_sent_in_order(peer):
    sizes = [LARGE, 0, 3, LARGE + 1, 0, 1, 2 * LARGE, 7, 0]
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(peer.read(sum(sizes))))
    reader.start()
    peer.transport.send([parts[0], *(memoryview(part) for part in parts[1:])])
    reader.join()
    assert received == [b"".join(parts)]


@given(st.lists(st.binary(max_size=4), max_size=6), st.integers(0, 24))
def test_what_is_left_of_parts_is_the_end_of_them(parts: list[bytes], sent: int) -> None:
    whole = b"".join(parts)
    sent = min(sent, len(whole))
    left = _unsent(parts, sent)
    assert b"".join(left) == whole[sent:]
    assert all(left)  # no empty ones: an end is an end


def test_frames_are_cut_out_of_the_stream(peer):
    frames = [frame(Verb.CALL, each, 0, bytes(each * 10)) for each in range(200)]
    stream = b"".join(frames)
    for at in range(0, len(stream), 777):
        peer.socket.sendall(stream[at : at + 777])
    assert receive(peer.transport, 200) == frames


def test_a_large_frame_among_small_ones(peer):
    frames = [frame(Verb.CALL, 1), frame(Verb.POP, 2, 0, b"x" * LARGE), frame(Verb.CALL, 3)]
    sender = threading.Thread(target=peer.socket.sendall, args=(b"".join(frames),))
    sender.start()
    assert receive(peer.transport, 3) == frames
    sender.join()


def test_both_ends_may_send_much_before_they_read(peer):
    sent = frame(Verb.POP, 1, 0, b"x" * LARGE)

    def stubborn() -> None:
        for _ in range(4):
            peer.socket.sendall(sent)  # reads nothing before all of it is gone
        peer.read(4 * LARGE)

    other = threading.Thread(target=stubborn)
    other.start()
    for _ in range(4):
        peer.transport.send([bytes(LARGE)])
    assert receive(peer.transport, 4) == [sent] * 4
    other.join()


def test_a_wait_ends_in_time(peer):
    for seconds in (0.0, 0.0005, 0.03, 0.03):
        began = time.monotonic()
        assert peer.transport.receive(seconds) == []
        assert time.monotonic() - began < seconds + 0.5


def test_a_closed_connection_is_reported(peer):
    peer.socket.close()
    with pytest.raises(UnavailableError):
        receive(peer.transport, 1)
    with pytest.raises(UnavailableError):
        peer.transport.send([bytes(50 << 20)])


def test_closing_wakes_who_waits(peer):
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            peer.transport.receive(10)
        except UnavailableError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not peer.transport._receiving.locked():
        time.sleep(0)
    peer.transport.close()
    waiting.join(5)
    assert len(ended) == 1


SHORT_S = 0.0005


def test_a_short_wait_waits(peer):
    """Shorter than a socket can be told: with an answer at once, one would ask again and again."""
    began = time.monotonic()
    assert peer.transport.receive(SHORT_S) == []
    assert time.monotonic() - began >= SHORT_S


def test_a_short_wait_receives(peer):
    peer.socket.sendall(frame(Verb.CALL, 1))
    assert receive(peer.transport, 1, SHORT_S) == [frame(Verb.CALL, 1)]


def test_a_short_wait_knows_the_end(peer):
    peer.socket.close()
    with pytest.raises(UnavailableError):
        receive(peer.transport, 1, SHORT_S)


def test_a_short_wait_on_what_is_closed(peer):
    peer.transport.close()
    with pytest.raises(UnavailableError):
        peer.transport.receive(SHORT_S)


def test_no_time_to_wait(peer):
    assert peer.transport.receive(0) == []


COMING = frame(Verb.COMING, 0)
spinning = pytest.mark.skipif(not may_spin(), reason="nothing is looked for here")


@spinning
def test_what_is_announced_is_received_with_it(peer):
    def deliver() -> None:
        announced.wait(10)
        peer.socket.sendall(frame(Verb.DELIVER, 1))

    announced = threading.Event()
    looked_for = Spin.wait_announced

    def seen(spin: Spin, attempt: Callable[[], int]) -> int:
        announced.set()
        deliverer.join(10)
        return looked_for(spin, attempt)

    deliverer = threading.Thread(target=deliver)
    deliverer.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Spin, "wait_announced", seen)
        peer.socket.sendall(COMING)
        assert receive(peer.transport, 1) == [frame(Verb.DELIVER, 1)]


def test_what_is_announced_may_not_come(peer):
    peer.socket.sendall(COMING)
    frames = peer.transport.receive(5)
    assert [bytes(each) for each in frames] in ([], [COMING])
    peer.socket.sendall(frame(Verb.CALL, 2))
    assert receive(peer.transport, 1) == [frame(Verb.CALL, 2)]


def test_what_is_announced_may_be_the_end(peer):
    peer.socket.sendall(COMING)
    peer.socket.close()
    with pytest.raises(UnavailableError):
        receive(peer.transport, 2)


@pytest.mark.parametrize("size", [17, 40_000, 200_000, LARGE])
def test_what_is_announced_may_have_begun(peer, size):
    """What a large frame holds is never taken for frames, whatever came before it."""
    forged = frame(Verb.DELIVER, 9, 0, b"x" * 284)
    large = frame(Verb.DELIVER, 1, 0, (forged * (size // len(forged) + 1))[:size])
    sender = threading.Thread(target=peer.socket.sendall, args=(COMING + large,))
    sender.start()
    frames = [each for each in receive_until(peer.transport, len(large)) if each != COMING]
    sender.join()
    assert frames == [large]


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 150_000)), max_size=8),
    st.lists(st.integers(0, 600_000), max_size=6),
)
def test_frames_are_whole_wherever_they_are_cut_and_whatever_is_announced(sizes, cuts):
    frames = [
        COMING if size is None else frame(Verb.DELIVER, at, 0, COMING * (size // len(COMING)))
        for at, size in enumerate(sizes)
    ]
    stream, received = b"".join(frames), []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    with contextlib.closing(Peer()) as peer:
        for first, last in pairwise(edges):
            sender = threading.Thread(target=peer.socket.sendall, args=(stream[first:last],))
            sender.start()
            received += peer.transport.receive(0)  # some of it, perhaps before the rest
            while sender.is_alive():
                received += peer.transport.receive(0.01)
            sender.join()
        peer.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(UnavailableError):  # the end
            while True:
                received += peer.transport.receive(5)
    wanted = [each for each in frames if each != COMING]
    assert [bytes(each) for each in received if each[VERB_AT] != Verb.COMING] == wanted


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        SocketTransport("127.0.0.1", port, 1)


def test_what_is_no_frame_is_refused(peer):
    peer.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ProtocolError, match="a frame of"):
        peer.transport.receive(5)
