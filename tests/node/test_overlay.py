"""The overlay looks like a disk that everything happens to, and the real files stay as they are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.node.overlay import BLOCK_BYTES, OverlayDisk
from penstock.store.disk import DiskError
from penstock.store.memory import MemoryDisk

NAMES = ("a", "b", "c")
SIZES = st.sampled_from([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 7, 3 * BLOCK_BYTES])
NAME = st.sampled_from(NAMES)
OPERATION = st.one_of(
    st.tuples(st.just("write"), NAME, SIZES, st.integers(0, 2 * BLOCK_BYTES)),
    st.tuples(st.just("create"), NAME, SIZES, st.sampled_from([None, *NAMES])),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("rename"), NAME, NAME),
)


def apply(disk: OverlayDisk | MemoryDisk, operation: tuple) -> str | None:
    """Does it; the name of the error if it fails."""
    verb, name, *rest = operation
    try:
        if verb == "write":
            disk.write(name, rest[0], [b"w" * rest[1], b"!"])
        elif verb == "create":
            disk.create(name, rest[0], None if rest[1] == name else rest[1])
        elif verb == "delete":
            disk.delete(name)
        elif name != rest[0]:
            disk.rename(name, rest[0])
    except DiskError as error:
        return type(error).__name__
    return None


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, st.lists(OPERATION, max_size=12), SIZES, SIZES)
def test_it_is_a_disk_that_leaves_the_real_one_alone(first, second, operations, offset, length):
    with tempfile.TemporaryDirectory() as folder:
        model = MemoryDisk()
        for name, size in (("a", first), ("b", second)):
            data = bytes(index % 251 for index in range(size))
            Path(folder, name).write_bytes(data)
            model.files[name] = bytearray(data)
        before = {name: bytes(data) for name, data in model.files.items()}
        overlay = OverlayDisk(folder)
        for operation in operations:
            assert apply(overlay, operation) == apply(model, operation)
        assert sorted(overlay.names()) == sorted(model.names())
        for name in model.names():
            assert overlay.size(name) == model.size(name)
            assert overlay.read(name, 0, 1 << 30) == model.read(name, 0, 1 << 30)
            assert overlay.read(name, offset, length) == model.read(name, offset, length)
        assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(DiskError, match="cannot list"):
        OverlayDisk(tmp_path / "none")
    (tmp_path / "a").write_bytes(b"x")
    overlay = OverlayDisk(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(DiskError, match="cannot read a"):
        overlay.read("a", 0, 1)
    with pytest.raises(DiskError, match="no file b"):
        overlay.sync("b")
