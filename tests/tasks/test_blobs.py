"""Large values: how they are cut, joined, kept as files, and refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.pieces import Memory

from penstock.errors import InvalidError, PenstockError, TooLargeError
from penstock.tasks.blobs import blob as blobs
from penstock.tasks.blobs.blob import (
    MAX_FILE_BYTES,
    MAX_TABLE_BYTES,
    PIECE_BYTES,
    Blob,
    Joining,
    cut,
    new_blob,
)
from penstock.tasks.blobs.carrier import MOST_ASKED, Carrier, Piece
from penstock.tasks.blobs.files import Directory
from penstock.tasks.errors import TaskError

TASK = bytes(range(16))
FAR_S = 4_000_000_000


@given(st.integers(1, 100), st.integers(1, 17), st.randoms())
def test_pieces_in_any_order_are_the_whole(size: int, piece: int, chance) -> None:
    value = bytes(range(size))
    blob = Blob(TASK + bytes(8), size, piece, FAR_S)
    pieces = list(cut(blob, value))
    assert [key for key, _ in pieces] == blob.keys
    assert all(len(each) <= piece for _, each in pieces)
    chance.shuffle(pieces)
    joining = Joining(blob)
    for number, (key, each) in enumerate(pieces):
        assert joining.whole is None, f"{number} of {len(pieces)}"
        joining.add(key, None)
        joining.add(key, each + b"!")
        joining.add(key, each)
    assert joining.whole is not None
    assert bytes(joining.whole) == value
    assert joining.whole.readonly


def test_no_two_attempts_share_a_name() -> None:
    names = {new_blob(TASK, 9, FAR_S, False, "x").name for _ in range(100)}
    assert len(names) == 100
    assert {name[:16] for name in names} == {TASK}


def test_the_table_takes_some_and_files_take_more() -> None:
    assert new_blob(TASK, MAX_TABLE_BYTES, FAR_S, False, "x").piece == PIECE_BYTES
    with pytest.raises(TooLargeError, match="the limit is 67,108,864") as caught:
        new_blob(TASK, MAX_TABLE_BYTES + 1, FAR_S, False, "the result")
    assert "directory" in caught.value.hint
    assert new_blob(TASK, MAX_TABLE_BYTES + 1, FAR_S, True, "x").piece == 0
    assert new_blob(TASK, 9, FAR_S, True, "x").piece, "small ones are nobody's file"
    with pytest.raises(TooLargeError, match="2,147,483,648"):
        new_blob(TASK, MAX_FILE_BYTES + 1, FAR_S, True, "x")


@pytest.mark.parametrize(
    ("name", "size", "piece"),
    [
        (TASK, 9, PIECE_BYTES),
        (TASK + bytes(8), 0, PIECE_BYTES),
        (TASK + bytes(8), 9, 1),
        (TASK + bytes(8), 9, 1 << 40),
        (TASK + bytes(8), MAX_TABLE_BYTES + 1, PIECE_BYTES),
        (TASK + bytes(8), MAX_FILE_BYTES + 1, 0),
    ],
)
def test_references_of_strangers_are_looked_at(name: bytes, size: int, piece: int) -> None:
    with pytest.raises(TooLargeError):
        Blob(name, size, piece, FAR_S).checked()


def test_a_carrier_asks_for_few_pieces_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PIECE_BYTES", 10)
    memory = Memory()
    carrier = Carrier(memory.ask, memory.answer)
    value = bytes(range(256))
    blob = carrier.write(TASK, value, 60.0, once=True)
    assert (len(memory.kept), memory.most, blob.once) == (26, MOST_ASKED, True)
    assert time.time() + 59 < blob.expires_s < time.time() + 63
    assert carrier.read(blob) == value
    del memory.kept[blob.keys[7]]
    with pytest.raises(TaskError, match="is not kept any more"):
        carrier.read(blob)


def test_an_error_of_others_is_raised_here() -> None:
    carrier = Carrier(lambda _: None, lambda: Piece(b"", None, 40, "no room"))
    with pytest.raises(PenstockError, match="no room"):
        carrier.read(Blob(TASK + bytes(8), 9, PIECE_BYTES, FAR_S))


def test_files_are_whole_until_they_expire(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    mine = Blob(TASK + bytes(8), 5, 0, 1000)
    other = Blob(TASK + bytes([1] * 8), 5, 0, 2000)
    for each in (mine, other):
        directory.write(each, b"value")
    (tmp_path / "notes.txt").write_text("of somebody else")
    view = directory.read(mine)
    assert view is not None
    assert bytes(view) == b"value"
    assert directory.sweep(1500.0) == 1
    assert bytes(view) == b"value", "who reads it reads on"
    assert directory.read(mine) is None
    assert directory.read(other) is not None
    directory.remove(other)
    directory.remove(other)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    with pytest.raises(TypeError):
        directory.write(Blob(TASK + bytes(8), 5, 0, 1000), 7)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidError, match="no directory"):
        Directory(tmp_path / "nowhere")


def test_a_file_without_a_directory_says_what_to_do() -> None:
    carrier = Carrier(lambda _: None, lambda: Piece(b""))
    with pytest.raises(TaskError, match="is in the file") as caught:
        carrier.read(Blob(TASK + bytes(8), 5, 0, 1000))
    assert "directory" in caught.value.hint
