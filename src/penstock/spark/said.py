"""What an error of Spark says, without the plans and stacks below it."""

from __future__ import annotations

import re

MESSAGE_CHARACTERS = 500
_OURS = "penstock.errors."
_PYTHON = re.compile(r"\w*(?:Error|Exception): ")


def said(error: BaseException) -> str:
    """The line that says most: of our own error or one of Python if that is the cause, otherwise
    the first."""
    told = str(error).partition("JVM stacktrace")[0]
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    ours = [line.partition(_OURS)[2] for line in lines if _OURS in line]
    python = [line for line in lines if _PYTHON.match(line)] if "Traceback" in told else []
    best = next(iter([*ours[-1:], *python[-1:], *lines[:1], "no reason is given"]))
    return best.partition(" SQLSTATE")[0][:MESSAGE_CHARACTERS]
