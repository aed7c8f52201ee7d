"""Calls into the user's code: what is tried again, what is put aside, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from penstock.consumers.fragments import Fragment
from penstock.errors import InvalidError, PenstockError

R = TypeVar("R")

MAX_RETRIES = 100


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What happens when a handler raises: so many more attempts, then stop, or skip.

    `skip`: the fragment (or the object, if `finish` raised) goes to the step's dead letters.
    """

    action: Literal["stop", "skip"] = "stop"
    retries: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= MAX_RETRIES:
            raise InvalidError(f"retries must be 0 to {MAX_RETRIES}")


class HandlerError(PenstockError):
    """A handler of the user raised. What was committed before counts; nothing after it does."""

    code = 70
    advice = "Correct the handler and start again, or choose to skip what fails."

    def __init__(
        self,
        message: str = "",
        *,
        advice: str | None = None,
        key: bytes = b"",
        partition: int = 0,
        offset: int = 0,
    ) -> None:
        super().__init__(message, advice=advice)
        self.key = key
        self.partition = partition
        self.offset = offset


class DeadLetter(NamedTuple):
    """A fragment that a handler refused; of an object that `finish` refused, the last offset."""

    handler: str
    key: bytes
    offset: int
    fragment: Fragment | None
    error: str


class RefusedError(Exception):
    """A call is given up, and what it was for goes to the dead letters. Not seen outside."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(letter.error)
        self.letter = letter


class Calls:
    """Decides what an error of the user's code leads to."""

    def __init__(self, partition: int, policy: ErrorPolicy) -> None:
        self._partition = partition
        self._policy = policy

    def again(
        self,
        error: Exception,
        call: Callable[[], R],
        handler: str,
        key: bytes,
        offset: int,
        fragment: Fragment | None = None,
    ) -> R:
        """After a first failure: what a further attempt gives. HandlerError, or RefusedError."""
        for _ in range(self._policy.retries):
            try:
                return call()
            except Exception as next_error:
                error = next_error
        told = f"{type(error).__name__}: {error}"
        if self._policy.action == "skip":
            raise RefusedError(DeadLetter(handler, key, offset, fragment, told)) from error
        raise HandlerError(
            f"{handler} failed for key {key[:80]!r}, partition {self._partition}, offset {offset}:"
            f" {told}",
            key=key,
            partition=self._partition,
            offset=offset,
        ) from error
