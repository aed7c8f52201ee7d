"""`penstock consume`: a member of a group, in the foreground."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Here, on_fabric
from penstock.cli.units import duration, duration_text, size_text

if TYPE_CHECKING:
    from penstock import ConsumerGroup

REPORT_SECONDS = 1.0


class Guarantee(StrEnum):
    """How often a result is delivered if something fails."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Start(StrEnum):
    """Where a new group begins."""

    FIRST = "first"
    LAST = "last"


class OnError(StrEnum):
    """What happens when the handler fails."""

    STOP = "stop"
    SKIP = "skip"



@on_fabric
def consume(
    here: Here,
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A Stateful, its class, or what makes one.")
    ],
    group: Annotated[str, typer.Option("--group", "-g", help="The group to join.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to read.")],
    to: Annotated[
        list[str], typer.Option("--to", metavar="KIND:NAME", help="queue:, topic: or table:NAME.")
    ],
    guarantee: Annotated[Guarantee, typer.Option("--guarantee")] = Guarantee.EXACTLY_ONCE,
    late_to: Annotated[str | None, typer.Option("--late-to", metavar="KIND:NAME")] = None,
    dead_to: Annotated[str | None, typer.Option("--dead-to", metavar="KIND:NAME")] = None,
    on_error: Annotated[OnError, typer.Option("--on-error")] = OnError.STOP,
    start: Annotated[Start, typer.Option("--start", help="Of a new group.")] = Start.FIRST,
    weight: Annotated[float, typer.Option("--weight", help="Of its share.")] = 1.0,
    pin: Annotated[list[int] | None, typer.Option("--pin", help="A partition to have.")] = None,
    drain: Annotated[
        float | None,
        typer.Option("--drain", parser=duration, metavar="TIME", help="Leave, over so long."),
    ] = None,
    commit_every: Annotated[
        float, typer.Option("--commit-every", parser=duration, metavar="TIME")
    ] = 1.0,
    lease: Annotated[
        float | None,
        typer.Option("--lease", parser=duration, metavar="TIME", help="The same for all members."),
    ] = None,
    until_idle: Annotated[
        float | None,
        typer.Option("--until-idle", parser=duration, metavar="TIME", help="End when all is done."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Part of the member's id.")] = "",
) -> None:
    """Run a member of a group until SIGTERM or Ctrl-C; it then hands over and leaves.

    The module is found as Python finds it, and in the current directory.
    """
    from penstock import ConsumerGroup
    from penstock.consumers.calls import ErrorPolicy

    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    member = ConsumerGroup(
        here.fabric, group=group, topic=topic, handler=find_handler(handler), to=to,
        guarantee=guarantee.value, late_to=late_to, dead_to=dead_to,
        on_error=ErrorPolicy(on_error.value), start=start.value, weight=weight, pins=pin or (),
        drain=drain, rules=_rules(lease), commit_every=commit_every, name=name,
    )  # fmt: skip
    with _leaving_on_signals(member), _reports(here, member) as joined:
        member.run(until_idle, joined)
    status = member.status()
    here.output.record({"event": "left", **status}, f"left: {summary(status)}")


def _rules(lease: float | None) -> Any:
    from penstock.consumers.rules import Rules

    if lease is None:
        return Rules()
    lease_us = round(lease * 1e6)
    return Rules(lease_us=lease_us, margin_us=max(1, min(1_000_000, lease_us // 5)))


def find_handler(text: str) -> Any:
    """What `MODULE:NAME` names. InvalidError that says what to do, if it is nothing of use."""
    from penstock.consumers.stateful import Stateful
    from penstock.errors import InvalidError

    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise InvalidError(
            f"{text!r} is not MODULE:NAME", advice="For a class Sessions in app.py: app:Sessions."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise InvalidError(
                f"{module_name} needs {error.name}, which is not there",
                advice="Install it in the environment of this program.",
            ) from None
        raise InvalidError(
            f"there is no module {module_name!r} here",
            advice=f"Run it in the folder with {module_name.partition('.')[0]}.py, or install it.",
        ) from None
    except Exception as error:
        raise InvalidError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}",
            advice=f"Try `python -c 'import {module_name}'`.",
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(_handlers_of(found)) or "none"
            raise InvalidError(
                f"{module_name} has no {name!r}", advice=f"Handlers that it has: {known}."
            )
        found = getattr(found, part)
    if not isinstance(found, Stateful) and not callable(found):
        raise InvalidError(
            f"{text} is a {type(found).__name__}",
            advice="Name a class that derives from Stateful, one of its objects, or a function.",
        )
    return found


def _handlers_of(module: object) -> list[str]:
    from penstock.consumers.stateful import Stateful

    return [
        name
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
        and issubclass(value if isinstance(value, type) else type(value), Stateful)
        and getattr(value, "__module__", "").partition(".")[0] != "penstock"
    ]


@contextmanager
def _leaving_on_signals(member: ConsumerGroup) -> Iterator[None]:
    """The first SIGTERM or SIGINT has the member leave, the second ends it at once."""
    asked = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        # In a thread: this one may hold the lock that `stop` needs.
        threading.Thread(target=member.stop, daemon=True).start()

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _reports(here: Here, member: ConsumerGroup) -> Iterator[Callable[[], None]]:
    """Tells how it goes, once a second; yields what is to be called when it is in the group."""
    over = threading.Event()
    show, end = _shower(here)

    def joined() -> None:
        here.output.record({"event": "joined", "id": member.id}, f"joined as {member.id}")
        sys.stdout.flush()
        thread.start()

    def report() -> None:
        while not over.wait(REPORT_SECONDS):
            show(member.status())

    thread = threading.Thread(target=report, name="penstock-reports", daemon=True)
    try:
        yield joined
    finally:
        over.set()
        if thread.is_alive():
            thread.join()
        end()


def _shower(here: Here) -> tuple[Callable[[dict[str, Any]], None], Callable[[], None]]:
    if here.output.as_json or not sys.stdout.isatty():
        last_s = 0.0

        def show(status: dict[str, Any]) -> None:
            nonlocal last_s
            every_s = REPORT_SECONDS if here.output.as_json else 10 * REPORT_SECONDS
            if time.monotonic() >= last_s + every_s:
                last_s = time.monotonic()
                here.output.record({"event": "progress", **status}, summary(status))
                sys.stdout.flush()

        return show, lambda: None
    from rich.live import Live
    from rich.text import Text

    live = Live(Text("joining"), auto_refresh=False, transient=True)
    live.start()
    return lambda status: live.update(Text(summary(status)), refresh=True), live.stop


def summary(status: dict[str, Any]) -> str:
    """A member's figures in one line."""
    behind = f"{status['lag']:,} behind"
    if status["lag_s"]:
        behind += f" ({duration_text(status['lag_s'])})"
    return (
        f"{len(status['partitions'])} partitions, {status['rate']:,.0f} messages/s, "
        f"{status['messages']:,} in all, {status['results']:,} results, {behind}, "
        f"{status['open']:,} open, {status['held']:,} held, {size_text(status['state'])} state"
    )
