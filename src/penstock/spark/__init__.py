"""Penstock and Spark: topics as a source, sessions and other stateful operators, set-up.

Needs `pip install penstock[spark]`. Names are imported when they are first used: nothing here
loads PySpark before that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.operators import SESSION_JSON, sessions, stateful
    from penstock.spark.setup import register, session

__all__ = ["SESSION_JSON", "register", "session", "sessions", "stateful"]

_HOMES = {
    "SESSION_JSON": "operators",
    "register": "setup",
    "session": "setup",
    "sessions": "operators",
    "stateful": "operators",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.spark.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
