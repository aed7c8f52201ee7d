"""A real engine in memory behind a transport that can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.client.blocking import Fabric, fabric_over
from penstock.embedded import Inline, InlineTransport
from penstock.engine.recovery import open_engine
from penstock.errors import UnavailableError
from penstock.store.memory import MemoryDisk
from penstock.testing import FakeClock
from penstock.wire.buffers import Buffer
from penstock.wire.frames import FRAME

SEGMENT_BYTES = 1 << 20  # in memory every byte of a segment costs time when it is made
Fault = str | None  # None, "before" (nothing arrives) or "after" (only the answer is lost)


class Line:
    """Connects to one engine, and breaks connections as `faults` says: one item for each send."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.disk = MemoryDisk()
        self.inline = self._start()
        self.faults: list[Fault] = []
        self.dials = 0
        self.sent: list[tuple[int, int, int]] = []  # verb, flags, request

    def _start(self) -> Inline:
        engine = open_engine(
            self.disk, self.clock.now_us(), 7, shards=16, node="test", segment_bytes=SEGMENT_BYTES
        )
        return Inline(engine, self.disk, self.clock)

    def rewind(self, disk: MemoryDisk) -> None:
        """The node starts again with an older disk: what came after it is lost."""
        self.inline.close()
        self.disk = disk
        self.inline = self._start()
        self.faults[:] = ["before"]

    def dial(self, seconds: float) -> FaultyTransport:
        self.dials += 1
        return FaultyTransport(self)

    def fabric(self, timeout: float = 5.0) -> Fabric:
        return fabric_over(self.dial, timeout, "default", "test")

    def close(self) -> None:
        self.inline.close()


class FaultyTransport:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._inner = InlineTransport(line.inline)
        self._broken = False
        self._greeted = False

    def send(self, parts: Sequence[Buffer]) -> None:
        _, verb, flags, _, request = FRAME.unpack_from(parts[0])
        fault = self._line.faults.pop(0) if self._greeted and self._line.faults else None
        self._greeted = True
        if self._broken or fault == "before":
            self.close()
            raise UnavailableError("lost before it was sent")
        self._line.sent.append((verb, flags, request))
        self._inner.send(parts)
        if fault == "after":
            self.close()

    def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
        if self._broken:
            raise UnavailableError("lost")
        return self._inner.receive(timeout)

    def close(self) -> None:
        self._broken = True
        self._inner.close()
        with self._line.inline.changed:
            self._line.inline.changed.notify_all()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not wait between attempts to connect."""
    monkeypatch.setattr("penstock.client.dialer.pause_s", lambda strikes: 0.0)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture
def make_line() -> Iterator[Callable[[], Line]]:
    """For properties: a fresh engine for each example."""
    made: list[Line] = []

    def make() -> Line:
        while made:
            made.pop().close()
        made.append(Line())
        return made[0]

    yield make
    while made:
        made.pop().close()


@pytest.fixture
def fabric(line: Line) -> Iterator[Fabric]:
    with line.fabric() as connected:
        yield connected
