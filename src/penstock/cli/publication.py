"""`penstock publication …`"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import streams
from penstock.cli.command import Here, new_app, on_fabric
from penstock.cli.reservations import moment
from penstock.cli.streams import Yes

app = new_app("Publications: what was staged and made visible once, by key and number.")


@app.command("list")
@on_fabric
def list_(here: Here) -> None:
    """Print the last publication of every key."""
    found = here.fabric.publications()
    rows = [{"key": p.key, "number": p.number, "at": moment(p.at_us)} for p in found]
    streams.show_rows(here, rows)


@app.command()
@on_fabric
def forget(
    here: Here,
    key: Annotated[str, typer.Argument(help="Whose numbers begin anew.")],
    yes: Yes = False,
) -> None:
    """Forget a key: its numbers may be published again."""
    streams.confirm(yes, f"Forget what was published under {key}?")
    known = here.fabric.forget_publication(key)
    here.output.record({"forgotten": known}, "forgotten" if known else "it was not known")
