"""A task set as a whole: what waits, how fast it goes, who works. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.tasks.watching.passages import Passage
from penstock.tasks.watching.reports import WorkerReport
from penstock.tasks.watching.spans import percentile_us

_COUNTED = ("ready", "delayed", "held", "leased", "dead")


@dataclass(slots=True)
class FunctionRow:
    """One function, by all workers that are there, since they started. Times in microseconds."""

    function: str
    attempts: int
    failed: int
    waited_p50_us: int
    waited_p99_us: int
    took_p50_us: int
    took_p99_us: int


@dataclass(slots=True)
class WorkerRow:
    """One worker."""

    worker: str
    kind: str
    executors: int
    running: int
    leased: int
    done: int
    failed: int
    retried: int
    utilisation: float
    """In the last second or so."""
    lifelong: float
    """Since it started."""
    seen_us: int
    """How long ago it last said something."""
    draining: bool


@dataclass(slots=True)
class Overview:
    """The figures of a task set at one moment. Rates are per second since the last look."""

    at_us: int
    counts: dict[str, int]
    """Messages of the queue: ready, delayed, held, leased, dead."""
    gangs: int
    submitted: int
    """Tasks that ever came, as far as the nodes know."""
    left: int
    """Those of them that are over."""
    functions: list[FunctionRow] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    submitted_rate: float | None = None
    left_rate: float | None = None

    def compare(self, before: Overview) -> None:
        """Fills in the rates since an earlier look."""
        seconds = max(self.at_us - before.at_us, 1) / 1e6
        self.submitted_rate = max(self.submitted - before.submitted, 0) / seconds
        self.left_rate = max(self.left - before.left, 0) / seconds


def overview_of(
    figures: dict[str, int], gangs: int, workers: Iterable[WorkerReport], now_us: int
) -> Overview:
    """What the figures of the queue and the workers' reports say."""
    reports = sorted(workers, key=lambda report: report.worker)
    passages: dict[str, Passage] = {}
    for report in reports:
        for function, passage in report.passages.items():
            passages.setdefault(function, Passage()).add(passage)
    return Overview(
        now_us,
        {name: figures[name] for name in _COUNTED},
        gangs,
        figures["pushed"],
        max(figures["pushed"] - figures["messages"] + figures["dead"], 0),
        [_function(name, passages[name]) for name in sorted(passages)],
        [_worker(report, now_us) for report in reports],
    )


def _function(name: str, passage: Passage) -> FunctionRow:
    waited, took = passage.waited, passage.took
    return FunctionRow(
        name, passage.attempts, passage.failed, percentile_us(waited, 0.5),
        percentile_us(waited, 0.99), percentile_us(took, 0.5), percentile_us(took, 0.99),
    )  # fmt: skip


def _worker(report: WorkerReport, now_us: int) -> WorkerRow:
    figures = report.figures
    return WorkerRow(
        report.worker, report.kind, report.executors, len(report.running), report.leased,
        figures.get("done", 0), figures.get("failed", 0), figures.get("retried", 0),
        report.utilisation, report.lifelong, max(now_us - report.told_us, 0), report.draining,
    )  # fmt: skip
