"""The sink as it is, with a pause after each publication: most kills are to come right there, where
Spark has not noted it yet."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.sink import StreamWriter
from penstock.spark.sink_options import parse_sink_options
from penstock.spark.source import PenstockSource

PAUSE_S = 0.25


class LingeringWriter(StreamWriter):
    """Returns from a commit a moment later than it could."""

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """As the sink's."""
        super().commit(messages, batchId)
        time.sleep(PAUSE_S)


class LingeringSource(PenstockSource):
    """`format("penstock")` with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """As the sink's."""
        return LingeringWriter(parse_sink_options(self.options), schema, overwrite)
