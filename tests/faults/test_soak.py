"""A short `make soak`: one node is killed ten times, and much else is done to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.leftovers import processes_in

KILLS = 10
SECONDS = 200


def test_nothing_that_a_machine_does_breaks_a_promise(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.soak", "--kills", str(KILLS), "--minutes", "0.1",
         "--json", "--keep", str(kept)],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["trouble"] == [], found["seed"]
    assert found["correct"] is True, done.stdout
    assert found["kills"] >= KILLS
    assert len(found["start_seconds"]) > KILLS // 4  # some kills are before it is ready
    assert found["queue"]["acknowledged"] > 500
    assert found["topic"]["acknowledged"] > 50
    assert found["table"]["counted"] > 10
    assert found["damage"]["rounds"] == KILLS // 5
    assert found["endurance"]["consumed"] > 10_000
    assert processes_in(kept) == []
