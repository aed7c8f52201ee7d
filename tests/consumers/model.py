"""What the tests of objects share: a class that shows all it sees, and a model of what is right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragment, Fragments
from penstock.consumers.progress import Progress
from penstock.consumers.stateful import About, BulkStateful, Completion, Flags, Run
from penstock.consumers.steps import Step

SECOND_US = 1_000_000
BASE_US = 1_700_000_000 * SECOND_US


class Part(NamedTuple):
    """A fragment as the tests write it: time in whole seconds, `*` at the end of a value ends."""

    key: bytes
    value: bytes
    second: int


class Shown(NamedTuple):
    """A finished object: all that a test compares."""

    key: bytes
    reason: str
    values: tuple[bytes, ...]


def is_end(fragment: Fragment) -> bool:
    return fragment.value.endswith(b"*")


class Shows(BulkStateful[list[bytes]]):
    """An object's state is the values of its fragments, in the order of the calls."""

    def __init__(self, completion: Completion) -> None:
        self.completion = completion

    def open(self, key: bytes) -> list[bytes]:
        return []

    def on_message(self, state: list[bytes], fragment: Fragment) -> None:
        state.append(fragment.value)

    def on_timer(self, state: list[bytes]) -> None:
        state.append(b"tick")

    def on_run(self, state: list[bytes], run: Run) -> None:
        state.extend(run.values)

    def ends(self, values: list[bytes]) -> Flags:
        return np.array([value.endswith(b"*") for value in values], np.bool_)

    def finish(self, state: list[bytes], about: About) -> list[bytes]:
        assert about.count == len([value for value in state if value != b"tick"])
        return [b" ".join(state)]


def fragments_of(parts: Iterable[Part], first_offset: int = 0) -> Fragments:
    rows = [(part.key, part.value, BASE_US + part.second * SECOND_US) for part in parts]
    return Fragments.of(rows, first_offset)


def shown(steps: Iterable[Step]) -> list[Shown]:
    return [
        Shown(result.key, result.about.reason, tuple(result.value.split(b" ")))
        for step in steps
        for result in step.results
    ]


def batches(parts: Sequence[Part], sizes: Sequence[int]) -> Iterator[tuple[int, Sequence[Part]]]:
    """The parts in batches of these sizes, which are used again and again; with first offsets."""
    at = number = 0
    while at < len(parts):
        size = sizes[number % len(sizes)] if sizes else len(parts)
        yield at, parts[at : at + size]
        at, number = at + size, number + 1


def assemble(
    completion: Completion,
    parts: Sequence[Part],
    sizes: Sequence[int] = (),
    **settings: Any,
) -> tuple[list[Step], Assembler[list[bytes]]]:
    """All steps over the parts, and the assembler after them."""
    assembler = Assembler(Shows(completion), **settings)
    steps = [
        assembler.take(fragments_of(batch, at), now_us=0) for at, batch in batches(parts, sizes)
    ]
    return steps, assembler


def closing(parts: Sequence[Part], seconds: int) -> list[Part]:
    """The parts and one of another key, so much later that all others are over."""
    return [*parts, Part(b"~", b"last", max((p.second for p in parts), default=0) + seconds)]


def expected(parts: Iterable[Part], timeout: int | None) -> dict[bytes, list[tuple[bytes, ...]]]:
    """The objects of each key, from the set of fragments alone: sort, split after ends and gaps."""
    by_key: dict[bytes, list[Part]] = defaultdict(list)
    for part in parts:
        by_key[part.key].append(part)
    return {key: list(_split(found, timeout)) for key, found in by_key.items()}


def _split(parts: list[Part], timeout: int | None) -> Iterator[tuple[bytes, ...]]:
    ordered = sorted(parts, key=lambda part: part.second)
    group: list[Part] = []
    for part in ordered:
        if group:
            last = group[-1].second
            ended = any(p.second == last and p.value.endswith(b"*") for p in group)
            silent = timeout is not None and part.second - last > timeout
            if silent or (ended and part.second > last):
                yield tuple(sorted(p.value for p in group))
                group = []
        group.append(part)
    yield tuple(sorted(p.value for p in group))


def grouped(found: Iterable[Shown]) -> dict[bytes, list[tuple[bytes, ...]]]:
    """The objects of each key in the order of their results, values sorted, without the closer."""
    by_key: dict[bytes, list[tuple[bytes, ...]]] = defaultdict(list)
    for each in found:
        if each.key != b"~":
            by_key[each.key].append(tuple(sorted(each.values)))
    return dict(by_key)


def resumed(
    completion: Completion, progress: Progress, objects: Iterable[bytes] = (), **settings: Any
) -> Assembler[list[bytes]]:
    """A new owner, which knows nothing but what was committed, as bytes."""
    return Assembler(
        Shows(completion), Progress.decode(progress.encode()), objects, **settings
    )
