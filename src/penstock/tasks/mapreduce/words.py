"""Counting words."""

from __future__ import annotations

import re
import zlib
from collections import Counter

import msgspec

from penstock.tasks.declare import task
from penstock.tasks.mapreduce.jobs import Done, Job, Submits, results, write_part
from penstock.tasks.mapreduce.shuffle import Output, keep
from penstock.tasks.mapreduce.splits import Split

_WORD = re.compile(r"\w+")
_WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_SPACES = bytes(byte if byte in _WORD_BYTES else 0x20 for byte in range(256))
_read_counts = msgspec.msgpack.Decoder(dict[str, int]).decode


def wordcount(app: Submits, job: Job, *, ignore_case: bool = False) -> Done:
    """How often each word is in the lines: lines of a word, a tab and its count.

    A word is a run of letters, digits and underscores of any script. Words are in order within a
    file of results; which file has a word depends on its hash.
    """
    with job.folders() as scratch:
        maps = [
            app.submit(map_words, split, job.reduces, ignore_case, scratch)
            for split in job.splits()
        ]
        reduces = [
            app.submit(reduce_words, number, maps, job.part(number))
            for number in range(job.reduces)
        ]
        ends = results(maps, reduces)
    rows, spilled = (sum(each) for each in zip(*ends, strict=True))
    return Done(len(maps), job.reduces, rows, spilled)


@task(retries=2)
def map_words(split: Split, reduces: int, ignore_case: bool, scratch: str) -> Output:
    """The words of a split with their counts, for each reduce those of its share."""
    counts = count_words(split.read(), ignore_case)
    shares: list[dict[str, int]] = [{} for _ in range(reduces)]
    for word, count in counts.items():
        shares[zlib.crc32(word.encode()) % reduces][word] = count
    return keep([[msgspec.msgpack.encode(share) if share else b"" for share in shares]], scratch)


@task(retries=2)
def reduce_words(number: int, outputs: list[Output], to: str) -> tuple[int, int]:
    """Adds up the counts of one share, and writes them; how many words, and bytes from files."""
    counts: Counter[str] = Counter()
    spilled = 0
    for output in outputs:
        for part in output.of(number):
            counts.update(_read_counts(part.read()))
            spilled += part.size if part.path else 0
    write_part(to, (f"{word}\t{count}\n".encode() for word, count in sorted(counts.items())))
    return len(counts), spilled


def count_words(data: bytes, ignore_case: bool) -> Counter[str]:
    """The words of some lines. Bytes that are no UTF-8 belong to no word."""
    if data.isascii():
        folded = data.lower() if ignore_case else data
        found = Counter(folded.translate(_SPACES).split())
        return Counter({word.decode(): count for word, count in found.items()})
    text = data.decode("utf-8", "replace")
    return Counter(_WORD.findall(text.lower() if ignore_case else text))
