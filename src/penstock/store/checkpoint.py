"""Checkpoints: a whole picture of the state at a position of the journal.

A file holds the sections' bytes one after the other, then an index (key, offset, length and
checksum of each section), then a footer of 64 bytes that verifies the index. A checkpoint without
a valid footer and index is not whole and is passed over; a damaged section is known by its key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import xxhash

from penstock.store.disk import Disk, DiskError
from penstock.store.locations import CHECKPOINT, file_name, numbers
from penstock.wire.buffers import Buffer

FOOTER_BYTES = 64
MAX_KEY_BYTES = 0xFFFF
_MAGIC = b"PSC1"
_BLOCK_BYTES = 1 << 20
_UNFINISHED = "t"

_FOOTER = struct.Struct("<4sIIIQQQQ8x")
_CHECKSUM = struct.Struct("<Q")
_INDEX_ROW = struct.Struct("<QQQHxxxxxx")

_digest = xxhash.xxh3_64_intdigest


class Checkpoint(NamedTuple):
    """A checkpoint that was read. `damaged` are the keys of sections that do not verify."""

    number: int
    position: int
    synced: int
    sections: dict[str, bytes]
    damaged: list[str]


class _Section(NamedTuple):
    key: str
    offset: int
    length: int
    checksum: int


class CheckpointWriter:
    """Writes one checkpoint; `number` must be higher than that of any other.

    Nothing of it counts before `commit` returns. After a DiskError it is given up: write another.
    At most one block of small sections is held in memory.
    """

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk = disk
        self.number = number
        self._name = file_name(_UNFINISHED, number)
        self._sections: list[_Section] = []
        self._keys: set[str] = set()
        self._block: list[Buffer] = []
        self._block_bytes = 0
        self._offset = 0
        with suppress(DiskError):  # remains of a writer that was given up, if any
            disk.delete(self._name)
        disk.create(self._name)

    def add(self, key: str, data: bytes) -> None:
        """Add a section; ValueError if the key is there already or too long."""
        if key in self._keys or len(key.encode()) > MAX_KEY_BYTES:
            raise ValueError(f"section {key[:80]!r} is there already, or its key is too long")
        self._keys.add(key)
        self._sections.append(_Section(key, self._offset, len(data), _digest(data)))
        self._write(data)

    def commit(self, position: int, synced: int) -> None:
        """Make the checkpoint durable: the journal is replayed from `position`.

        `synced` is how far the journal is known to be synced; `position` must not be above it, or a
        power loss could take records that the checkpoint builds on.
        """
        if position > synced:
            raise ValueError("a checkpoint above the synced part of the journal")
        index = b"".join(map(_pack_section, self._sections))
        self._write(index)
        footer = _FOOTER.pack(
            _MAGIC, self.number, len(self._sections), len(index), position, synced,
            self._offset - len(index), _digest(index),
        )  # fmt: skip
        self._write(footer + _CHECKSUM.pack(_digest(footer)))
        self._write_block()
        self._disk.sync(self._name)
        self._disk.rename(self._name, file_name(CHECKPOINT, self.number))
        self._disk.sync_names()

    def _write(self, data: bytes) -> None:
        self._block.append(data)
        self._block_bytes += len(data)
        self._offset += len(data)
        if self._block_bytes >= _BLOCK_BYTES:
            self._write_block()

    def _write_block(self) -> None:
        self._disk.write(self._name, self._offset - self._block_bytes, self._block)
        self._block = []
        self._block_bytes = 0


def next_checkpoint(disk: Disk) -> CheckpointWriter:
    """Begins one after all that are there."""
    return CheckpointWriter(disk, max(numbers(disk.names(), CHECKPOINT), default=0) + 1)


def read_checkpoint(disk: Disk) -> Checkpoint | None:
    """The newest whole checkpoint, or None; a damaged section is left out and named."""
    for number in reversed(numbers(disk.names(), CHECKPOINT)):
        checkpoint = _read(disk, number)
        if checkpoint is not None:
            return checkpoint
    return None


def drop_older(disk: Disk, number: int) -> None:
    """Delete every checkpoint before `number`, and what unfinished writers left behind."""
    names = disk.names()
    for kind in (CHECKPOINT, _UNFINISHED):
        for older in numbers(names, kind):
            if older < number:
                disk.delete(file_name(kind, older))
    disk.sync_names()


def _read(disk: Disk, number: int) -> Checkpoint | None:
    name = file_name(CHECKPOINT, number)
    end = disk.size(name) - FOOTER_BYTES
    if end < 0:
        return None
    data = disk.read(name, end, FOOTER_BYTES)
    footer, checksum = data[: _FOOTER.size], data[_FOOTER.size :]
    if _CHECKSUM.pack(_digest(footer)) != checksum:
        return None
    magic, owner, count, index_bytes, position, synced, at, index_checksum = _FOOTER.unpack(footer)
    if magic != _MAGIC or owner != number:
        return None
    index = disk.read(name, at, index_bytes)
    if _digest(index) != index_checksum:
        return None
    checkpoint = Checkpoint(number, position, synced, {}, [])
    for section in _unpack_sections(index, count):
        content = disk.read(name, section.offset, section.length)
        if len(content) == section.length and _digest(content) == section.checksum:
            checkpoint.sections[section.key] = content
        else:
            checkpoint.damaged.append(section.key)
    return checkpoint


def _pack_section(section: _Section) -> bytes:
    key = section.key.encode()
    row = _INDEX_ROW.pack(section.offset, section.length, section.checksum, len(key))
    return row + key


def _unpack_sections(index: bytes, count: int) -> Iterator[_Section]:
    at = 0
    for _ in range(count):
        offset, length, checksum, key_bytes = _INDEX_ROW.unpack_from(index, at)
        at += _INDEX_ROW.size
        yield _Section(index[at : at + key_bytes].decode(), offset, length, checksum)
        at += key_bytes
