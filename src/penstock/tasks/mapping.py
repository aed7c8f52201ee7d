"""One function over many items: taken lazily, sent in bundles, bounded in flight. No I/O here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.errors import InvalidError, PenstockError
from penstock.tasks.calls import Caller, Form
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.outbox import SHIPMENT_BYTES, Parcel, Terms
from penstock.tasks.waiting import error_of
from penstock.wire.buffers import Buffer

BUNDLE = 1000
IN_FLIGHT = 10_000  # items that were taken and whose results were not handed out yet


class Failed:
    """Stands where the result of an item would: it has none."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Unread:
    """Stands where the result of an item would: it is large, and is read when it is handed out."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: TaskOutcome) -> None:
        self.outcome = outcome


def checked(result: Any, return_exceptions: bool) -> Any:
    """A result as it is handed out: an item without one raises, or is its exception."""
    if not isinstance(result, Failed):
        return result
    if return_exceptions:
        return result.error
    raise result.error


class Mapping:
    """The items of one `map`: which were sent, which are done, which come next.

    Belongs to whoever takes the results; only `settle`, `settled` and `fail` are called by the
    thread that reads outcomes. `wake` is called, there, when something has arrived. Large results
    are left where they are until they are handed out: many of them would not fit.
    """

    reads_later = True

    def __init__(
        self,
        caller: Caller,
        form: Form,
        items: Iterator[tuple[Any, ...]],
        terms: Terms,
        wake: Callable[[], None],
        bundle: int = BUNDLE,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        if not 1 <= bundle <= in_flight:
            raise InvalidError(f"batch must be 1 to {in_flight:,}, not {bundle!r}")
        self._caller = caller
        self._form = form
        self._items = items
        self._terms = terms
        self._bundle = bundle
        self._in_flight = in_flight
        self._numbers: dict[bytes, int] = {}  # of items under way, by their tasks
        self._arrived: deque[tuple[int, Any]] = deque()
        self._ready: dict[int, Any] = {}  # out of turn
        self._next = 0  # the first that was not handed out in order
        self._exhausted = False
        self.wake = wake
        self.submitted = 0
        self.handed_out = 0
        self.failed = 0  # of those that were looked at

    @property
    def done(self) -> int:
        """How many have a result, or will have none."""
        return self.handed_out + len(self._arrived) + len(self._ready)

    @property
    def finished(self) -> bool:
        """Whether all items were taken, and all results handed out."""
        return self._exhausted and self.handed_out == self.submitted

    @property
    def arrived(self) -> bool:
        """Whether something has come in since the last `take`."""
        return bool(self._arrived)

    def next_parcel(self) -> Parcel | None:
        """The next bundle, if it may be in flight now and there are items left."""
        if self._exhausted or self.submitted - self.handed_out > self._in_flight - self._bundle:
            return None
        parcel = Parcel([], [], self, self._terms)
        for _ in range(self._bundle):
            if parcel.bytes >= SHIPMENT_BYTES:
                break
            try:
                item = next(self._items, None)
            except Exception as error:  # the caller's own, to be raised where the item would be
                self._add_failed(error)
                item = None
            if item is None:
                self._exhausted = True
                break
            self._add(parcel, item)
        return parcel if parcel.tasks else None

    def _add(self, parcel: Parcel, item: tuple[Any, ...]) -> None:
        task = self._caller.new_id()
        try:
            sent = self._caller.sent(self._form, item, {}, task)
            if sent.parents:
                raise InvalidError("map takes no futures", advice="Use submit for each of them.")
        except PenstockError as error:
            self._add_failed(error)
        else:
            self._numbers[task] = self.submitted
            self.submitted += 1
            parcel.add(task, sent.value)
            parcel.add_large(sent.large)

    def _add_failed(self, error: Exception) -> None:
        self._arrived.append((self.submitted, Failed(error)))
        self.submitted += 1

    def take(self, ordered: bool) -> list[tuple[int, Any]]:
        """Numbers and results (or Failed) that have arrived: all, or those whose turn it is."""
        taken: list[tuple[int, Any]] = []
        while self._arrived:
            number, result = self._arrived.popleft()
            self._ready[number] = result
            self.failed += isinstance(result, Failed)
        if ordered:
            while self._next in self._ready:
                taken.append((self._next, self._ready.pop(self._next)))
                self._next += 1
        else:
            taken.extend(self._ready.items())
            self._ready.clear()
        self.handed_out += len(taken)
        return taken

    # --- called when outcomes come in ---------------------------------------------------------

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        """A task has ended."""
        try:
            error: PenstockError | None = error_of(task, outcome)
            if error is not None:
                result: Any = Failed(error)
            elif outcome.blobs:
                result = Unread(outcome)
            else:
                result = self._caller.codec.unpack(outcome.result)
        except PenstockError as unreadable:
            result = Failed(unreadable)
        self._arrived.append((self._numbers.pop(task), result))
        return True

    def opened(self, result: Unread, large: Sequence[Buffer]) -> Any:
        """A large result, now that it was read."""
        return self._caller.codec.unpack(result.outcome.result, large)

    def settled(self) -> None:
        """All of a reply is in."""
        self.wake()

    def fail(self, task: bytes, error: PenstockError) -> None:
        """No outcome will come."""
        self._arrived.append((self._numbers.pop(task), Failed(error)))
        self.wake()

    def fail_all(self, parcel: Parcel, error: PenstockError) -> None:
        """A bundle was not sent: its items have no results."""
        for task in parcel.tasks:
            self.fail(task, error)
