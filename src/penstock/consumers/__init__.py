"""Stateful consumers: how a group divides partitions, and what a consumer keeps of each.

What users of a `ConsumerGroup` write with is here. Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.consumers.assembler import Assembler
    from penstock.consumers.calls import DeadLetter, ErrorPolicy, HandlerError
    from penstock.consumers.fragments import Fragment, Fragments
    from penstock.consumers.generator import Clicks
    from penstock.consumers.group import ConsumerGroup
    from penstock.consumers.outlets import Outlet
    from penstock.consumers.progress import Progress
    from penstock.consumers.rules import Rules
    from penstock.consumers.schedule import Schedule
    from penstock.consumers.sessions import Sessionizer, SessionRecord, decode_session
    from penstock.consumers.stateful import (
        About,
        BulkStateful,
        Completion,
        FunctionalStateful,
        Output,
        Stateful,
    )
    from penstock.consumers.steps import Late, Limits, Result

__all__ = [
    "About",
    "Assembler",
    "BulkStateful",
    "Clicks",
    "Completion",
    "ConsumerGroup",
    "DeadLetter",
    "ErrorPolicy",
    "Fragment",
    "Fragments",
    "FunctionalStateful",
    "HandlerError",
    "Late",
    "Limits",
    "Outlet",
    "Output",
    "Progress",
    "Result",
    "Rules",
    "Schedule",
    "SessionRecord",
    "Sessionizer",
    "Stateful",
    "decode_session",
]

_HOMES = {
    "assembler": "Assembler",
    "calls": "DeadLetter ErrorPolicy HandlerError",
    "fragments": "Fragment Fragments",
    "generator": "Clicks",
    "group": "ConsumerGroup",
    "outlets": "Outlet",
    "progress": "Progress",
    "rules": "Rules",
    "schedule": "Schedule",
    "sessions": "SessionRecord Sessionizer decode_session",
    "stateful": "About BulkStateful Completion FunctionalStateful Output Stateful",
    "steps": "Late Limits Result",
}
_home_of = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _home_of:
        raise AttributeError(f"module 'penstock.consumers' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.consumers.{_home_of[name]}"), name)
    globals()[name] = value
    return value
