"""`penstock stats` and `penstock version`."""

from __future__ import annotations

import platform

from penstock.cli.command import Here, Json, on_fabric
from penstock.cli.output import Output
from penstock.cli.streams import readable_figures
from penstock.machine import release


@on_fabric
def stats(here: Here) -> None:
    """Show the figures of a node."""
    figures = here.fabric.stats()
    here.output.record(figures if here.output.as_json else readable_figures(figures))


def version(json: Json = False) -> None:
    """Show the version."""
    told = {"penstock": release(), "python": platform.python_version()}
    Output(json).record(told, f"penstock {told['penstock']} (Python {told['python']})")
