from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import install as installing
from benchmarks.command import available
from benchmarks.install import Needs, UnavailableError, install, missing
from benchmarks.rounds import WORKLOADS, applies, choose_workloads
from benchmarks.systems import LEFT_OUT, SYSTEMS, choose, system_of


def test_the_usual_systems_start_with_penstock_and_name_what_is_left_out() -> None:
    names = choose("")
    assert names[0] == "penstock"
    assert set(LEFT_OUT) <= set(names)
    assert "postgres-async" not in names


def test_systems_and_workloads_are_chosen_by_name() -> None:
    assert choose("nats, penstock") == ["nats", "penstock"]
    assert choose_workloads("mixed,50B") == ["mixed", "50B"]
    assert choose_workloads("") == list(WORKLOADS)


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(ValueError, match="kafkaesque"):
        choose("kafkaesque")
    with pytest.raises(ValueError, match="mixture"):
        choose_workloads("mixture")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_says_what_it_is(name: str) -> None:
    system = system_of(name)
    assert system.name == name
    assert system.durable
    assert system.settings
    assert system.module == SYSTEMS[name].module
    assert all(isinstance(applies(system, workload), bool) for workload in WORKLOADS)


def test_what_is_not_installed_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installing, "INSTALLED", tmp_path)
    systems, skipped = available(["penstock", "nats", "nsq"], system_of, may_install=False)
    assert [system.name for system in systems] == ["penstock"]
    assert skipped == {
        "nats": "not installed: Debian's packages, Python's libraries",
        "nsq": LEFT_OUT["nsq"],
    }
    assert "nats is skipped" in capsys.readouterr().err


def test_something_is_missing_until_the_very_same_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installing, "INSTALLED", tmp_path)
    needs = Needs(python=("a>1", "b"))
    folder = tmp_path / "python" / "peer"
    folder.mkdir(parents=True)
    assert missing("peer", needs) == ["Python's libraries"]
    (folder / ".installed").write_text("a>1 b")
    assert missing("peer", needs) == []
    assert missing("peer", Needs(python=("a>2", "b"))) == ["Python's libraries"]


def test_a_program_that_is_not_there_makes_a_system_unavailable() -> None:
    with pytest.raises(UnavailableError, match="no-such-program: not on this machine"):
        install("peer", Needs(programs=("no-such-program",)))
