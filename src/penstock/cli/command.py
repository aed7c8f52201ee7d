"""What all commands share: how they reach a fabric, and how their errors are told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from penstock.cli.output import Output, fail
from penstock.cli.units import duration

if TYPE_CHECKING:
    from penstock import Fabric

DEFAULT_URL = "penstock://127.0.0.1:7411"
INTERRUPTED = 130

P = ParamSpec("P")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="The node to connect to.")]
DataPath = Annotated[
    str | None,
    typer.Option("--path", metavar="DIR", help="Open a data directory here, without a node."),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Where the names live.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", parser=duration, metavar="TIME", help="Of every request.")
]


class Here:
    """What a command works with."""

    def __init__(self, fabric: Fabric, output: Output) -> None:
        self.fabric = fabric
        self.output = output


def new_app(help_text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def on_fabric(function: Callable[Concatenate[Here, P], None]) -> Callable[..., None]:
    """A command that works on a fabric: it gets the options that say which, and `--json`."""
    call: Callable[..., None] = function

    def run(
        *,
        url: Url = DEFAULT_URL,
        path: DataPath = None,
        namespace: Namespace = "default",
        timeout: _Timeout = 5.0,
        json: Json = False,
        **given: Any,
    ) -> None:
        with told_errors(json), fabric_at(url, path, namespace, timeout) as fabric:
            call(Here(fabric, Output(json)), **given)

    return with_options_of(run, function)


def with_options_of(run: Callable[..., None], function: Callable[..., None]) -> Callable[..., None]:
    """`run` for typer: it has the options of a command but its first parameter, then its own but
    the last, which takes those of the command."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = list(inspect.signature(run, eval_str=True).parameters.values())[:-1]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *shared]]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


@contextmanager
def told_errors(as_json: bool) -> Iterator[None]:
    """Errors that a person can do something about become one line and exit code 1."""
    from penstock.errors import PenstockError, StorageError
    from penstock.store.disk import DiskError

    try:
        yield
    except PenstockError as error:
        raise fail(error, as_json) from None
    except DiskError as error:
        told = StorageError(str(error), advice="Check the path, its permissions and the disk.")
        raise fail(told, as_json) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def fabric_at(url: str, path: str | None, namespace: str, timeout: float) -> Iterator[Fabric]:
    """A fabric: of a data directory, or else of the node at `url`."""
    import penstock
    from penstock.errors import DeadlineError

    if path is not None:
        with penstock.open(path, timeout=timeout, namespace=namespace) as fabric:
            yield fabric
        return
    try:
        fabric = penstock.connect(url, timeout=timeout, namespace=namespace, name="cli")
    except DeadlineError as error:
        advice = "Start a node with `penstock serve`, or say where it is with --url."
        raise DeadlineError(error.message, advice=advice) from None
    with fabric:
        yield fabric


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}
