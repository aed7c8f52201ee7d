from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import invoke, serving

import penstock
from penstock.cli.app import app
from penstock.node import examine as examine_module
from penstock.node.examine import examine
from penstock.store.record import MAGIC

VALUES = [b"first " * 20, b"second " * 20, b"third " * 20]


def contents(path: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a crash leaves it: all is in the journal, the checkpoint is the first."""
    live = tmp_path_factory.mktemp("original")
    copy = live.with_name("crashed")
    with penstock.open(str(live)) as fabric:
        queue = fabric.queue("jobs", ordered=True)
        for value in VALUES:
            queue.push(value)
        fabric.topic("events", 2).publish(b"event", partition=1)
        fabric.table("settings").put("k", b"v")
        shutil.copytree(live, copy)
    return copy


@pytest.fixture
def crashed(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "data"
    shutil.copytree(original, copy)
    return copy


def journal(path: Path) -> Path:
    (found,) = path.glob("j-*")
    return found


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_a_healthy_directory(tmp_path):
    with penstock.open(str(tmp_path)) as fabric:
        fabric.queue("jobs").push(b"x")
    before = contents(tmp_path)
    found = invoke("doctor", str(tmp_path))
    assert found.code == 0
    assert "Healthy. Every record verifies." in found.out
    assert "jobs" in found.out
    assert contents(tmp_path) == before


def test_after_a_crash(crashed: Path):
    before = contents(crashed)
    found = invoke("doctor", str(crashed), "--json").json
    assert found["verdict"] == "healthy"
    figures = {each["name"]: each["messages"] for each in found["streams"]}
    assert figures == {"jobs": 3, "events": 1, "settings": 1}
    assert found["replayed_records"] >= 8
    assert 0 < found["live_bytes"] <= found["used_bytes"]
    assert contents(crashed) == before


def test_a_torn_end(crashed: Path):
    used = next(file.used for file in examine(crashed, 0).files if file.kind == "journal")
    with journal(crashed).open("r+b") as file:
        file.seek(used - 24)
        file.write(bytes(24))
    found = invoke("doctor", str(crashed))
    assert found.code == 0
    assert "torn" in found.out
    told = invoke("doctor", str(crashed), "--json").json
    assert told["verdict"] == "torn"
    assert told["torn"]["offset"] < used
    assert told["damages"] == []


def test_a_damaged_message(crashed: Path):
    at = journal(crashed).read_bytes().index(VALUES[1])
    flip(journal(crashed), at)
    found = invoke("doctor", str(crashed))
    assert found.code == 1
    assert "Damaged. 1 message is lost; a node starts without it." in found.out
    told = invoke("doctor", str(crashed), "--json").json
    (damage,) = told["damages"]
    assert damage["offset"] < at < damage["offset"] + damage["length"]
    assert (damage["stream"], damage["kind"], damage["messages"]) == ("jobs", "push", 1)
    assert damage["first"] == damage["last"]
    assert told["refusal"] is None
    with penstock.open(str(crashed)) as fabric:
        queue = fabric.queue("jobs")
        popped = []
        while (message := queue.pop()) is not None:
            message.ack(wait=True)
            popped.append(message.value)
    assert popped == [VALUES[0], VALUES[2]]


def test_a_damaged_record_that_nobody_knows(crashed: Path):
    data = journal(crashed).read_bytes()
    second = data.rindex(MAGIC, 0, data.index(VALUES[1]))
    flip(journal(crashed), second + 40)
    found = invoke("doctor", str(crashed))
    assert found.code == 1
    assert "a node refuses to start" in found.out
    assert "--accept-damage" in found.out
    told = invoke("doctor", str(crashed), "--json").json
    (damage,) = told["damages"]
    (gap,) = told["gaps"]
    assert damage["refused"]
    assert damage["offset"] == second
    assert gap["first"] == gap["last"]
    refused = invoke("serve", "--data", str(crashed), "--listen", "127.0.0.1:0")
    assert refused.code == 1
    assert f"penstock doctor {crashed}" in refused.err
    with serving(crashed, "--accept-damage") as (_, start):
        assert len(start["recovered"]["damages"]) == 1


def test_a_damaged_checkpoint(tmp_path):
    with penstock.open(str(tmp_path)) as fabric:
        fabric.queue("jobs").push(b"x")
    (checkpoint,) = tmp_path.glob("c-*")
    flip(checkpoint, checkpoint.read_bytes().index(b"jobs"))
    told = invoke("doctor", str(tmp_path), "--json")
    assert told.code == 1
    assert told.json["checkpoint"]["damaged"] == ["control"]
    assert told.json["refusal"] is not None
    flip(checkpoint, checkpoint.stat().st_size - 1)
    told = invoke("doctor", str(tmp_path), "--json")
    assert told.code == 1
    assert told.json["checkpoint"] is None
    assert not told.json["opens_if_accepted"]
    assert "no node can open it" in invoke("doctor", str(tmp_path)).out


def test_a_directory_in_use(tmp_path):
    with penstock.open(str(tmp_path)) as fabric:
        fabric.queue("jobs").push(b"x")
        refused = invoke("doctor", str(tmp_path))
        assert refused.code == 1
        assert "--force" in refused.err
        before = contents(tmp_path)
        forced = invoke("doctor", str(tmp_path), "--force", "--json")
        assert forced.code == 0
        assert contents(tmp_path) == before
        assert [each["name"] for each in forced.json["streams"]] == ["jobs"]


def test_what_is_no_data_directory(tmp_path):
    assert "there is no directory" in invoke("doctor", str(tmp_path / "none")).err
    assert not (tmp_path / "none").exists()
    assert "is not a data directory" in invoke("doctor", str(tmp_path)).err
    (tmp_path / "LOCK").touch()
    empty = invoke("doctor", str(tmp_path))
    assert (empty.code, "Nothing has been stored" in empty.out) == (0, True)


def test_a_node_cannot_start_while_doctor_looks(tmp_path):
    from penstock.errors import InUseError
    from penstock.node.overlay import hold_shared

    penstock.open(str(tmp_path)).close()
    with (
        hold_shared(tmp_path),
        hold_shared(tmp_path),
        pytest.raises(InUseError),
    ):
        penstock.open(str(tmp_path))
    penstock.open(str(tmp_path)).close()


class Terminal(io.StringIO):
    """What a person would see."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["person", "program"])
def test_a_terminal_is_shown_the_progress_and_a_program_is_not(
    crashed: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(examine_module, "TELL_BYTES", 1)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    command = typer.main.get_command(app)
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()):
        command(["doctor", str(crashed), *options])
    assert not ended.value.code
    assert ("reading" in terminal.getvalue()) == (not options)


def test_progress_is_told_in_bytes_of_the_files(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine_module, "TELL_BYTES", 1)
    told: list[tuple[int, int]] = []
    examine(crashed, 0, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert {total for _, total in told} == {journal(crashed).stat().st_size}
    assert 0 < told[-1][0] <= told[-1][1]
