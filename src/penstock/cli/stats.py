"""`penstock stats` and `penstock version`."""

from __future__ import annotations

import platform

from penstock.cli.command import Here, Json, on_fabric
from penstock.cli.output import Output
from penstock.cli.streams import readable_figures


@on_fabric
def stats(here: Here) -> None:
    """Show the figures of a node."""
    figures = here.fabric.stats()
    here.output.record(figures if here.output.as_json else readable_figures(figures))


def version(json: Json = False) -> None:
    """Show the version."""
    told = {"penstock": installed_version(), "python": platform.python_version()}
    Output(json).record(told, f"penstock {told['penstock']} (Python {told['python']})")


def installed_version() -> str:
    """The version of the installed package; a checkout that is not installed has none."""
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "unreleased"
