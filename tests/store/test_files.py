"""Liveness accounting, and the policy of the cleaner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.files import DataFile, Files, Limits, victims
from penstock.store.locations import (
    FILE_NUMBER_MAX,
    file_name,
    file_number,
    locate,
    numbers,
    split,
)

FILES = st.lists(
    st.tuples(st.sampled_from("js"), st.integers(0, 1000), st.integers(0, 1000), st.booleans()).map(
        lambda row: (row[0], max(row[1], row[2]), min(row[1], row[2]), row[3])
    ),
    max_size=30,
).map(
    lambda rows: [
        DataFile(number, kind, 0, used + 64, live, sealed)
        for number, (kind, used, live, sealed) in enumerate(rows, start=1)
    ]
)


def is_dead(file: DataFile) -> bool:
    return file.live == 0 or 2 * file.dead >= file.records


@given(FILES, st.integers(0, 9), st.integers(0, 2000))
def test_victims(files: list[DataFile], keep: int, idle: int) -> None:
    chosen = victims(files, Limits(keep_journal=keep, dead_bytes=idle))
    by_number = {file.number: file for file in files}
    assert len(set(chosen)) == len(chosen)
    assert all(by_number[number].sealed or by_number[number].kind == "s" for number in chosen)
    rest = [file for file in files if file.number not in chosen]
    sealed_journal = [file for file in rest if file.kind == "j" and file.sealed]
    assert len(sealed_journal) <= keep
    open_journal = sum(file.used for file in rest if file.kind == "j" and not file.sealed)
    live = sum(file.live for file in rest)
    assert sum(file.records for file in rest) <= 2 * live + open_journal + idle
    dead_first = [by_number[number] for number in chosen]
    dead = [file for file in files if is_dead(file) and (file.sealed or file.kind == "s")]
    if sum(file.dead for file in dead if file.live) <= idle:
        dead = [file for file in dead if not file.live]
    half_dead = dead_first[: len(dead)]
    assert {file.number for file in half_dead} == {file.number for file in dead}
    shares = [file.live / max(1, file.records) for file in half_dead]
    assert shares == sorted(shares)
    overdue = [file.number for file in dead_first[len(half_dead) :]]
    assert overdue == sorted(overdue)
    assert all(number < file.number for number in overdue for file in sealed_journal)


STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 500)), max_size=60)


@given(STEPS)
def test_live_bytes_follow_what_is_stored_and_freed(steps) -> None:
    files = Files()
    for _ in range(3):
        files.add(DataFile(files.allocate(), "s", 1))
    model = {1: 0, 2: 0, 3: 0}
    for is_stored, number, length in steps:
        location = locate(number, 640)
        if is_stored and number in model:
            files.stored(location, length)
            model[number] += length
        elif not is_stored:
            files.freed(location, length)
            if number in model:
                model[number] = max(0, model[number] - length)
    assert {file.number: file.live for file in files.all()} == model
    assert files.live_bytes == sum(model.values())
    files.drop(2)
    files.drop(2)
    assert files.live_bytes == model[1] + model[3]


def test_storing_in_an_unknown_file_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Files().stored(locate(5, 0), 1)


@given(FILES)
def test_the_table_survives_a_checkpoint(rows: list[DataFile]) -> None:
    files = Files(next_number=50)
    for row in rows:
        files.add(row)
        files.live_bytes += row.live
    again = Files.load(files.dump())
    assert again.all() == files.all()
    assert (again.used_bytes, again.live_bytes) == (files.used_bytes, files.live_bytes)
    assert again.allocate() == 50


def test_numbers_are_never_used_twice() -> None:
    files = Files()
    files.reserve(["j-0000001f", "s-00000002", "r-00000030", "LOCK", "j-zz", "c-000000ff.tmp"])
    assert files.allocate() == 0x31
    assert files.allocate() == 0x32
    files = Files(next_number=FILE_NUMBER_MAX)
    files.allocate()
    with pytest.raises(OverflowError):
        files.allocate()


def test_orphans_are_shard_segments_that_nobody_knows() -> None:
    files = Files()
    files.add(DataFile(3, "s", 1))
    assert files.orphans(["s-00000003", "s-00000004", "j-00000005"]) == ["s-00000004"]
    assert files.name_of(locate(3, 99)) == "s-00000003"


@given(st.integers(0, FILE_NUMBER_MAX), st.integers(0, 2**32 - 1))
def test_locations_and_names(number: int, offset: int) -> None:
    assert split(locate(number, offset)) == (number, offset)
    assert file_number(file_name("q", number)) == number


def test_foreign_names_are_skipped() -> None:
    assert numbers(["j-00000002", "j-00000001", "j-1", "j-0000000G", "j-0000000A", "x"], "j") == [
        1, 2,
    ]  # fmt: skip
