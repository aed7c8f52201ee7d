"""Running a call: what a stranger may call, what is told of failures, which results are refused."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest
from tests.tasks.pieces import Memory

from penstock.tasks.blobs import blob as blobs
from penstock.tasks.blobs.carrier import Carrier
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Registry, Task
from penstock.tasks.envelope import (
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    read_failure,
    read_outcome,
)
from penstock.tasks.futures import TaskRef
from penstock.tasks.options import TaskOptions
from penstock.tasks.worker import running
from penstock.tasks.worker.protocol import Work
from penstock.tasks.worker.running import OwnLoop, Runner
from penstock.wire.limits import MAX_TABLE_VALUE_BYTES

CODEC = Codec(lambda _: False)
PIECES = Memory()
MODULE = "a_package_of_tasks"


def declared(number: int) -> int:
    return number + 1


async def declared_async(number: int) -> int:
    return number + 2


def told(error: Exception) -> str:
    return str(error)


def broken(number: int) -> int:
    return number // 0


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def raises(what: str) -> None:
    raise {
        "no text": OSError("no file '\udcff'"),
        "long": ValueError("x" * 5_000_000),
        "speechless": SpeechlessError(),
    }[what]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    """One that may run undeclared functions of a package which also imports others."""
    module = ModuleType(MODULE)

    def own(number: int) -> int:
        return number

    own.__module__ = MODULE
    vars(module).update(own=own, os=os, system=os.system, join=os.path.join, int=int)
    monkeypatch.setitem(sys.modules, MODULE, module)
    registry = Registry()
    for function in (declared, declared_async, told, broken, raises):
        registry.add(Task(function, function.__name__, TaskOptions()))
    return Runner(registry, CODEC, "here", [MODULE], Carrier(PIECES.ask, PIECES.answer))


def run(runner: Runner, function: str, *args: Any, after: list[TaskOutcome | None] | None = None,
        **terms: Any) -> TaskOutcome:  # fmt: skip
    arguments, _ = CODEC.pack_call(args, {})
    parents = [b"" if each is None else encode(each) for each in after or ()]
    ids = [bytes([number]) * 16 for number in range(len(parents))]
    call = TaskCall(function, arguments, bytes(16), after=ids, **terms)
    with closing(OwnLoop()) as loop:
        ended = runner.run(Work(7, encode(call), 3, 5, parents), loop.wait)
    outcome = read_outcome(ended.outcome)
    assert (ended.number, ended.status) == (7, outcome.status)
    assert (outcome.attempt, outcome.popped_us, outcome.worker) == (3, 5, "here")
    return outcome


def test_functions_and_coroutines(runner: Runner):
    assert CODEC.unpack(run(runner, "declared", 1).result) == 2
    assert CODEC.unpack(run(runner, "declared_async", 1).result) == 3
    assert CODEC.unpack(run(runner, f"{MODULE}:own", 1).result) == 1


@pytest.mark.parametrize(
    "name",
    ["nothing", "os:system", f"{MODULE}:os.system", f"{MODULE}:system", f"{MODULE}:join",
     f"{MODULE}:int", f"{MODULE}:own.__globals__", "builtins:eval", f"{MODULE}:missing"],
)  # fmt: skip
def test_nothing_else_is_called(runner: Runner, name: str):
    outcome = run(runner, name, "1")
    assert outcome.status == Status.FAILED
    assert read_failure(outcome.result).kind == "penstock.tasks.errors.UnknownFunctionError"


def test_a_failure_is_told_from_the_function_on(runner: Runner):
    outcome = run(runner, "broken", 1)
    failure = read_failure(outcome.result)
    assert failure.kind == "ZeroDivisionError"
    assert "in broken" in failure.traceback
    assert running.__file__ not in failure.traceback


@pytest.mark.parametrize(
    ("what", "kind"),
    [("no text", "OSError"), ("long", "ValueError"), ("speechless", "SpeechlessError")],
)
def test_whatever_is_raised_can_be_told(runner: Runner, what: str, kind: str):
    """An executor that could not say it would die of it; a table that could not take it, too."""
    outcome = run(runner, "raises", what, keep_ms=1)
    assert outcome.status == Status.FAILED
    assert read_failure(outcome.result).kind.endswith(kind)
    assert len(encode(outcome)) < MAX_TABLE_VALUE_BYTES


def test_bytes_that_are_no_call(runner: Runner):
    ended = runner.run(Work(1, b"\xc1", 1, 0, []), OwnLoop().wait)
    assert read_failure(read_outcome(ended.outcome).result).kind == "penstock.errors.ProtocolError"


def test_a_large_result_is_stored_before_it_is_told(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(running, "INLINE_BYTES", 4)
    PIECES.kept.clear()
    assert CODEC.unpack(run(runner, "declared", 10**15).result) is None, "nobody could read it"
    assert not PIECES.kept
    outcome = run(runner, "declared", 10**15, keep_ms=1)
    (blob,) = outcome.blobs
    assert [blob.task, list(PIECES.kept)] == [bytes(16), blob.keys]
    assert CODEC.unpack(outcome.result, [PIECES.kept[blob.keys[0]]]) == 10**15 + 1
    child = run(runner, "declared", TaskRef(bytes(16)), after=[outcome], keep_ms=1)
    assert CODEC.unpack(child.result, [PIECES.kept[child.blobs[0].keys[0]]]) == 10**15 + 2
    PIECES.kept.clear()
    gone = run(runner, "declared", TaskRef(bytes(16)), after=[outcome])
    assert "is not kept any more" in read_failure(gone.result).text


def test_a_result_that_is_too_large(runner: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "INLINE_BYTES", 4)
    monkeypatch.setattr(blobs, "MAX_TABLE_BYTES", 5)
    outcome = run(runner, "declared", 10**15, keep_ms=1)
    failure = read_failure(outcome.result)
    assert failure.kind == "penstock.errors.TooLargeError"
    assert "9 bytes; the limit is 5" in failure.text


def test_what_came_of_parents(runner: Runner):
    done = TaskOutcome(Status.DONE, CODEC.pack(41))
    failed = TaskOutcome(Status.FAILED, encode(Failure("E", "no luck")))
    assert CODEC.unpack(run(runner, "declared", TaskRef(bytes(16)), after=[done]).result) == 42
    outcome = run(runner, "told", TaskRef(bytes(16)), after=[failed])
    assert "no luck" in CODEC.unpack(outcome.result)


def test_a_parent_that_is_not_known_any_more(runner: Runner):
    outcome = run(runner, "declared", TaskRef(bytes(16)), after=[None])
    assert "no outcome any more" in read_failure(outcome.result).text
