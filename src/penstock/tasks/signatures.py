"""Whether a function takes the arguments that it is to be called with: found out by the caller."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import InvalidError
from penstock.tasks.declare import Task, name_of

MOST_KNOWN = 1_000  # functions whose signatures are remembered
MAX_SHOWN = 200  # characters of a signature in an error
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Shape(NamedTuple):
    """What a function takes. `least` to `most` arguments, all by place, always fit."""

    signature: inspect.Signature
    least: int
    most: float


def check_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    before: int = 0,
) -> None:
    """InvalidError, with the function and the argument, if it cannot be called like that. `before`:
    how many arguments the worker puts before these."""
    shape = _shape_of(function.function if isinstance(function, Task) else function)
    if shape is None or (not kwargs and shape.least <= len(args) + before <= shape.most):
        return
    try:
        shape.signature.bind(*[None] * before, *args, **(kwargs or {}))
    except TypeError as error:
        raise _error(function, shape.signature, error) from None


def check_number(function: Callable[..., Any], arguments: int) -> None:
    """As `check_arguments`, for calls that all have so many arguments, by place."""
    check_arguments(function, [None] * arguments)


@functools.lru_cache(MOST_KNOWN)
def _shape_of(function: Callable[..., Any]) -> Shape | None:
    """None if nobody knows: some that are written in C do not tell."""
    try:
        # Of a wrapper, what it takes itself: it may add or leave out what the wrapped one takes.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    placed = [each for each in parameters if each.kind in _BY_PLACE]
    least: float = sum(each.default is each.empty for each in placed)
    most: float = len(placed)
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            most = float("inf")
        elif each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            most = -1.0  # none that are given by place are enough
    return Shape(signature, int(least), most)


def _error(
    function: Callable[..., Any], signature: inspect.Signature, error: TypeError
) -> InvalidError:
    name, shown = name_of(function), str(signature)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}…"
    return InvalidError(
        f"{name} cannot be called like that: {error}",
        advice=f"It is {name.rpartition(':')[2]}{shown}.",
    )
