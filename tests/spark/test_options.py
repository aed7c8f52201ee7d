from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import InvalidError
from penstock.spark.options import (
    parse_options,
    refuse_batch_options,
    refuse_stream_options,
)

BASE = {"servers": "penstock://127.0.0.1:7411", "topic": "clicks"}


def test_names_are_taken_as_spark_gives_them() -> None:
    options = parse_options({**BASE, "maxrowsperbatch": "10", "INCLUDEHEADERS": "True"})
    assert options.max_rows == 10
    assert options.headers is True
    assert options.fail_on_data_loss is True
    assert (options.starting, options.ending) == (None, None)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ('{"0": 5, "2": -1, "3": "earliest"}', {0: 5, 2: "latest", 3: "earliest"}),
    ],
)
def test_offsets(text: str, bound: object) -> None:
    assert parse_options({**BASE, "startingOffsets": text}).starting == bound
    assert parse_options({**BASE, "endingOffsets": text}).ending == bound


@pytest.mark.parametrize("text", ["1900000000", "2030-03-17T17:46:40Z", "2030-03-17T18:46:40+01:00",
                                  "2030-03-17 17:46:40"])  # fmt: skip
def test_times(text: str) -> None:
    moment = datetime(2030, 3, 17, 17, 46, 40, tzinfo=UTC)
    assert parse_options({**BASE, "startingTime": text}).starting == moment


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topc": "x"}, "did you mean 'topic'"),
        ({"zzz": "x"}, "Options are servers, path"),
        ({"path": "data"}, "one of them"),
        ({"topic": ""}, "needs `topic`"),
        ({"startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"startingOffsets": "[1]"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"0": -7}'}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"0": true}'}, "earliest, latest or JSON"),
        ({"startingOffsets": "earliest", "startingTime": "1"}, "give one of them"),
        ({"endingTime": "soon"}, "seconds since 1970"),
        ({"maxRowsPerBatch": "0"}, "above 0"),
        ({"maxBytesPerBatch": "1k"}, "above 0"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"timeout": "-1"}, "seconds above 0"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        parse_options(BASE | changed)


def test_servers_or_path_are_needed() -> None:
    with pytest.raises(InvalidError, match="needs `servers` or `path`"):
        parse_options({"topic": "x"})


def test_options_of_the_other_kind_of_read_are_refused() -> None:
    with pytest.raises(InvalidError, match="for batch reads"):
        refuse_batch_options(parse_options({**BASE, "endingOffsets": "latest"}))
    with pytest.raises(InvalidError, match="for streams"):
        refuse_stream_options(parse_options({**BASE, "maxBytesPerBatch": "5"}))
