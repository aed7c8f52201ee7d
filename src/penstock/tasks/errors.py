"""What can go wrong with tasks. Every error says what happened, what was kept, and what to do.

    PenstockError
    └── TaskError
        ├── SerialisationError     a value cannot be sent, or bytes are not one; nothing was sent
        ├── UnknownFunctionError   no worker's module declares the function that was called
        └── TaskOutcomeError       the task is over, and there is no result
            ├── TaskFailedError        it raised, every time that it was allowed to
            │   └── TaskTimeoutError       its last attempt reached the time limit
            ├── TaskSkippedError       a task that it depends on did not succeed
            └── TaskCancelledError     it was cancelled before it had a result
"""

from __future__ import annotations

from typing import Self

from penstock.errors import PenstockError


class TaskError(PenstockError):
    """Base of all errors of tasks."""

    code = 80
    advice = "See `penstock tasks show` for what is known about the task."


class SerialisationError(TaskError):
    """A value cannot be sent as it is, or bytes that came are not a value.

    `path` leads from the whole to the offending part: `arguments[0].items["x"]`.
    """

    code = 81
    advice = "Check that both sides run the same release, and import the same classes."

    def __init__(self, message: str = "", *, advice: str | None = None, path: str = "") -> None:
        super().__init__(message, advice=advice)
        self.path = path

    def under(self, step: str) -> Self:
        """The same error, seen from one level further out."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path}: {super().__str__()}" if self.path else super().__str__()


class UnknownFunctionError(TaskError):
    """The function is not one that this worker may run."""

    code = 82
    advice = "Decorate it with @penstock.task in a module that the worker is given, or use --allow."


class TaskOutcomeError(TaskError):
    """The task is over, and there is no result."""

    code = 83


class TaskFailedError(TaskOutcomeError):
    """The task raised, and no attempt is left.

    `remote_type` names the exception's class, `remote_text` is what it says and `remote_traceback`
    where it was raised, on the worker. The task itself is kept among the dead letters.
    """

    code = 84
    advice = "Its arguments are kept: correct the function, then send it again from the dead tasks."

    def __init__(
        self,
        message: str = "",
        *,
        advice: str | None = None,
        remote_type: str = "",
        remote_text: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message, advice=advice)
        self.remote_type = remote_type
        self.remote_text = remote_text
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(f"On the worker:\n{remote_traceback.rstrip()}")


class TaskTimeoutError(TaskFailedError):
    """The last attempt was ended because it reached the task's time limit."""

    code = 85
    advice = "Raise the task's timeout, or divide its work; then send it again from the dead tasks."


class TaskSkippedError(TaskOutcomeError):
    """The task never ran: one that it depends on did not succeed."""

    code = 86
    advice = "Look at the tasks that it depends on; submit it again once they succeed."


class TaskCancelledError(TaskOutcomeError):
    """The task was cancelled before it had a result; what it did until then is not undone."""

    code = 87
    advice = "Submit it again, if it is wanted after all."
