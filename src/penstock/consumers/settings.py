"""What a consumer of a group is started with; the same for both shells."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.client.inputs import check_name
from penstock.consumers.calls import ErrorPolicy
from penstock.consumers.membership import MAX_WEIGHT
from penstock.consumers.outlets import Outlets, Targets
from penstock.consumers.roster import WEIGHT_UNIT
from penstock.consumers.rules import Rules
from penstock.consumers.stateful import Stateful
from penstock.consumers.steps import Limits
from penstock.errors import InvalidError

Guarantee = Literal["exactly-once", "at-least-once", "at-most-once"]
Handler = Stateful[Any] | Callable[[], Stateful[Any]]

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")
MAX_COMMIT_RESULTS = 5_000
MAX_COMMIT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`commit_every`: seconds; `commit_results`: or so many results, if they are there sooner.
    `prefetch_bytes`: of all partitions together. `name` is for people."""

    group: str
    topic: str
    handler: Handler
    to: Targets
    guarantee: Guarantee = "exactly-once"
    late_to: Targets | None = None
    dead_to: Targets | None = None
    on_error: ErrorPolicy = field(default_factory=ErrorPolicy)
    start: Literal["first", "last"] = "first"
    weight: float = 1.0
    pins: Collection[int] = ()
    drain: float | None = None
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    commit_every: float = 1.0
    commit_results: int = MAX_COMMIT_RESULTS
    prefetch_bytes: int = 32 << 20
    name: str = ""

    def __post_init__(self) -> None:
        """InvalidError if this cannot work."""
        check_name(self.group)
        check_name(self.topic)
        if self.guarantee not in GUARANTEES:
            raise InvalidError(f"guarantee {self.guarantee!r}: use one of {', '.join(GUARANTEES)}")
        if self.start not in ("first", "last"):
            raise InvalidError(f"start {self.start!r}: use 'first' or 'last'")
        if not 0 < self.weight * WEIGHT_UNIT <= MAX_WEIGHT:
            raise InvalidError(f"a weight is above 0 and at most {MAX_WEIGHT // WEIGHT_UNIT}")
        if not 0 < self.commit_every <= MAX_COMMIT_SECONDS:
            raise InvalidError(f"commit_every is above 0 and at most {MAX_COMMIT_SECONDS:g} s")
        if not 0 < self.commit_results <= MAX_COMMIT_RESULTS:
            raise InvalidError(f"commit_results is 1 to {MAX_COMMIT_RESULTS:,}")
        if self.prefetch_bytes < 1:
            raise InvalidError("prefetch_bytes is above 0")
        self._check_handler()
        for targets in (self.to, self.late_to, self.dead_to):
            if targets is not None:
                self._check_outlets(Outlets(targets))

    def _check_handler(self) -> None:
        if not isinstance(self.handler, Stateful) and not callable(self.handler):
            raise InvalidError(
                f"a handler is a Stateful, its class, or a function that makes one,"
                f" not {type(self.handler).__name__}"
            )

    def _check_outlets(self, outlets: Outlets) -> None:
        if self.guarantee != "exactly-once" or all(each.transactional for each in outlets.all):
            return
        raise InvalidError(
            "exactly-once needs places that take part in the transaction which also moves the"
            " group's position: a function cannot be undone, nor asked whether it was called",
            advice="Send results to a queue, topic or table, or say guarantee='at-least-once'"
            " and have the function pass over a result.id that it has seen.",
        )

    def new_handler(self) -> Stateful[Any]:
        """The handler of a partition. InvalidError if what was given makes none."""
        if isinstance(self.handler, Stateful):
            return self.handler
        made = self.handler()
        if not isinstance(made, Stateful):
            raise InvalidError(f"{self.handler_name} gave a {type(made).__name__}, no Stateful")
        return made

    @property
    def handler_name(self) -> str:
        """What a warning calls it."""
        given = self.handler
        return type(given).__name__ if isinstance(given, Stateful) else given.__name__
