"""Four sessions interleaved in one stream, fragments 0 to 8: what is committed at each point."""

from __future__ import annotations

import pytest
from tests.consumers.model import Part, Shows, fragments_of, is_end, shown

from penstock.consumers.assembler import Assembler
from penstock.consumers.progress import Progress
from penstock.consumers.stateful import Completion

STREAM = [
    Part(b"s1", b"0", 0),
    Part(b"s2", b"1", 1),
    Part(b"s3", b"2", 2),
    Part(b"s1", b"3*", 3),
    Part(b"s2", b"4", 4),
    Part(b"s3", b"5", 5),
    Part(b"s4", b"6", 6),
    Part(b"s3", b"7*", 7),
    Part(b"s2", b"8*", 8),
]

# After this fragment: sessions that are finished by it, safe offset, sessions to ignore.
SCRIPT = [
    (0, [], 0, []),
    (1, [], 0, []),
    (2, [], 0, []),
    (3, [b"0 3*"], 1, [b"s1"]),
    (4, [], 1, [b"s1"]),
    (5, [], 1, [b"s1"]),
    (6, [], 1, [b"s1"]),
    (7, [b"2 5 7*"], 1, [b"s1", b"s3"]),
    (8, [b"1 4 8*"], 6, [b"s3", b"s2"]),
]

COMPLETION = Completion(marker=is_end, timeout=1800.0)


def test_safe_offset_and_ignore_list_after_each_fragment():
    assembler = Assembler(Shows(COMPLETION))
    for number, finished, safe, ignored in SCRIPT:
        step = assembler.take(fragments_of([STREAM[number]], number), now_us=0)
        progress = assembler.progress()
        assert [result.value for result in step.results] == finished
        assert progress.offset == safe
        assert [name for name, _ in progress.ignore] == ignored
        assert progress.through == number + 1


@pytest.mark.parametrize("stop", range(len(STREAM) + 1))
def test_a_new_owner_delivers_the_rest_and_nothing_twice(stop):
    first = Assembler(Shows(COMPLETION))
    before = first.take(fragments_of(STREAM[:stop]), now_us=0)
    progress = Progress.decode(first.progress().encode())

    second = Assembler(Shows(COMPLETION), progress)
    start = progress.offset
    after = second.take(fragments_of(STREAM[start:], start), now_us=0)

    values = [each.values for each in shown([before, after])]
    assert values == [(b"0", b"3*"), (b"2", b"5", b"7*"), (b"1", b"4", b"8*")]


def test_the_committed_state_of_the_example_takes_few_bytes():
    assembler = Assembler(Shows(COMPLETION))
    assembler.take(fragments_of(STREAM), now_us=0)
    assert len(assembler.progress().encode()) < 60
