"""The workloads: which client processes do what, and the figures that come of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.folders import ROOT, data_folder
from benchmarks.install import python_folder
from benchmarks.mixed import PARTIES, Board
from benchmarks.servers import anonymous_of
from benchmarks.system import MIB, Place, System
from penstock.cli.benchmarks.figures import COUNT, RATE, SECONDS, Figure, Figures, latencies
from penstock.cli.benchmarks.processes import Child

MB_RATE = "MB/s"
BYTES = "bytes"
SMALL = 50
_GRACE_SECONDS = 90.0  # beyond what a load was given


@dataclass(frozen=True)
class Amounts:
    """How much of everything, and the seconds after which a load stops by itself."""

    small: int = 100_000  # messages of 50 B and 1 KiB
    large_bytes: int = 200 * MIB  # of messages that are large
    singles: int = 5000
    paced_seconds: int = 5
    mixed: int = 50_000  # of each producer
    waiting: int = 100_000  # whose memory is counted
    many_pushes: int = 2000
    traced: int = 200  # single pushes whose sync calls are counted
    queues: tuple[int, ...] = (10, 100, 1000, 10_000)
    logs: tuple[int, ...] = (32 * MIB, 256 * MIB)
    seconds: float = 15.0
    first: int = 20  # a push of one so many-th of the messages comes first, and is not counted
    enough: float = 1.0  # seconds; a push that took less is done again with more messages
    most_times: int = 100
    most_bytes: int = 512 * MIB
    passes: int = 3  # of push and pop at most, until they took so long together: the median counts
    lasting: float = 3.0  # seconds; a fraction of one says more of the machine than of a system

    def growth(self, size: int, count: int, seconds: float) -> int:
        """How many times as many messages to push, after so many took so long."""
        wanted = self.enough / max(seconds, 1e-6)
        return max(1, min(self.most_times, self.most_bytes // (size * count), int(wanted)))


QUICK = Amounts(
    small=2000, large_bytes=8 * MIB, singles=100, paced_seconds=1, mixed=1000, waiting=2000,
    many_pushes=50, traced=50, queues=(10,), logs=(2 * MIB,), seconds=10.0, most_times=1,
    passes=1,
)  # fmt: skip


class Job(NamedTuple):
    """A client process: its load, its part in it, and further arguments."""

    load: str
    arguments: dict[str, Any]
    number: int = 0
    consumers: int = 1


def start_clients(system: System, jobs: Sequence[Job], stack: ExitStack) -> list[Child]:
    """Starts client processes one after the other; each is connected, and waits for a word."""
    path = f"PYTHONPATH={ROOT}:{python_folder(system.module)}"
    children = []
    for job in jobs:
        size = job.arguments.get("size", SMALL)
        place = Place(system.endpoint, size, job.consumers, job.number)
        text = json.dumps({**job.arguments, "size": size, "place": place})
        child = Child(
            "benchmarks.client", system.name, job.load, text,
            log=data_folder() / f"client-{job.load}.log", inside=("env", path),
        )  # fmt: skip
        children.append(stack.enter_context(child))
    return children


def together(system: System, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Runs clients at the same time; what each has printed. RuntimeError if one fails."""
    with ExitStack() as stack:
        children = start_clients(system, jobs, stack)
        for child in children:
            child.say("go")
        patience = max(job.arguments["seconds"] for job in jobs) + _GRACE_SECONDS
        return [_outcome(job, child, patience) for job, child in zip(jobs, children, strict=True)]


def _outcome(job: Job, child: Child, patience: float) -> dict[str, Any]:
    line = child.answer(patience)
    if not line:
        log = data_folder() / f"client-{job.load}.log"
        raise RuntimeError(f"{job.load} failed: {log.read_text()[-500:].strip()}")
    child.wait(10.0)
    outcome: dict[str, Any] = json.loads(line)
    return outcome


def throughput(system: System, amounts: Amounts, size: int, label: str) -> Figures:
    """All pushed by one client, then all popped and acknowledged by another; again if that was
    over soon."""
    count = amounts.small if size <= 1024 else max(amounts.large_bytes // size, 4)
    if system.moves_only:
        return _floors(system, amounts, size, count, label)
    count = _in_time(_pushed(system, amounts, size, max(count // amounts.first, 4)), amounts, count)
    push = _pushed(system, amounts, size, count)
    if push["n"] == count and (times := amounts.growth(size, count, push["seconds"])) > 1:
        count *= times
        push = _pushed(system, amounts, size, count)
    pushes, pops = [push], [_popped(system, amounts, size, push["n"])]
    while len(pushes) < amounts.passes and _seconds(pushes + pops) < amounts.lasting:
        pushes.append(_pushed(system, amounts, size, count))
        pops.append(_popped(system, amounts, size, pushes[-1]["n"]))
    figures = _moved("push", label, size, [each["n"] / each["seconds"] for each in pushes])
    figures |= _moved("pop", label, size, [each["n"] / each["seconds"] for each in pops])
    # Those for which there was no time, or that were lost: of `mixed` it is known which.
    left = sum(push["n"] - pop["n"] for push, pop in zip(pushes, pops, strict=True))
    figures[f"pop {label}/left"] = Figure(float(left), COUNT)
    return figures


def _in_time(first: dict[str, Any], amounts: Amounts, count: int) -> int:
    """No more messages than can be pushed in time, going by a first push, which is slow for all and
    counts for nothing else."""
    pushed: int = first["n"]
    return max(pushed, min(count, int(pushed / first["seconds"] * amounts.seconds)))


def _floors(system: System, amounts: Amounts, size: int, count: int, label: str) -> Figures:
    """As often as the others that are over soon."""
    total = count * amounts.growth(size, count, 0.0)
    rates = [system.rates(size, total) for _ in range(amounts.passes)]
    returned = [back for _, back in rates if back is not None]
    figures = _moved("push", label, size, [there for there, _ in rates])
    return figures | (_moved("pop", label, size, returned) if returned else {})


def _pushed(system: System, amounts: Amounts, size: int, count: int) -> dict[str, Any]:
    given = {"size": size, "n": count, "seconds": amounts.seconds, "reset": True}
    [push] = together(system, [Job("push", given)])
    return push


def _popped(system: System, amounts: Amounts, size: int, count: int) -> dict[str, Any]:
    given = {"size": size, "n": count, "seconds": amounts.seconds}
    [pop] = together(system, [Job("pop", given)])
    return pop


def _seconds(outcomes: Sequence[dict[str, Any]]) -> float:
    return sum(float(each["seconds"]) for each in outcomes)


def _moved(name: str, label: str, size: int, rates: Sequence[float]) -> Figures:
    rate = median(rates)
    value = Figure(rate * size / 1e6, MB_RATE) if size > 1024 else Figure(rate, RATE)
    return {f"{name} {label}": value}


def single_latency(system: System, amounts: Amounts) -> Figures:
    """A push and its confirmation; a pop and its acknowledgement; one at a time."""
    given = {"n": amounts.singles, "seconds": amounts.seconds, "reset": True}
    [push] = together(system, [Job("single_pushes", given)])
    [pop] = together(system, [Job("single_pops", given)])
    return latencies("single push", push["ns"]) | latencies("single pop", pop["ns"])


def end_to_end(system: System, amounts: Amounts, rate: int) -> Figures:
    """From the time a message was due until a consumer has it; what never came is counted."""
    count = rate * amounts.paced_seconds
    given = {"n": count, "rate": rate, "seconds": amounts.paced_seconds + 20.0}
    consumed, produced = together(
        system, [Job("consume_paced", {**given, "reset": True}), Job("produce_paced", given)]
    )
    name = f"end to end {rate:,}/s"
    missing = Figure(float(count - len(consumed["ns"])), COUNT)
    achieved = Figure(produced["n"] / produced["seconds"], RATE)
    return {
        **latencies(name, consumed["ns"] or [0]),
        f"{name}/sent": achieved,
        f"{name}/missing": missing,
    }


def mixed(system: System, amounts: Amounts) -> Figures:
    """Two producers and two consumers; the rate at which different messages came through. Again
    with more of them, and as often as a push and a pop, if that was over soon."""
    count = amounts.mixed
    runs = [_mixed(system, amounts, count)]
    times = amounts.growth(SMALL, PARTIES * count, runs[0].seconds)
    if times > 1 and not runs[0].lost:
        count *= times
        runs = [_mixed(system, amounts, count)]
    while len(runs) < amounts.passes and sum(run.seconds for run in runs) < amounts.lasting:
        runs.append(_mixed(system, amounts, count))
    return {
        "mixed": Figure(median(run.came / max(run.seconds, 1e-9) for run in runs), RATE),
        "mixed/lost": Figure(float(sum(run.lost for run in runs)), COUNT),
        "mixed/duplicates": Figure(float(sum(run.doubled for run in runs)), COUNT),
    }


class Mixed(NamedTuple):
    """What became of the messages of two producers: those that came, of those once more, and
    those that did not come."""

    came: int
    doubled: int
    lost: int
    seconds: float


def _mixed(system: System, amounts: Amounts, count: int) -> Mixed:
    board = data_folder() / "board"
    board.unlink(missing_ok=True)
    Board(board)
    seen = [data_folder() / f"seen-{number}" for number in range(PARTIES)]
    given = {"n": count, "seconds": 2 * amounts.seconds, "board": str(board)}
    consumers = [
        Job(
            "consume_numbered", {**given, "seen": str(path), "reset": not number}, number, PARTIES
        )
        for number, path in enumerate(seen)
    ]
    producers = [
        Job("produce_numbered", given, number, PARTIES) for number in range(PARTIES)
    ]
    runs = together(system, consumers + producers)
    counts = np.sum([np.fromfile(path, np.uint8) for path in seen], axis=0, dtype=np.int64)
    different = int((counts > 0).sum())
    sent = sum(run["n"] for run in runs[PARTIES:])
    begun = min(run["begun"] for run in runs[PARTIES:])
    seconds = (max(run["last"] for run in runs[:PARTIES]) - begun) / 1e9
    return Mixed(different, int(counts.sum()) - different, sent - different, seconds)


def queue_cost(system: System, amounts: Amounts) -> Figures:
    """Making many queues, one push at a time over all of them, and the server's memory for each."""
    figures: Figures = {}
    for count in (each for each in amounts.queues if each <= system.max_queues):
        system.start()
        before = anonymous_of(system.servers)
        given = {"queues": count, "n": amounts.many_pushes, "seconds": 2 * amounts.seconds}
        [run] = together(system, [Job("many_queues", given)])
        grown = max(anonymous_of(system.servers) - before, 0)
        system.stop()
        name = f"queues {count:,}"
        figures[f"{name}/made"] = Figure(run["made"] / run["make_seconds"], "queues/s")
        figures[f"{name}/memory"] = Figure(grown / run["made"], BYTES)
        if run["ns"]:
            figures[f"{name}/push p50"] = latencies("", run["ns"])["/p50"]
    return figures


def recovery(system: System, amounts: Amounts) -> Figures:
    """From the start of a server that was killed to the first message, by the size of its log."""
    figures: Figures = {}
    for log_bytes in amounts.logs:
        system.start()
        given = {"size": 1024, "n": log_bytes // 1024, "seconds": 4 * amounts.seconds}
        [push] = together(system, [Job("push", {**given, "reset": True})])
        system.kill()
        name = f"recovery of {log_bytes // MIB:,} MiB"
        if push["n"] == given["n"]:  # else it was too slow for a log of this size
            figures[name] = Figure(_seconds_to_first_pop(system, amounts), SECONDS)
        system.stop()
    return figures


def _seconds_to_first_pop(system: System, amounts: Amounts) -> float:
    """The client is there first, and tries again and again."""
    job = Job("first_pop", {"size": 1024, "seconds": 8 * amounts.seconds})
    with ExitStack() as stack:
        [child] = start_clients(system, [job], stack)
        child.say("go")
        system.start(fresh=False)
        seconds: float = _outcome(job, child, 8 * amounts.seconds + _GRACE_SECONDS)["seconds"]
    return seconds


def memory(system: System, amounts: Amounts) -> Figures:
    """What the server's memory grows by for a message that waits, page cache left out."""
    system.start()
    together(system, [Job("push", {"n": 100, "seconds": amounts.seconds, "reset": True})])
    before = anonymous_of(system.servers)
    given = {"n": amounts.waiting, "seconds": 4 * amounts.seconds}
    [push] = together(system, [Job("push", given)])
    grown = max(anonymous_of(system.servers) - before, 0)
    system.stop()
    return {"memory of a waiting message": Figure(grown / push["n"], BYTES)}
