from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.interleaved import Measured
from benchmarks.plots import draw
from benchmarks.report import Report

from penstock.cli.benchmarks.figures import RATE, Figure


def report() -> Report:
    measured = {"penstock": Measured(), "peer": Measured()}
    for factor, system in enumerate(measured.values(), 1):
        for value in (100.0, 130.0, 110.0):
            system.add({"push 50 B": Figure(value * factor, RATE)}, 0.0)
    measured["peer"].add({"mixed": Figure(5.0, RATE)}, 0.0)
    return Report({}, measured, {}, quick=False)


def test_every_table_gets_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = draw(report(), tmp_path, lambda _: None)
    assert sorted(tmp_path.iterdir()) == written
    assert len(written) == 2
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told: list[str] = []
    assert draw(report(), tmp_path, told.append) == []
    assert told == ["no plots: matplotlib is not installed (extra: plot)"]
