"""What a function of a gang is told when the gang ends without it."""

from __future__ import annotations

from penstock.tasks.errors import TaskError


class GangOverError(TaskError):
    """The gang has ended while this member waited for the others. Let it through: the attempt is
    over, whatever the function does now."""

    code = 90
    advice = "Nothing is to be done: the gang is granted again, if its policy says so."
