"""What is published: for each partition the clicks of a generator of its own, so that the sessions
of each, and what comes too late in it, are known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.sessions import Sessionizer, SessionRecord, text

TOPIC = "clicks"
GROUP = "sessions"
RESULTS = "sessions"
LATE = "late-clicks"
HANDLER = "penstock.cli.grouping.load:sessions"

LATE_MARK = b":late"
_SHAPE = Clicks(seed=0, timeout=1800.0, delay=600.0, without_end=0.2, duplicates=0.02, late=0.02)
_FRAGMENTS_OF_A_CHAIN = 16  # about: two sessions of eight
_MOST_CHAINS = 300
_STAGGER = 8  # partitions differ in the size of their blocks, so that not all make one at once
_PLAN = "load.json"


def sessions() -> Sessionizer:
    """The handler that fits what is published; late fragments go to the side."""
    return Sessionizer(
        end=is_end, timeout=_SHAPE.timeout, delay=_SHAPE.delay, late="side", fragment_id=bytes
    )


class Expected(NamedTuple):
    """A session of the answer. `due_us`: the event time at which it is over."""

    name: str
    value: bytes
    due_us: int


class Load(msgspec.Struct, frozen=True):
    """How much is published: about `rate` fragments a second for so many seconds."""

    seed: int
    partitions: int
    rate: int
    seconds: float

    def write(self, folder: Path) -> None:
        """For the processes that need it."""
        (folder / _PLAN).write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> Load:
        """What `write` wrote."""
        return msgspec.json.decode((folder / _PLAN).read_bytes(), type=cls)

    def _clicks(self, partition: int) -> Clicks:
        wanted = self.rate * self.seconds / self.partitions / _FRAGMENTS_OF_A_CHAIN
        chains = max(1, min(_MOST_CHAINS, round(wanted / 2)))
        chains = max(1, chains - chains * (partition % _STAGGER) // (2 * _STAGGER))
        blocks = max(2, round(wanted / chains))
        return replace(
            _SHAPE, seed=self.seed * self.partitions + partition, chains=chains, blocks=blocks
        )

    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, time) of a partition, in the order of publishing; no other has its keys."""
        for key, value, time_us in self._clicks(partition).fragments():
            yield _own_key(partition, key), value, time_us

    def answer(self, partition: int) -> Iterator[Expected]:
        """The sessions that must come out of a partition."""
        for record in self._clicks(partition).answer():
            own = msgspec.structs.replace(record, key=f"{partition}/{record.key}")
            silence_us = 0 if record.reason == "end" else round(_SHAPE.timeout * 1e6)
            yield Expected(session_name(own), msgspec.json.encode(own), own.end_us + silence_us)

    def late(self, partition: int) -> Iterator[str]:
        """The names of the fragments that come too late, in the order of publishing."""
        for key, value, _ in self.rows(partition):
            if value.endswith(LATE_MARK):
                yield late_name(key, value)


def _own_key(partition: int, key: bytes) -> bytes:
    return b"%d/%s" % (partition, key)


def session_name(record: SessionRecord) -> str:
    """What tells a session from all others."""
    return f"{record.key} {record.start_us}"


def late_name(key: bytes, value: bytes) -> str:
    """What tells a late fragment from all others."""
    return f"{text(key)} {text(value)}"
