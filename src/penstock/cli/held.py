"""`penstock queue held`"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Here, on_fabric
from penstock.cli.output import json_field, readable
from penstock.cli.streams import Name
from penstock.cli.values import as_bytes


@on_fabric
def held(
    here: Here,
    name: Name,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a held message.")],
) -> None:
    """Print which entries of tables a held message still waits for."""
    found = here.fabric.queue(name, create=False).held(as_bytes(message_id))
    if found is None:
        here.output.record({"held": False}, f"no message with the id {message_id} is held")
    elif here.output.as_json:
        edges = [{"table": table, **json_field("key", key)} for table, key in found.edges]
        here.output.line({"held": True, "waits_for": found.count, "edges": edges})
    elif not found.count:
        here.output.record({}, f"{message_id} is held until it is released")
    else:
        here.output.table(("table", "key"), [(table, readable(key)) for table, key in found.edges])
        if found.count > len(found.edges):
            here.output.note(f"and {found.count - len(found.edges):,} more")
