"""Tasks: functions that workers run, on queues and tables; there is no scheduler process.

`penstock.task` declares them, `Fabric.tasks` submits them. Their errors are here.
"""

from __future__ import annotations

from penstock.tasks.errors import (
    SerialisationError,
    TaskCancelledError,
    TaskError,
    TaskFailedError,
    TaskOutcomeError,
    TaskSkippedError,
    TaskTimeoutError,
    UnknownFunctionError,
)

__all__ = [
    "SerialisationError",
    "TaskCancelledError",
    "TaskError",
    "TaskFailedError",
    "TaskOutcomeError",
    "TaskSkippedError",
    "TaskTimeoutError",
    "UnknownFunctionError",
]
