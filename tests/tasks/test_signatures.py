"""Arguments that a function does not take are refused where they are given, not on a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from tests.tasks import functions

import penstock
from penstock.errors import InvalidError
from penstock.tasks.declare import task
from penstock.tasks.signatures import check_arguments, check_number


def plain(first: int, second: int = 0) -> None: ...


def starred(first: int, *rest: int, needed: int) -> None: ...


def by_place(first: int, /, **others: int) -> None: ...


def _gives_connection(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function("connection", *args)

    return wrapper


@_gives_connection
def wrapped(connection: str, key: str) -> None: ...


@task
def member(gang: Any, x: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (plain, [1], {}),
        (plain, [1, 2], {}),
        (plain, [], {"second": 1, "first": 2}),
        (starred, [1, 2, 3], {"needed": 1}),
        (by_place, [1], {"first": 2}),
        (wrapped, ["key"], {}),
        (functions.echo, [1, 2], {"any": 3}),
        (functions.Holder.of_class, [], {}),
        (max, [], {}),  # tells nothing of itself
    ],
)
def test_calls_that_fit(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    check_arguments(function, args, kwargs)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "told"),
    [
        (plain, [], {}, "test_signatures:plain .*missing a required argument: 'first'"),
        (plain, [1, 2, 3], {}, r"too many positional arguments.*plain\(first"),
        (plain, [1], {"third": 3}, "unexpected keyword argument 'third'"),
        (plain, [1], {"first": 3}, "multiple values for argument 'first'"),
        (starred, [1], {}, "missing a required.* 'needed'"),
        (by_place, [], {"first": 2}, "'first'"),
        (functions.square, [], {}, "functions:square .*missing a required argument: 'x'"),
        (functions.renamed, [1], {}, "stable .*too many"),
    ],
)
def test_calls_that_do_not(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidError, match=told):
        check_arguments(function, args, kwargs)


def test_a_long_signature_is_not_shown_to_its_end() -> None:
    many = ", ".join(f"number_{each}" for each in range(100))
    space: dict[str, Any] = {"__name__": __name__}
    exec(f"def long({many}): ...", space)
    with pytest.raises(InvalidError, match="…") as caught:
        check_arguments(space["long"], [])
    assert len(str(caught.value)) < 400


def test_arguments_that_a_worker_adds_are_counted() -> None:
    check_arguments(member, [1], {}, before=1)
    with pytest.raises(InvalidError, match="'x'"):
        check_arguments(member, [], {}, before=1)


def test_all_calls_of_a_map_are_checked_at_once() -> None:
    check_number(plain, 2)
    with pytest.raises(InvalidError, match="too many"):
        check_number(plain, 3)


def test_every_way_to_submit_checks(app: penstock.TaskApp) -> None:
    for refused in (
        lambda: app.submit(functions.square),
        lambda: app.submit(functions.square, 1, y=2),
        lambda: app.post(functions.square, 1, 2),
        lambda: app.map(functions.square, [1], [2]),
        lambda: app.gang(member, 1, 2, size=2),
        lambda: app.schedules.add("nightly", functions.square, every=60),
    ):
        with pytest.raises(InvalidError, match="cannot be called like that"):
            refused()
    assert app.overview().submitted == 0
