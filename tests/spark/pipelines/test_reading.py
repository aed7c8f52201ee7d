"""Pipelines as text: what is read, and what is said of what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import InvalidError
from penstock.spark.pipelines.draw import as_mermaid, as_tree
from penstock.spark.pipelines.lines import Lines
from penstock.spark.pipelines.problems import SpecError
from penstock.spark.pipelines.reading import read_pipeline
from penstock.spark.pipelines.spec import Pipeline, Watermark
from penstock.spark.pipelines.sql import tables_in

GOOD = '''
name = "clicks"
checkpoint = "checkpoint"
servers = "penstock://127.0.0.1:7411"

[source.clicks]
topic = "clicks"
startingOffsets = "earliest"
maxRowsPerBatch = 1000
watermark = { column = "timestamp", delay = "1m30s" }

[source.users]
files = "users"
format = "json"
columns = "user string, country string"

[step.found]
from = "clicks"
[step.found.sessions]
end_with = ":END"
timeout = "30m"
delay = 60

[step.minutes]
sql = """
select window(last, '1 minute').start as minute, count(*) as sessions
from found group by 1  -- from nowhere
"""

[step.joined]
python = "app:join"
from = ["minutes", "users"]
options = { how = "left" }

[sink.minutes]
from = "minutes"
topic = "per-minute"
json = true
key = "minute"

[sink.raw]
from = "found"
files = "out"
trigger = "5s"
'''


def read(folder: Path, text: str) -> Pipeline:
    (folder / "p.toml").write_text(text)
    return read_pipeline(folder / "p.toml")


def problems(folder: Path, text: str) -> list[tuple[int, str]]:
    with pytest.raises(SpecError) as caught:
        read(folder, text)
    return [(line, said) for line, said in caught.value.problems]


def test_a_file_is_read(tmp_path) -> None:
    found = read(tmp_path, GOOD)
    clicks, users = found.sources
    assert clicks.options == {
        "servers": "penstock://127.0.0.1:7411", "topic": "clicks", "startingOffsets": "earliest",
        "maxRowsPerBatch": "1000",
    }  # fmt: skip
    assert clicks.watermark == Watermark("timestamp", 90.0)
    assert users.target == str(tmp_path / "users")
    sessions, minutes, joined = found.steps
    assert sessions.settings == {"end_with": ":END", "timeout": 1800.0, "delay": 60.0}
    assert minutes.inputs == ("found",)
    assert joined.inputs == ("minutes", "users")
    out, raw = found.sinks
    assert (out.json, out.key, out.every, out.mode) == (True, "minute", None, "append")
    assert (raw.format, raw.every) == ("parquet", 5.0)
    assert found.checkpoint == str(tmp_path / "checkpoint")
    assert found.servers == "penstock://127.0.0.1:7411"
    assert not found.available_now


def test_it_is_drawn(tmp_path) -> None:
    pipeline = read(tmp_path, GOOD)
    assert [line.rstrip() for line in as_tree(pipeline)] == [
        "clicks  topic clicks",
        "└─ found  sessions, timeout 1800 s, delay 60 s",
        "   ├─ minutes  sql select window(last, '1 minute').start as minute,…",
        "   │  ├─ joined  python app:join",
        "   │  └─ minutes  → topic per-minute (append, once)",
        "   └─ raw  → files out as parquet (append, every 5 s)",
        "users  files users",
        "└─ joined (above)",
    ]
    drawn = as_mermaid(pipeline)
    assert drawn[0] == "flowchart LR"
    assert "  found --> sink__raw" in drawn
    assert '  joined["joined: python app:join"]' in drawn


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("maxRowsPerBatch", "maxRowPerBatch", 9, "did you mean 'maxRowsPerBatch'?"),
        ("maxRowsPerBatch = 1000", "maxRowsPerBatch = -1", 9, "use a whole number above 0"),
        ('"1m30s"', '"1 minute"', 10, "use a number of seconds"),
        ('from = "clicks"', 'from = "click"', 18, "did you mean 'clicks'?"),
        ("from found", "from fund", 27, "did you mean 'found'?"),
        ("[source.users]", "[source.clicks2]", 32, "no source or step 'users'"),
        ('files = "out"', 'file = "out"', 41, "give one of topic, queue, files, console, memory"),
        ('trigger = "5s"', 'trigger = "now"', 44, "use 'available-now', or how often"),
        ('trigger = "5s"', 'mode = "complete"', 44, "use append"),
        ('python = "app:join"', 'python = "app.join"', 31, "use MODULE:NAME"),
        ('checkpoint = "checkpoint"', "", 1, "needs `checkpoint`"),
        ('timeout = "30m"', 'timeout = "30m"\nend = "app:e"', 20, "give one of them"),
        ('end_with = ":END"\ntimeout = "30m"', "", 19, "sessions never end"),
        ("[step.joined]", "[step.found2]\nsql = 'select 1'\n[step.2x]", 32, "cannot be a name"),
        ('servers = "penstock://127.0.0.1:7411"', "", 7, "`servers` or `path`"),
        ('columns = "user string, country string"', "", 14, "need `columns`"),
        ('key = "minute"', 'compresion = "lz4"', 39, "did you mean 'compression'?"),
        ('key = "minute"', 'compression = "zip"', 39, "use none"),
        ('json = true', 'json = "yes"', 38, "use true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path, before, after, line, said) -> None:
    assert before in GOOD
    told = problems(tmp_path, GOOD.replace(before, after, 1))
    assert [at for at, text in told if said in text][:1] == [line], told


def test_all_problems_are_told_at_once(tmp_path) -> None:
    told = problems(tmp_path, 'nam = "x"\n[source.a]\nrate = 0\n[sink.b]\nfrom = "a"\n')
    assert [line for line, _ in told] == [1, 3, 4]
    assert "did you mean 'name'?" in told[0][1]


def test_a_queue_is_for_one_sink(tmp_path) -> None:
    text = GOOD.replace('topic = "clicks"\nstartingOffsets = "earliest"', 'queue = "clicks"')
    [(line, said)] = problems(tmp_path, text)
    assert line == 7
    assert "minutes, raw would share" in said
    one = text.partition("[sink.raw]")[0]
    assert read(tmp_path, one).sinks_of("clicks") == ["minutes"]


def test_what_is_no_toml_is_told_with_its_line(tmp_path) -> None:
    [(line, said)] = problems(tmp_path, 'name = "x"\n[source.a\n')
    assert line == 2
    assert "no TOML" in said
    with pytest.raises(InvalidError, match="cannot be read"):
        read_pipeline(tmp_path / "none.toml")


def test_lines_are_found_behind_texts_lists_and_comments() -> None:
    lines = Lines(
        'a = """\nx = 1\n[b]\n"""  # c\nb = [\n  1, # ]\n  "]",\n]\n'
        "# [d]\n[e.'f g']\nh = '''\none\ntwo''' \ni.j = 2\n[[k]]\nl = { m = 1 }\n"
    )
    assert [lines.of("a"), lines.of("b"), lines.of("e"), lines.of("e", "f g")] == [1, 5, 1, 10]
    assert [lines.of("e", "f g", "i", "j"), lines.of("k", "l", "m")] == [14, 16]
    assert lines.within(("e", "f g", "h"), "one\n") == 13
    assert lines.of("nothing") == 1


@pytest.mark.parametrize(
    ("sql", "inputs", "unknown"),
    [
        ("select * from a join `b` on a.x = b.x", ("a", "b"), []),
        ("select * from a as x, B y where 1 = 1", ("a", "b"), []),
        ("with t as (select * from a) select * from t", ("a",), []),
        ("select extract(hour from ts), 'from z' from a -- from y", ("a",), []),
        ("select * from (select 1 from b) left join c on true", ("b",), ["c"]),
        ("select * from db.t, explode(array(1))", (), []),
        ("SELECT 1 FROM aa", (), ["aa"]),
    ],
)
def test_tables_of_sql(sql, inputs, unknown) -> None:
    found, others = tables_in(sql, {"a", "b"})
    assert set(found) == set(inputs)
    assert [name for name, _ in others] == unknown


def test_the_example_of_the_docs_is_in_order_and_drawn_as_shown(tmp_path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "concepts" / "pipelines.md"
    text = page.read_text(encoding="utf-8")
    [toml] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    drawn = "\n".join(as_tree(read(tmp_path, toml)))
    assert f"```\n{drawn}\n```" in text
