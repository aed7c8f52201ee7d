"""Running a pipeline: a query for each sink, watched until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.pipelines.build import Built, writer_for
from penstock.spark.pipelines.problems import Problem, SpecError
from penstock.spark.pipelines.progress import Figures, Watch
from penstock.spark.pipelines.spec import Pipeline
from penstock.spark.said import said

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LOOK_S = 0.5
_AGAIN = "Mend the cause and run it again; it goes on where it was."

Report = Callable[[Sequence[Figures]], None]


def run_pipeline(
    pipeline: Pipeline,
    built: Built,
    report: Report = lambda _: None,
    stop: Event | None = None,
    look_s: float = LOOK_S,
) -> list[Figures]:
    """Starts all queries and returns their figures when they have ended, or were asked to stop.

    `report` gets the figures now and then, and once more at the end. When it returns, all that was
    committed is durable at the sinks, and the checkpoints say so. PenstockError if a query fails.
    """
    stop = stop or Event()
    watches: list[Watch] = []
    try:
        for sink in pipeline.sinks:
            query = _start(pipeline, built, sink.name)
            watches.append(Watch(sink.name, query))
        while any(each.query.isActive for each in watches) and not stop.wait(look_s):
            report([each.look() for each in watches])
            if any(each.figures.state == "failed" for each in watches):
                break
    finally:
        for watch in watches:
            _stop(watch.query)
    figures = [each.look() for each in watches]
    report(figures)
    for watch in watches:
        if (error := watch.query.exception()) is not None:
            told = f"query {watch.figures.query!r} failed: {said(error)}"
            raise PenstockError(told, advice=_AGAIN)
    return figures


def _start(pipeline: Pipeline, built: Built, name: str) -> StreamingQuery:
    from pyspark.errors import PySparkException

    [sink] = [each for each in pipeline.sinks if each.name == name]
    try:
        return writer_for(pipeline, sink, built.outputs[name]).start()
    except PySparkException as error:
        line = pipeline.lines.of("sink", name)
        raise SpecError.of(str(pipeline.file), [Problem(line, said(error))]) from None


def _stop(query: StreamingQuery) -> None:
    """A query that is between two micro-batches ends at once; one at work is interrupted."""
    if query.isActive:
        query.stop()
