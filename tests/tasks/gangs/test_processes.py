"""Gangs on real processes: they all finish, whoever is killed, and nobody is in two at a time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from tests.node.test_cluster import wait_for
from tests.tasks.gangs import functions
from tests.tasks.gangs.crew import SESSION_S, Caller

SIZES = [2, 3, 4, 2, 3, 4, 2, 3, 4, 2]
Row = tuple[int, int, float, float]
pytestmark = pytest.mark.timeout(400)  # starting processes takes long on a busy machine


def submit_ten(caller: Caller, seconds: float) -> list[bytes]:
    return [
        caller.submit(functions.simulate, size, number, seconds)
        for number, size in enumerate(SIZES)
    ]


def check(caller: Caller, tasks: list[bytes]) -> None:
    """All have a result of every member, and no process was in two gangs at the same time."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for task, size in zip(tasks, SIZES, strict=True):
        rows: list[Row] = caller.result(task)
        assert [row[0] for row in rows] == list(range(size))
        assert len({row[1] for row in rows}) == size
        for _, pid, began, ended in rows:
            spans.setdefault(pid, []).append((began, ended))
    for pid, times in spans.items():
        for (_, ended), (began, _) in pairwise(sorted(times)):
            assert ended <= began, f"process {pid} was in two gangs"
    assert caller.gangs.stats()["messages"] == caller.gangs.stats()["dead"]


def wait_for_member(caller: Caller, tasks: list[bytes], manager: bool) -> tuple[bytes, int]:
    """A gang that runs, all members there, and the process of one of them."""
    found: list[tuple[bytes, int]] = []

    def running() -> bool:
        for task, size in zip(tasks, SIZES, strict=True):
            members = caller.members(task)
            if len(members) == size:
                found.append((task, members[0] if manager else members[size - 1]))
                return True
        return False

    assert wait_for(running, 60.0)
    return found[0]


def test_ten_gangs_on_six_workers_finish(crew, caller):
    crew.only(6)
    check(caller, submit_ten(caller, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("manager", [False, True], ids=["member", "manager"])
def test_ten_gangs_finish_though_one_is_killed(crew, caller, manager):
    """Who is killed is missed within two sessions, long before the lease ends."""
    crew.only(6)
    tasks = submit_ten(caller, 2.0)
    hit, killed = wait_for_member(caller, tasks, manager)
    crew.kill(killed)
    began = time.monotonic()
    assert wait_for(lambda: killed not in caller.members(hit).values(), 2 * SESSION_S + 5.0)
    print(f"missed after {time.monotonic() - began:.2f} s")
    check(caller, tasks)
    assert caller.outcome(hit).attempt >= 2
    assert killed not in {row[1] for row in caller.result(hit)}


@pytest.mark.slow
def test_a_gang_that_is_to_end_with_a_member_ends(crew, caller):
    crew.only(2)
    task = caller.submit(functions.simulate, 2, 1, 5.0, on_loss="end")
    assert wait_for(lambda: len(caller.members(task)) == 2, 30.0)
    crew.kill(caller.members(task)[1])
    assert caller.failure(task) == "penstock.tasks.gangs.MemberLost: member 1 is gone"


def test_members_tell_each_other(crew, caller):
    crew.only(3)
    rows: list[Any] = caller.result(caller.submit(functions.share, 3))
    pids = {str(pid) for pid in crew.processes}
    for rank, (own, size, manager, told, gathered) in enumerate(rows):
        assert (own, size, manager, gathered) == (rank, 3, rank == 0, [0, 10, 20])
        assert told["from"] == 0
        assert set(told["to"]) == pids
    rows = caller.result(caller.submit(functions.share_async, 2))
    assert rows == [[0, 0, [1, 1]], [1, 0, [1, 1]]]


def test_functions_that_raise_or_take_too_long(crew, caller):
    crew.only(3)
    before = caller.gangs.stats()["dead"]
    assert caller.result(caller.submit(functions.fail_twice, 2)) == [3, 3]
    failed = caller.submit(functions.fail, 2)
    assert caller.failure(failed) == "ValueError: on purpose"
    early = caller.submit(functions.leave_early, 2)
    assert "member 1 has returned" in caller.failure(early)
    slow = caller.submit(functions.slow, 2)
    assert "TaskTimeoutError: it took longer than 0.5 s" in caller.failure(slow)
    assert caller.gangs.stats()["dead"] == before + 3


def test_a_gang_leaves_nothing_but_its_last_word(crew, caller):
    crew.only(3)
    caller.result(caller.submit(functions.share, 3))

    def clean() -> bool:
        return all(key.endswith(b"/down/over") for key in caller.control.keys(b"gang/"))

    assert wait_for(clean)
