"""`penstock sim`: seeds, and scenarios."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import invoke


def test_seeds_are_run_and_counted():
    ran = invoke("sim", "--seeds", "2", "--minutes", "0.02", "--faults", "none")
    assert ran.code == 0
    assert "2 of 2 seeds kept every promise" in ran.out


def test_seeds_as_json():
    ran = invoke("sim", "--seed", "4", "--seeds", "1", "--minutes", "0.02", "--json")
    assert ran.code == 0
    assert [run["seed"] for run in ran.json["runs"]] == [4]


def test_a_scenario_shows_a_table_and_a_verdict():
    ran = invoke("sim", "--scenario", "fabriq-64")
    assert ran.code == 0
    assert "servers within 5 %" in ran.out
    assert "reached: average hops of a pop" in ran.out


def test_a_scenario_as_json():
    ran = invoke("sim", "--scenario", "fabriq-64", "--json")
    assert ran.code == 0
    assert ran.json["passed"]
    assert ran.json["figures"]["hops"] < 1.033


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--scenario", "nonsense"), "no scenario"), (("--plot", "x.png"), "--scenario")],
)
def test_what_cannot_be_run_is_refused(options, reason):
    ran = invoke("sim", *options, "--json")
    assert ran.code == 1
    assert reason in json.loads(ran.err)["error"]


def test_a_cluster_is_run_from_a_fresh_seed():
    options = ("--nodes", "2", "--seed", "0", "--seeds", "1", "--minutes", "0.02")
    ran = invoke("sim", *options, "--faults", "none")
    assert ran.code == 0
    assert ran.out.startswith("seeds 1")
    assert "promotions" in ran.out
