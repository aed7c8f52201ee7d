"""Figures that are taken again and again, with their rates in between: on a screen, or as lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Protocol, Self, TypeVar

import typer

from penstock.cli.output import Output, console_for
from penstock.cli.units import duration

SHORTEST_S = 0.05

Interval = Annotated[
    float, typer.Option("--interval", parser=duration, metavar="TIME", help="Between samples.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one sample and end.")]


class Sampled(Protocol):
    """A dataclass with figures of one moment."""

    def compare(self, before: Self) -> None:
        """Fills in the rates since an earlier sample."""


S = TypeVar("S", bound=Sampled)


def show_samples(
    output: Output, take: Callable[[], S], screen: Callable[[S], Any], interval: float, once: bool
) -> None:
    """Until it is interrupted. With `once`, or for programs, samples are printed one by one."""
    interval = max(interval, SHORTEST_S)
    with suppress(KeyboardInterrupt):
        if once or output.as_json:
            _print(output, take, screen, interval, once)
        else:
            _live(take, screen, interval)


def _print(
    output: Output, take: Callable[[], S], screen: Callable[[S], Any], interval: float, once: bool
) -> None:
    before = take()
    while True:
        sample = _next(take, before, interval)
        if output.as_json:
            output.line(asdict(sample))  # type: ignore[call-overload]  # a dataclass
        else:
            console_for().print(screen(sample))
        if once:
            return
        before = sample


def _live(take: Callable[[], S], screen: Callable[[S], Any], interval: float) -> None:
    from rich.live import Live

    before = take()
    with Live(screen(before), screen=True, auto_refresh=False) as live:
        while True:
            before = _next(take, before, interval)
            live.update(screen(before), refresh=True)


def _next(take: Callable[[], S], before: S, interval: float) -> S:
    time.sleep(interval)
    sample = take()
    sample.compare(before)
    return sample
