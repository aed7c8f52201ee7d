"""One proof: input with a known answer, a driver that is killed, and what is in the output."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

import penstock
from penstock.cli.sparking.job import Job
from penstock.cli.sparking.moments import KINDS, QUEUE_KINDS, Kill, Watch, kinds_of
from penstock.consumers.generator import Clicks
from penstock.consumers.sessions import decode_session
from penstock.errors import DamagedError, DeadlineError

PARTITIONS = 2
BATCHES = 12  # micro-batches, and so many more for each kill
BATCHES_PER_KILL = 5
ROWS = 400  # of a micro-batch
FAILING = 0.15  # of the tasks
LAST_RUN_S = 1200.0

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to prove, and how hard."""

    kind: str  # sessions or queue
    kills: int
    seed: int
    failing: float = FAILING
    careless: bool = False  # so that it must go wrong, where a commit is repeated

    @property
    def batches(self) -> int:
        """As many micro-batches as are enough for all kills."""
        return BATCHES + BATCHES_PER_KILL * self.kills


@dataclass
class Outcome:
    """What came of it."""

    plan: Plan
    expected: int
    found: int
    missing: int
    doubled: int
    wrong: int
    left: int  # in the queue
    kills: list[Kill]
    failures: int  # of tasks, forced
    batches: int
    seconds: float

    @property
    def correct(self) -> bool:
        """Whether every record is there once, nothing else is, and all kills were done."""
        broken = self.missing + self.doubled + self.wrong + self.left
        return not broken and len(self.kills) == self.plan.kills


class Proof:
    """Runs a plan against a node; the folder keeps checkpoint and logs."""

    def __init__(self, url: str, folder: Path, plan: Plan, tell: Tell = lambda _: None) -> None:
        self._plan = plan
        self._url = url
        self._folder = folder
        self._tell = tell
        self._chance = random.Random(plan.seed)
        self._clicks = _clicks(plan)
        self._names = f"{plan.kind}-{plan.seed}-in", f"{plan.kind}-{plan.seed}-out"

    def perform(self) -> Outcome:
        """All of it."""
        begun = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        with penstock.connect(self._url) as fabric:
            self._tell("making the input")
            expected = Counter(self._fill(fabric))
            source, target = self._names
            queue = source if self._plan.kind == "queue" else ""
            watch = Watch(fabric, self._folder / "checkpoint", target, queue)
            kills = list(self._killed(watch))
            self._finish()
            found = Counter(self._read(fabric.topic(target)))
            left = int(fabric.queue(queue).stats()["messages"]) if queue else 0
            batches = watch.look().noted + 1
        note = self._failures
        failures = len(note.read_text().splitlines()) if note.exists() else 0
        return Outcome(
            self._plan, expected.total(), found.total(), *compared(expected, found), left, kills,
            failures, batches, time.monotonic() - begun,
        )  # fmt: skip

    @property
    def _failures(self) -> Path:
        return self._folder / "failures.txt"

    # --- input and output --------------------------------------------------------------------

    def _fill(self, fabric: penstock.Fabric) -> Iterable[bytes]:
        source, target = self._names
        fabric.topic(target, partitions=PARTITIONS)
        if self._plan.kind == "queue":
            values = [b"%d" % number for number in range(self._plan.batches * ROWS)]
            fabric.queue(source).push_many(values, keys=[value[-2:] for value in values], batch=50)
            return values
        publish(fabric.topic(source, partitions=PARTITIONS), self._clicks)
        return map(msgspec.json.encode, self._clicks.answer())

    def _read(self, topic: penstock.Topic) -> Iterator[bytes]:
        for partition in range(topic.partitions):
            for batch in topic.read(partition):
                if self._plan.kind == "queue":
                    yield from batch.values
                else:
                    yield from (msgspec.json.encode(decode_session(each)) for each in batch.values)

    # --- the driver --------------------------------------------------------------------------

    def _killed(self, watch: Watch) -> Iterator[Kill]:
        kinds = QUEUE_KINDS if self._plan.kind == "queue" else KINDS
        for number, kind in enumerate(kinds_of(self._plan.kills, kinds, self._chance), start=1):
            begun = time.monotonic()
            driver = self._start()
            self._tell(f"kill {number} of {self._plan.kills}: {kind}")
            try:
                if not watch.wait(driver, kind, self._chance):
                    if driver.returncode:
                        raise DamagedError(f"the driver ended by itself: {self._said()}")
                    return  # there was too little to do
            finally:
                _kill(driver)
            yield Kill(kind, time.monotonic() - begun, watch.look())

    def _finish(self) -> None:
        self._tell("the last run, to the end")
        driver = self._start()
        try:
            code = driver.wait(LAST_RUN_S)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"the last run took over {LAST_RUN_S:.0f} s") from None
        finally:
            _kill(driver)
        if code:
            raise DamagedError(f"the last run ended with {code}: {self._said()}")

    def _start(self) -> subprocess.Popen[bytes]:
        source, target = self._names
        job = Job(
            self._plan.kind, self._url, source, target, str(self._folder / "checkpoint"), ROWS,
            self._plan.seed, self._plan.failing, str(self._failures), self._clicks.timeout,
            self._clicks.delay, self._plan.careless,
        )  # fmt: skip
        settings = msgspec.json.encode(job).decode()
        with (self._folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.sparking.job", settings],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _said(self) -> str:
        lines = (self._folder / "driver.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])


def compared(expected: Counter[bytes], found: Counter[bytes]) -> tuple[int, int, int]:
    """How many records are missing, there more often than they should, and not in the answer."""
    more = found - expected
    wrong = sum(number for record, number in more.items() if record not in expected)
    return (expected - found).total(), more.total() - wrong, wrong


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver, its Java and all workers, at once."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _clicks(plan: Plan) -> Clicks:
    """About as many fragments as there are rows in all micro-batches."""
    fragments_per_chain = 14
    chains = plan.batches * ROWS // (3 * fragments_per_chain)
    return Clicks(seed=plan.seed, blocks=3, chains=max(chains, 20))


def publish(topic: penstock.Topic, clicks: Clicks) -> None:
    """All fragments; the last of all goes to every partition, so that all sessions are over."""
    *all_but_last, (keys, values, times_us) = clicks.columns()
    for names, texts, times in all_but_last:
        topic.publish_many(texts, keys=names, timestamps=(times / 1e6).tolist())
    for partition in range(topic.partitions):
        times = (times_us / 1e6).tolist()
        topic.publish_many(values, keys=keys, timestamps=times, partition=partition)
