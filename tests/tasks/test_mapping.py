"""The items of a map against the builtin: any order of outcomes, a bound on what is in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks import functions

from penstock.errors import InvalidError, UnavailableError
from penstock.tasks.calls import DEFAULT, Caller
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode, read_call
from penstock.tasks.errors import SerialisationError, TaskFailedError
from penstock.tasks.mapping import Failed, Mapping, checked
from penstock.tasks.outbox import PLAIN, Parcel

BUNDLE, IN_FLIGHT = 3, 10


class Taken:
    """Counts how many items were asked for."""

    def __init__(self, items: list[Any]) -> None:
        self.count = 0
        self._items = iter(items)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        item = next(self._items)
        self.count += 1
        return (item,)


def mapping(items: Iterator[tuple[Any, ...]]) -> tuple[Mapping, Caller, list[int]]:
    caller, woken = Caller.new(None, ()), [0]

    def wake() -> None:
        woken[0] += 1

    form = caller.form(functions.square, DEFAULT)
    return Mapping(caller, form, items, PLAIN, wake, BUNDLE, IN_FLIGHT), caller, woken


def feed(items: Mapping, under_way: list[tuple[bytes, bytes]]) -> None:
    while (parcel := items.next_parcel()) is not None:
        assert isinstance(parcel, Parcel)
        assert len(parcel.tasks) <= BUNDLE
        under_way += zip(parcel.tasks, parcel.values, strict=True)


def done(caller: Caller, value: bytes) -> TaskOutcome:
    (number,), _ = caller.codec.unpack_call(read_call(value).arguments)
    return TaskOutcome(Status.DONE, caller.codec.pack(number * number))


@settings(deadline=None)
@given(st.integers(0, 40), st.booleans(), st.data())
def test_results_are_those_of_the_builtin(length: int, ordered: bool, data: st.DataObject) -> None:
    taken = Taken(list(range(length)))
    items, caller, _ = mapping(iter(taken))
    under_way: list[tuple[bytes, bytes]] = []
    got: list[tuple[int, int]] = []
    feed(items, under_way)
    while not items.finished:
        assert taken.count - len(got) <= IN_FLIGHT
        if under_way:
            for _ in range(data.draw(st.integers(1, 4))):
                if under_way:
                    index = data.draw(st.integers(0, len(under_way) - 1))
                    task, value = under_way.pop(index)
                    assert items.settle(task, done(caller, value))
        got += items.take(ordered)
        feed(items, under_way)
    assert (got if ordered else sorted(got)) == [(each, each * each) for each in range(length)]
    assert (items.submitted, items.done, items.failed) == (length, length, 0)


def test_nothing_is_taken_beyond_what_may_be_in_flight() -> None:
    taken = Taken(list(range(100)))
    items, _, _ = mapping(iter(taken))
    feed(items, [])
    assert taken.count == 9, "three bundles: a fourth would be over the bound"
    assert (items.submitted, items.done, items.finished) == (9, 0, False)


def test_items_without_a_result_stand_in_their_places() -> None:
    items, _, woken = mapping(iter([(2,), (object(),), (3,)]))
    under_way: list[tuple[bytes, bytes]] = []
    feed(items, under_way)
    failure = encode(Failure("ValueError", "no"))
    items.settle(under_way[0][0], TaskOutcome(Status.FAILED, failure))
    items.fail(under_way[1][0], UnavailableError("gone"))
    assert woken == [1]
    errors = [result.error for _, result in items.take(True) if isinstance(result, Failed)]
    assert list(map(type, errors)) == [TaskFailedError, SerialisationError, UnavailableError]
    assert (items.failed, items.finished) == (3, True)


def test_what_an_iterable_raises_is_raised_in_its_place() -> None:
    def items_of() -> Iterator[tuple[int]]:
        yield (2,)
        raise KeyError("mine")

    items, caller, _ = mapping(items_of())
    under_way: list[tuple[bytes, bytes]] = []
    feed(items, under_way)
    items.settle(under_way[0][0], done(caller, under_way[0][1]))
    first, second = items.take(True)
    assert first == (0, 4)
    with pytest.raises(KeyError):
        checked(second[1], return_exceptions=False)
    assert isinstance(checked(second[1], return_exceptions=True), KeyError)
    assert items.finished


def test_an_unreadable_outcome_is_an_error_of_its_item() -> None:
    items, _, _ = mapping(iter([(2,)]))
    under_way: list[tuple[bytes, bytes]] = []
    feed(items, under_way)
    items.settle(under_way[0][0], TaskOutcome(Status.DONE, b"\xc1"))
    ((_, result),) = items.take(True)
    assert isinstance(result, Failed)


def test_a_bundle_must_fit() -> None:
    caller = Caller.new(None, ())
    form = caller.form(functions.square, DEFAULT)
    for bundle in (0, IN_FLIGHT + 1):
        with pytest.raises(InvalidError, match="batch"):
            Mapping(caller, form, iter(()), PLAIN, lambda: None, bundle, IN_FLIGHT)
