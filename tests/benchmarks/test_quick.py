"""The whole harness with real processes, Penstock alone, and as little as it can do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_of_penstock_alone_makes_a_report(tmp_path: Path) -> None:
    results = tmp_path / "results"
    argv = [sys.executable, "-m", "benchmarks", "--quick", "--no-install"]
    argv += ["--systems", "penstock,pipe,pipe-fresh,disk,nsq", "--workloads", "50B,256KiB,mixed"]
    argv += ["--results", str(results), "--data", str(tmp_path / "data")]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stderr
    assert "| penstock |" in run.stdout
    assert "nsq was skipped" in run.stdout
    found = json.loads((results / "peers.json").read_text())
    assert found["systems"]["penstock"]["failures"] == []
    figures = found["systems"]["penstock"]["figures"]
    assert figures["push 50 B"]["median"] > 0
    assert figures["pop 50 B"]["median"] > 0
    assert figures["push 256 KiB"]["median"] > 0
    assert set(found["systems"]["disk"]["figures"]) == {"push 50 B", "push 256 KiB"}
    for floor in ("pipe", "pipe-fresh"):
        assert set(found["systems"][floor]["figures"]) == {
            "push 50 B", "pop 50 B", "push 256 KiB", "pop 256 KiB"
        }
    assert figures["mixed/lost"]["median"] == figures["mixed/duplicates"]["median"] == 0
    assert list((tmp_path / "data").iterdir()) == []
