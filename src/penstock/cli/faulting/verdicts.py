"""The whole history of a run against all promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rich.table import Table

from penstock.cli.faulting import queue_work
from penstock.cli.faulting.check_queue import Period, QueueVerdict, check_queue
from penstock.cli.faulting.check_table import TableVerdict, check_table
from penstock.cli.faulting.check_topic import TopicVerdict, check_topic


@dataclass
class Verdicts:
    """What came out for the queue, the topic and the table, over `seconds` of load."""

    queue: QueueVerdict
    topic: TopicVerdict
    table: TableVerdict
    seconds: float

    @classmethod
    def of(cls, history: Path, periods: Sequence[Period], seconds: float) -> Self:
        """Reads all ledgers. `periods`: when something was broken."""
        queue = check_queue(history, queue_work.LEASE_SECONDS, periods)
        return cls(queue, check_topic(history), check_table(history), seconds)

    @property
    def promises(self) -> dict[str, int]:
        """How often each promise was broken."""
        queue, topic, table = self.queue, self.topic, self.table
        return {
            "queue: acknowledged and lost": queue.lost,
            "queue: acked twice": queue.acked_twice,
            "queue: delivered again without a cause": queue.without_cause,
            "queue, topic: delivered, but sent by nobody": queue.unsent + topic.unsent,
            "topic: acknowledged and lost": topic.lost,
            "topic: stored twice": topic.doubled,
            "topic: out of order": topic.out_of_order,
            "table: lost updates": table.lost_updates,
            "table: reads of the past": table.stale_reads,
        }

    @property
    def broken(self) -> int:
        """Promises that did not hold, each counted as often as that was so."""
        return sum(self.promises.values())

    def shown(self) -> Table:
        """For people: first what has to be zero."""
        shown = Table(title="What came out", show_header=False)
        shown.add_column()
        shown.add_column(justify="right")
        for label, count in self.promises.items():
            shown.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]")
        for label, text in self._counts().items():
            shown.add_row(label, text)
        return shown

    def _counts(self) -> dict[str, str]:
        queue, topic, table, seconds = self.queue, self.topic, self.table, self.seconds
        unknown = queue.unknown_pushes + topic.unknown_publishes + table.unknown_writes
        return {
            "messages acknowledged, queue": f"{queue.acknowledged:,}",
            "messages consumed": f"{queue.consumed:,}",
            "delivered again (lease ran out, or a fault)": f"{queue.delivered_again:,}",
            "seen within half a lease of the push": f"{queue.prompt:,}",
            "acks refused, unknown": f"{queue.refused_acks:,}, {queue.unknown_acks:,}",
            "messages acknowledged, topic": f"{topic.acknowledged:,}",
            "counts in the table, conflicts": f"{table.counted:,}, {table.conflicts:,}",
            "pushes and writes of which nobody knows": f"{unknown:,}",
            "load, faults included": (
                f"{(queue.acknowledged + topic.acknowledged) / seconds:,.0f} messages/s, "
                f"{table.counted / seconds:,.0f} counts/s, {seconds:,.0f} s"
            ),
        }

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)
