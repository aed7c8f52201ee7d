"""A station says that it rests only when nothing is under way any more: whatever it pushes after
that would be missing from the queue that its consumers were told is empty."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from tests.node.test_cluster import wait_for

from penstock.cli.benchmarks.processes import Child, NodeProcess
from penstock.cli.faulting import ledgers
from penstock.cli.faulting.ledgers import ACCEPTED


def test_a_station_rests_when_its_last_push_has_an_answer(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    pushed = history / "producer-1.pushed"
    with (
        NodeProcess(tmp_path / "node") as node,
        Child(
            "penstock.cli.faulting.station", node.url, str(history), "produce", "1",
            log=tmp_path / "station.log",
        ) as station,
    ):  # fmt: skip
        wait_for(lambda: pushed.exists() and ledgers.row_count(pushed) > 2)
        node.send(signal.SIGSTOP)
        try:
            with pytest.raises(RuntimeError, match="said nothing"):
                station.answer(0.5)  # it is idle for less: a push has begun
            station.say("rest")
            with pytest.raises(RuntimeError, match="said nothing"):
                station.answer(0.5)
        finally:
            node.send(signal.SIGCONT)
        assert station.answer() == "resting"
        rows = np.concatenate(list(ledgers.chunks(pushed)))
        assert set(rows["verdict"]) == {ACCEPTED}
