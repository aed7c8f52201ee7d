"""The results of a `map`, for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from penstock.errors import LimitError, PenstockError
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.mapping import Failed, Mapping, Unread, checked
from penstock.tasks.outbox import Parcel
from penstock.wire.buffers import Buffer

R = TypeVar("R")


class TaskResults(Generic[R]):
    """The results of a `map`. Iterate over it once, in order, or as they come.

    Items are taken and sent while results are: whoever stops iterating stops that as well.
    """

    def __init__(
        self,
        items: Mapping,
        offer: Callable[[Parcel], None],
        arrived: threading.Event,
        read: Callable[[TaskOutcome], Sequence[Buffer]],
    ) -> None:
        self._items = items
        self._offer = offer
        self._arrived = arrived
        self._read = read
        self._feed()

    @property
    def submitted(self) -> int:
        """How many items were taken and sent."""
        return self._items.submitted

    @property
    def done(self) -> int:
        """How many of them have ended, with a result or without."""
        return self._items.done

    @property
    def failed(self) -> int:
        """How many have ended without a result, among those that were looked at."""
        return self._items.failed

    def __iter__(self) -> Iterator[R]:
        return self.results()

    def results(
        self, timeout: float | None = None, return_exceptions: bool = False
    ) -> Iterator[R]:
        """The results in the order of the items. An item without one raises in its place (what is
        in flight goes on), or is its exception, with `return_exceptions`. TimeoutError if they are
        not all there within `timeout` seconds."""
        for _, result in self._numbered(True, timeout):
            yield checked(result, return_exceptions)

    def as_completed(
        self, timeout: float | None = None, return_exceptions: bool = False
    ) -> Iterator[tuple[int, R]]:
        """Numbers of items and their results, as they come; otherwise as `results`."""
        for number, result in self._numbered(False, timeout):
            yield number, checked(result, return_exceptions)

    def _numbered(self, ordered: bool, timeout: float | None) -> Iterator[tuple[int, Any]]:
        ends = None if timeout is None else time.monotonic() + timeout
        items = self._items
        while not items.finished:
            self._arrived.clear()
            taken = items.take(ordered)
            self._feed()
            for number, result in taken:
                yield number, self._opened(result) if isinstance(result, Unread) else result
            if not taken and not items.arrived and not self._wait(ends):
                raise TimeoutError(f"{self.submitted - self.done:,} tasks have not ended")

    def _opened(self, result: Unread) -> Any:
        try:
            return self._items.opened(result, self._read(result.outcome))
        except PenstockError as error:
            return Failed(error)

    def _wait(self, ends: float | None) -> bool:
        return self._arrived.wait(None if ends is None else max(ends - time.monotonic(), 0.0))

    def _feed(self) -> None:
        while (parcel := self._items.next_parcel()) is not None:
            try:
                self._offer(parcel)
            except LimitError as error:
                self._items.fail_all(parcel, error)
