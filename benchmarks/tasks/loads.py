"""What client processes do: the same for every task system. Each returns what becomes one line of
JSON, and raises if a result is missing or wrong.

Amounts follow from the system: runs get larger until one takes `seconds`, and the last counts. A
system that does 30 tasks a second and one that does 100,000 are thus measured for as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from benchmarks.tasks.system import TaskClient

Arguments = dict[str, Any]
Outcome = dict[str, Any]
T = TypeVar("T")

WARM_UP = 20  # single tasks that are not counted
_LARGER = 4  # at most so many times the run before
_SHORTEST_MS, _LONGEST_MS = 1.0, 1000.0
_MIX_SEED = 7  # all systems get the same tasks in the same order


def nulls(client: TaskClient, given: Arguments) -> Outcome:
    """Null tasks, each submitted by itself, all results collected."""
    return _grown(client.nulls, range, given)


def bundled(client: TaskClient, given: Arguments) -> Outcome:
    """Null tasks in the fastest way that the system has."""
    return _grown(client.bundled, range, given)


def single(client: TaskClient, given: Arguments) -> Outcome:
    """One null task after the other."""
    taken: list[int] = []
    end = time.monotonic() + given["seconds"]
    for number in range(WARM_UP + given["n"]):
        started = time.perf_counter_ns()
        result = client.one(number)
        ended = time.perf_counter_ns()
        _check([result], [number])
        if number >= WARM_UP:
            taken.append(ended - started)
        if time.monotonic() > end and taken:
            break
    return {"ns": taken}


def naps(client: TaskClient, given: Arguments) -> Outcome:
    """Tasks of one length."""
    client.naps([0.0] * client.workers * 2)  # every worker has run one

    def lengths(count: int) -> list[float]:
        # Whole rounds, so that an ideal system has all workers busy until the end.
        return [given["length"]] * (-(-count // client.workers) * client.workers)

    return _grown(client.naps, lengths, given)


def mix(client: TaskClient, given: Arguments) -> Outcome:
    """Tasks of 1 ms to 1 s, as many short as long ones on a logarithmic scale."""
    client.naps([0.0] * client.workers * 2)
    lengths = mixed_lengths(given["seconds"] * client.workers)
    return _timed(client.naps, lengths) | {"work": sum(lengths)}


def mixed_lengths(work: float) -> list[float]:
    """Lengths in seconds whose sum is `work` or little more."""
    chance = Random(_MIX_SEED)
    lengths: list[float] = []
    low, high = math.log(_SHORTEST_MS / 1e3), math.log(_LONGEST_MS / 1e3)
    left = work
    while left > 0:
        lengths.append(math.exp(chance.uniform(low, high)))
        left -= lengths[-1]
    return lengths


def _grown(
    run: Callable[[Sequence[T]], list[T]], make: Callable[[int], Sequence[T]], given: Arguments
) -> Outcome:
    count, most = given["first"], given["most"]
    while True:
        arguments = make(count)
        outcome = _timed(run, arguments)
        if outcome["seconds"] >= given["seconds"] or count >= most:
            return outcome | {"work": sum(arguments)}  # type: ignore[arg-type]
        # A little more than should do, so that it is seldom one run too many.
        factor = min(1.2 * given["seconds"] / outcome["seconds"], _LARGER)
        count = min(math.ceil(count * max(factor, 1.2)), most)


def _timed(run: Callable[[Sequence[T]], list[T]], arguments: Sequence[T]) -> Outcome:
    started = time.perf_counter()
    results = run(arguments)
    seconds = time.perf_counter() - started
    _check(results, arguments)
    return {"n": len(arguments), "seconds": seconds}


def _check(results: Sequence[T], arguments: Sequence[T]) -> None:
    if list(results) != list(arguments):
        raise RuntimeError(f"{len(results):,} results of {len(arguments):,} tasks, or wrong ones")


LOADS: dict[str, Callable[[TaskClient, Arguments], Outcome]] = {
    load.__name__: load for load in (nulls, bundled, single, naps, mix)
}
