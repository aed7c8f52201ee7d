"""Members in processes of their own: they cannot hurt their worker, and they can be ended."""

from __future__ import annotations

import os
import signal

import pytest
from tests.node.test_cluster import wait_for
from tests.tasks.gangs import functions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_member_whose_process_dies_is_missed_at_once(crew, caller, tmp_path):
    crew.only(2, "process")
    task = caller.submit(functions.die_once, 2, str(tmp_path))
    assert caller.result(task) == [2, 2]


def test_a_function_that_never_ends_is_ended_with_its_gang(crew, caller, tmp_path):
    """The others are free again although the one goes on for ever."""
    crew.only(2, "process")
    task = caller.submit(functions.spin_and_fail, 2, str(tmp_path))
    assert "on purpose" in caller.failure(task)
    spinning = int((tmp_path / "spinning").read_text())
    assert wait_for(lambda: not _lives(spinning))
    rows = caller.result(caller.submit(functions.share, 2))
    assert [row[0] for row in rows] == [0, 1]


def test_a_process_ends_with_its_worker(crew, caller, tmp_path):
    crew.only(2, "process")
    task = caller.submit(functions.spin_and_fail, 2, str(tmp_path), False)
    assert wait_for(lambda: (tmp_path / "spinning").exists(), 60.0)
    spinning = int((tmp_path / "spinning").read_text())
    for pid in caller.members(task).values():
        crew.kill(pid)
    assert wait_for(lambda: not _lives(spinning))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True
