"""The data of `penstock demo`: click fragments, and the minutes that must come out of them."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from penstock import Topic
from penstock.consumers import Clicks

MINUTE_US = 60_000_000
CLOSING_GAP_S = 7200.0  # after it, all minutes are over by the watermark, which is far shorter
CLOSINGS = 3

PIPELINE = """\
name = "demo"
checkpoint = "checkpoint"
servers = "{url}"

[source.clicks]
topic = "clicks"
startingOffsets = "earliest"
maxRowsPerBatch = {rows}

[step.sessions]
from = "clicks"
watermark = {{ column = "last", delay = "15m" }}
[step.sessions.sessions]
end_with = ":END"
fragment_id = "builtins:bytes"
timeout = {timeout}
delay = {delay}

[step.minutes]
sql = '''
select
  unix_micros(window.start) as minute_us,
  count(*) as sessions,
  sum(bigint(get_json_object(string(value), '$.count'))) as clicks,
  count_if(reason = 'end') as ended,
  sum(crc32(value)) as checksum
from sessions
group by window(last, '1 minute')
'''

[sink.minutes]
from = "minutes"
topic = "minutes"
json = true
"""


class Minute(NamedTuple):
    """The sessions whose last fragment is in one minute. `checksum` is of their records."""

    sessions: int
    clicks: int
    ended: int
    checksum: int


def publish(topic: Topic, clicks: Clicks) -> Iterator[int]:
    """Publishes all fragments; yields how many there are so far. The last ones, of a key of their
    own, go to every partition, so that each has seen that all sessions and minutes are over."""
    count = 0
    *columns, (keys, values, times_us) = clicks.columns()
    for names, texts, times in columns:
        topic.publish_many(texts, keys=names, timestamps=(times / 1e6).tolist())
        count += len(texts)
        yield count
    for number in range(CLOSINGS):
        times_s = (times_us / 1e6 + number * CLOSING_GAP_S).tolist()
        for partition in range(topic.partitions):
            topic.publish_many(values, keys=keys, timestamps=times_s, partition=partition)
            count += len(values)
    yield count


def expected(clicks: Clicks) -> dict[int, Minute]:
    """The minutes by their start in microseconds, from how the fragments are made."""
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for record in clicks.answer():
        minute = found[record.end_us - record.end_us % MINUTE_US]
        checksum = zlib.crc32(msgspec.json.encode(record))
        changes = 1, record.count, record.reason == "end", checksum
        minute[:] = [sum(pair) for pair in zip(minute, changes, strict=True)]
    return {start_us: Minute(*minute) for start_us, minute in sorted(found.items())}


def received(values: Iterable[bytes], last_us: int) -> tuple[dict[int, Minute], int]:
    """The minutes that came out up to a time, and how many came more than once."""
    found: dict[int, Minute] = {}
    twice = 0
    for value in values:
        row = json.loads(value)
        if row["minute_us"] > last_us:
            continue  # of the fragments that only close
        twice += row["minute_us"] in found
        found[row["minute_us"]] = Minute(*(row[name] for name in Minute._fields))
    return dict(sorted(found.items())), twice
