from __future__ import annotations

import json
from pathlib import Path

from benchmarks.interleaved import QUIET_CORES, Measured
from benchmarks.report import About, Report, table

from penstock.cli.benchmarks.figures import MICROSECONDS, RATE, Figure

ABOUT = About("server 1", "client 2", "as it comes", "on disk")


def report(**measured: Measured) -> Report:
    return Report(dict.fromkeys(measured, ABOUT), measured, {"other": "no package"}, quick=False)


def rates(*values: float, foreign: float = 0.0, name: str = "push 50 B") -> Measured:
    measured = Measured()
    for value in values:
        measured.add({name: Figure(value, RATE)}, foreign)
    return measured


def test_a_cell_has_median_spread_and_ratio() -> None:
    found = report(penstock=rates(200, 100, 220), peer=rates(50, 55, 45))
    assert found.cell("penstock", "push 50 B") == "200 ±30 %"
    assert found.cell("peer", "push 50 B") == "50 ±10 % (0.25x)"
    assert found.cell("peer", "pop 50 B") == "-"


def test_a_disturbed_measurement_is_marked_and_a_calm_one_is_not() -> None:
    found = report(penstock=rates(100, foreign=QUIET_CORES), peer=rates(50, foreign=0.5))
    assert found.cell("penstock", "push 50 B") == "100"
    assert found.cell("peer", "push 50 B") == "50 (0.50x)*"
    figure = found.as_json()["systems"]["peer"]["figures"]["push 50 B"]
    assert figure["foreign_cores"] == 0.5


def test_without_penstock_there_are_no_ratios() -> None:
    assert report(peer=rates(50)).cell("peer", "push 50 B") == "50"


def test_tables_have_only_columns_and_rows_that_were_measured() -> None:
    found = report(
        penstock=rates(1, name="single push/p50"), peer=rates(2, name="queues 10/made")
    )
    assert [columns for _, columns in found.tables()] == [["single push/p50"], ["queues 10/made"]]
    assert "| peer     | -" not in found.text()


def test_the_text_names_what_was_skipped_and_what_failed() -> None:
    broken = rates(1)
    broken.failures.append("mixed: RuntimeError")
    text = report(penstock=broken).text()
    assert "- other was skipped: no package" in text
    assert "- penstock failed: mixed: RuntimeError" in text


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    measured = Measured()
    measured.add({"single push/p50": Figure(12.5, MICROSECONDS)}, 0.0)
    report(penstock=measured).write(tmp_path)
    found = json.loads((tmp_path / "peers.json").read_text())
    assert found["systems"]["penstock"]["figures"]["single push/p50"]["values"] == [12.5]
    assert found["systems"]["penstock"]["durable"] == "on disk"
    assert "single push/p50" in (tmp_path / "peers.md").read_text()


def test_columns_are_aligned() -> None:
    lines = table(["", "a"], [["longer", "1"], ["x", "23"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "| longer | 1  |"
