"""What puller and executor processes share: frames in any pieces, the beacon, loaded modules."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidError, ProtocolError
from penstock.tasks.envelope import TaskCall, encode
from penstock.tasks.worker import executor_main
from penstock.tasks.worker.beacon import Beacon, beacon_file
from penstock.tasks.worker.jobs import Ended, Running
from penstock.tasks.worker.loading import load
from penstock.tasks.worker.protocol import (
    Frames,
    Ready,
    Results,
    Return,
    Returned,
    Run,
    Setup,
    ToExecutor,
    ToPuller,
    Work,
    pack,
)

WORK = st.builds(
    Work, st.integers(1, 9), st.binary(max_size=99), st.integers(1, 3), st.integers(0, 9),
    st.lists(st.binary(max_size=9), max_size=2),
)  # fmt: skip
MESSAGES = st.lists(
    st.builds(Run, st.lists(WORK, max_size=4))
    | st.builds(Return, st.integers(0, 9))
    | st.just(Setup(["m"], [], "w", b"k"))
)


@given(MESSAGES, st.data())
def test_frames_come_out_whole_in_whatever_pieces(messages: list[ToExecutor], data: st.DataObject):
    stream = b"".join(map(pack, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    frames: Frames[ToExecutor] = Frames(ToExecutor)
    found: list[ToExecutor] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[begin:end])
    assert found == messages


def test_results_and_nonsense():
    frames: Frames[ToPuller] = Frames(ToPuller)
    results = Results([Ended(1, 0, b"o", 5)])
    assert list(frames.feed(pack(results) + pack(Returned([2])))) == [results, Returned([2])]
    with pytest.raises(ProtocolError):
        list(frames.feed(b"\x01\x00\x00\x00\xc1"))
    with pytest.raises(ProtocolError):
        list(Frames[ToPuller](ToPuller).feed(b"\xff\xff\xff\xff"))


def test_the_beacon_tells_what_another_process_is_at():
    descriptor = beacon_file()
    here, there = Beacon(descriptor), Beacon(descriptor)
    os.close(descriptor)
    assert here.look() is None
    there.begin(7, 123)
    assert here.look() == Running(7, 123)
    there.begin(8, 124)
    assert here.look() == Running(8, 124)
    here.close()
    there.close()


def test_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_it.py").write_text("here = 1\n")
    script = tmp_path / "some_script_of_tasks.py"
    script.write_text("import beside_it\nloaded = beside_it.here\n")
    load(str(script))
    assert sys.modules["some_script_of_tasks"].loaded == 1
    load("beside_it")
    for wrong in ("no_such_module_at_all", "beside_it.inner", "missing.py"):
        with pytest.raises(InvalidError):
            load(wrong)
    (tmp_path / "needs_more.py").write_text("import no_such_module_at_all\n")
    with pytest.raises(ModuleNotFoundError):
        load("needs_more")
    for name in ("some_script_of_tasks", "beside_it"):
        del sys.modules[name]


def test_an_executor_ends_with_its_puller_also_while_it_imports(tmp_path: Path):
    slow, began = tmp_path / "slow_module.py", tmp_path / "began"
    os.mkfifo(began)
    slow.write_text(f"import time; open({str(began)!r}, 'w').close(); time.sleep(600)", "utf-8")
    here, there = socket.socketpair()
    beacon = beacon_file()
    with subprocess.Popen(
        [sys.executable, "-m", executor_main.__name__, f"{there.fileno()}", f"{beacon}"],
        pass_fds=[there.fileno(), beacon],
    ) as executor:
        there.close()
        os.close(beacon)
        here.sendall(pack(Setup([str(slow)], [], "w", None)))
        began.read_text("utf-8")  # waits until the module is at it
        here.close()
        assert executor.wait(30) == 0


@contextmanager
def executor_of(module: Path) -> Iterator[socket.socket]:
    """The puller's end of the channel to an executor that has loaded a module."""
    here, there = socket.socketpair()
    beacon = beacon_file()
    with subprocess.Popen(
        [sys.executable, "-m", executor_main.__name__, f"{there.fileno()}", f"{beacon}"],
        pass_fds=[there.fileno(), beacon],
    ) as executor:
        there.close()
        os.close(beacon)
        here.settimeout(60.0)
        with here:
            here.sendall(pack(Setup([str(module)], [], "w", None)))
            yield here
        assert executor.wait(60) == 0


class Heard:
    """What an executor says, one message after the other."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._frames: Frames[ToPuller] = Frames(ToPuller)
        self._messages: deque[ToPuller] = deque()

    def next(self) -> ToPuller:
        while not self._messages:
            data = self._channel.recv(1 << 16)
            assert data, "the executor has ended"
            self._messages += self._frames.feed(data)
        return self._messages.popleft()

    def ended(self) -> list[int]:
        """The numbers of the next results."""
        results = self.next()
        assert isinstance(results, Results)
        assert not any(each.status for each in results.ended)
        return [each.number for each in results.ended]


def test_an_executor_is_heard_while_it_rests_and_while_it_works(tmp_path: Path):
    """Whichever of its two threads receives; and no result waits behind a long function."""
    module, gate = tmp_path / "gated_tasks.py", tmp_path / "gate"
    os.mkfifo(gate)
    module.write_text(
        "import penstock\n"
        "@penstock.task(name='pass')\ndef passing() -> None: ...\n"
        f"@penstock.task(name='wait')\ndef waiting() -> None: open({str(gate)!r}).close()\n",
        "utf-8",
    )

    def work(number: int, function: str) -> Work:
        call = TaskCall(function, msgspec.msgpack.encode(([], {})), bytes(16))
        return Work(number, encode(call), 1, 0, [])

    with executor_of(module) as channel:
        heard = Heard(channel)
        assert isinstance(heard.next(), Ready)
        for number in (1, 2, 3):  # it rests
            channel.sendall(pack(Run([work(number, "pass")])))
            assert heard.ended() == [number]
        channel.sendall(pack(Return(1)))
        assert heard.next() == Returned([])
        channel.sendall(pack(Run([work(4, "pass"), work(5, "wait"), work(6, "pass")])))
        assert heard.ended() == [4], "although the next one takes its time"
        channel.sendall(pack(Run([work(7, "pass")])) + pack(Return(1)))  # it works
        assert heard.next() == Returned([7])
        gate.write_text("", "utf-8")
        rest = heard.ended()
        assert (rest if len(rest) > 1 else rest + heard.ended()) == [5, 6]
        channel.sendall(pack(Run([work(8, "pass")])))  # it rests again
        assert heard.ended() == [8]
