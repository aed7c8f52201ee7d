"""Settling leased messages: acks are collected, joined into runs, and sent by the shell.

What a message costs is one append to a list; everything else is done once per flush.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock.client.messages import LeasedMessage, Refusal
from penstock.client.requests import Pending, Request, Resend
from penstock.client.settle_items import ack_items
from penstock.client.steps import Finish, Start, Steps
from penstock.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    LimitError,
    PenstockError,
    ProtocolError,
    TooLargeError,
    from_code,
)
from penstock.wire.buffers import Buffer
from penstock.wire.frames import (
    COUNT,
    FRAME_BYTES,
    REFUSED,
    Flag,
    SettleItem,
    Verb,
    pack_settle,
)

if TYPE_CHECKING:
    pass

log = logging.getLogger("penstock.client")

FLUSH_AT = 4000  # acks that wait, before they are sent: of many grants, some for each
_MAX_ITEMS = 8192  # of one request
_MOST_FENCES = 1000  # asked for one flush, while others have not sent what they have taken
_MAX_NOTICES = 10_000  # refusals kept for the callback; the count goes on

_PASSING = (LimitError, DeadlineError, TooLargeError)  # after these, others can still be sent


class SettleRequest(Request):
    """One SETTLE; `refusals` is filled when the answer has come."""

    __slots__ = (
        "_settler", "becomes", "fence", "gave_back", "items", "others", "refusals",
        "refused_items", "taken",
    )  # fmt: skip

    def __init__(self, settler: Settler, items: list[SettleItem], fence: bool = False) -> None:
        """`fence`: messages that were leased before come before the answer; in a cluster it goes to
        all nodes."""
        super().__init__(Verb.SETTLE, [pack_settle(settler.stream, items)], Resend.MARKED)
        self.flags = int(Flag.BEHIND) if fence else 0
        self._settler = settler
        self.becomes: list[SettleRequest] = []  # of one that only stands for others
        self.fence = fence
        self.others = 0  # so many of the first items are not of the call that sends it
        self.taken = False  # by a connection, which sees to it from then on
        self.gave_back = False  # it was not sent: what others have left waits for the next flush
        self.items = items
        self.refusals: list[Refusal] = []
        self.refused_items: list[SettleItem] = []  # in the same order

    @property
    def stream(self) -> int:
        """The queue."""
        return self._settler.stream

    def parts(self) -> list[Buffer]:
        """The body; from now on the answer is waited for."""
        self.taken = True
        self._settler.outstanding.add(self)
        return super().parts()

    @property
    def is_open(self) -> bool:
        """Whether it, or what it stands for, is not answered yet."""
        outstanding = self._settler.outstanding
        return self in outstanding or any(each in outstanding for each in self.becomes)

    @property
    def is_back(self) -> bool:
        """Whether something of it, or of what it stands for, waits for the next flush again."""
        return self.gave_back or any(each.gave_back for each in self.becomes)

    def not_sent(self, error: BaseException) -> None:
        """It never will be. What others have left to be sent waits for the next flush again, or
        counts as refused if nothing will be sent any more."""
        others = [] if self.taken else self.items[: self.others]
        if others and isinstance(error, PenstockError) and not isinstance(error, _PASSING):
            self.items = others
            self.refused(error)
        elif others:
            self._settler.keep(others)
            self.gave_back = True
        self._settler.outstanding.discard(self)

    def answered(self, answer: bytearray) -> None:
        """Reads which items were refused."""
        self._settler.outstanding.discard(self)
        body = memoryview(answer)[FRAME_BYTES:]
        if len(body) < COUNT.size:
            raise ProtocolError("the answer to a settlement is too short")
        refused = COUNT.unpack_from(body)[1]
        if not refused:
            return
        rows = body[COUNT.size :]
        if len(rows) != refused * REFUSED.size:
            raise ProtocolError("the answer to a settlement does not hold its refusals")
        for index, code in REFUSED.iter_unpack(rows):
            if index >= len(self.items):
                raise ProtocolError("the node refused a settlement that was not asked for")
            self._refuse(self.items[index], from_code(code, "the settlement was refused"))
        self._settler.note(self.refusals)

    def refused(self, error: PenstockError) -> None:
        """The request failed as a whole."""
        self._settler.outstanding.discard(self)
        for item in self.items:
            self._refuse(item, error)
        self._settler.note(self.refusals)

    def _refuse(self, item: SettleItem, error: PenstockError) -> None:
        self.refusals.append(Refusal(item.shard, item.position, item.messages, error))
        self.refused_items.append(item)


_settlers: WeakSet[Settler] = WeakSet()  # all: a fork does not ask which were used


class Settler:
    """The settlements of one queue that wait to be sent, and what became of them.

    The shell sets `send` (start a request, do not wait for the answer), `run` (perform steps) and
    `attend` (see to it that `flush` is called in a while).
    """

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.acks: list[LeasedMessage] = []  # always the same list: messages append to it
        self.attended = False  # somebody will flush; set by `attend`
        self.refused = 0
        self.outstanding: set[SettleRequest] = set()  # taken to be sent, and not answered yet
        self.on_refused: Callable[[Refusal], None] | None = None
        self.send: Callable[[SettleRequest], object] = _not_connected
        self.run: Callable[[Steps[None]], Any] = _not_run
        self.attend: Callable[[Settler], None] = _not_attended
        self._items: list[SettleItem] = []  # whole runs, waiting
        self._notices: deque[Refusal] = deque(maxlen=_MAX_NOTICES)
        self._taking = threading.RLock()  # a loop that is collected as garbage drains, too
        self._warned = False
        self._gone: ClosedError | None = None  # why nothing can be settled here any more
        _settlers.add(self)

    @property
    def waiting(self) -> bool:
        """Whether there is something to flush."""
        return bool(self.acks or self._items)

    @property
    def busy(self) -> bool:
        """Whether something waits to be sent or to be answered."""
        return self.waiting or bool(self.outstanding)

    def due(self) -> None:
        """An ack was added: sends all if there are many, else has somebody do it in a while.
        ClosedError if there is nobody any more."""
        self._check_here()
        if len(self.acks) >= FLUSH_AT:
            self.flush()
        elif not self.attended:
            self.attend(self)
            self._check_attended()

    def add(self, items: list[SettleItem]) -> None:
        """Settlements of whole runs; sends all if there are many. ClosedError as `due`."""
        self.keep(items)
        self._check_attended()
        if len(self._items) >= FLUSH_AT:
            self.flush()

    def _check_attended(self) -> None:
        if not self.attended:  # whoever attends may be about to leave, and has not: ask again
            self.attend(self)
        if not self.attended:
            self.outstanding.difference_update(self.drain())
            raise ClosedError("the fabric is closed, and its messages are still leased")

    def keep(self, items: list[SettleItem]) -> None:
        """Settlements to be sent with the next flush. Sends nothing itself. ClosedError in a
        process that was forked."""
        self._check_here()
        with self._taking:
            self._items += items
        if not self.attended:
            self.attend(self)

    def flush(self) -> None:
        """Sends what waits, without waiting for answers; tells of refusals that have come.

        What cannot be sent counts as refused, and the reason is raised.
        """
        self._send_waiting()
        self.notify()

    def flush_unheard(self) -> None:
        """As `flush`, where nobody would hear of an error: what cannot be sent is only told of as
        refused, and what `on_refused` raises is logged."""
        with suppress(PenstockError):  # counted as refused
            self._send_waiting()
        while self._notices and self.on_refused is not None:
            try:
                self.notify()
            except Exception:  # the program's: it is told of the others all the same
                log.exception("`on_refused` of a queue has failed, and acks go on")

    def _send_waiting(self) -> None:
        requests = self.drain() if self.waiting else []
        for at, request in enumerate(requests):
            request.flags = Flag.PATIENT
            try:
                self.send(request)
            except PenstockError as error:
                for unsent in requests[at:]:
                    unsent.refused(error)
                raise
            except BaseException as error:  # an interrupt
                for unsent in requests[at:]:
                    unsent.not_sent(error)
                raise

    def forked(self, reason: ClosedError) -> None:
        """This is another process: what waits is its parent's, and sent there. Whoever settles
        something here hears the reason."""
        self._gone = reason
        self.attended = False  # so that the very next ack is told
        self.acks.clear()
        self._items = []
        self.outstanding.clear()

    def _check_here(self) -> None:
        # Before the lock is taken: a thread that is not here may have held it at the fork.
        if self._gone is not None:
            self.acks.clear()
            raise self._gone

    def drain(self, more: Iterable[SettleItem] = ()) -> list[SettleRequest]:
        """Everything that waits, and `more`, as requests that the caller must send. They count as
        outstanding at once: another thread may ask whether all is committed. ClosedError as `keep`.
        """
        self._check_here()
        taken = SettleRequest(self, [])  # stands for all of them until they are made
        with self._taking:
            acks, items = self.acks[:], self._items
            del self.acks[: len(acks)]
            self._items = []
            self.outstanding.add(taken)
        try:
            waited = [*ack_items(acks), *items]
            everything, others = [*waited, *more], len(waited)
            starts = range(0, len(everything), _MAX_ITEMS)
            requests = [SettleRequest(self, everything[at : at + _MAX_ITEMS]) for at in starts]
            for at, request in zip(starts, requests, strict=True):
                request.others = min(max(others - at, 0), len(request.items))
            taken.becomes = requests
            self.outstanding.update(requests)
        finally:
            self.outstanding.discard(taken)
        return requests

    def note(self, refusals: list[Refusal]) -> None:
        """Counts refusals; the callback hears of them at the next `notify`."""
        self.refused += sum(refusal.count for refusal in refusals)
        if self.on_refused is not None:
            self._notices.extend(refusals)
        elif refusals and not self._warned:
            self._warned = True
            log.warning(
                "an ack was refused, and this is said once: %s The message is delivered again. "
                "`refused` of the queue counts such acks, `on_refused` hears of each, and "
                "`ack(wait=True)` raises it.", refusals[0].error,
            )  # fmt: skip

    def notify(self) -> None:
        """Calls `on_refused`. Never while an answer is read: the callback may use the fabric."""
        while (tell := self.on_refused) is not None:
            try:
                refusal = self._notices.popleft()
            except IndexError:  # not looked at before: another thread may take the last one
                return
            tell(refusal)


def settlers_of(attend: Callable[[Settler], None]) -> list[Settler]:
    """All that rely on it, also those that it was never asked to attend."""
    return [settler for settler in _settlers if settler.attend == attend]


def flush_settler(settler: Settler) -> Steps[None]:
    """Sends what waits, and waits until everything sent is committed; refusals are counted."""
    for _ in range(_MOST_FENCES):
        wanted = yield from _flushed(settler)
        if not any(request.is_back for request in wanted):
            break
    settler.notify()


def _flushed(settler: Settler) -> Steps[list[SettleRequest]]:
    """What was waited for; of that, other calls may have given back what they could not send."""
    requests = settler.drain()
    wanted = list(settler.outstanding)  # those that another thread is about to send as well
    for last in requests[-1:]:
        last.fence = True  # its answer comes after those of all before it
    yield from _committed(requests)
    for _ in range(_MOST_FENCES):  # of one commit, those that nobody waited for are answered last
        if not any(request.is_open for request in wanted):
            break
        yield from _committed([SettleRequest(settler, [])])
    return wanted


def started(requests: list[SettleRequest]) -> Steps[list[Pending]]:
    """Sends them all. If that fails, nobody waits for the rest, and what others have left in it is
    sent with the next flush."""
    pendings: list[Pending] = []
    try:
        for request in requests:
            pending: Pending = yield Start(request)
            pendings.append(pending)
    except BaseException as error:
        for rest in requests[len(pendings) :]:
            rest.not_sent(error)
        raise
    return pendings


def _committed(requests: list[SettleRequest]) -> Steps[None]:
    for pending in (yield from started(requests)):
        yield Finish(pending)


def settle(settler: Settler, items: list[SettleItem], *, fence: bool = False) -> Steps[None]:
    """Sends what waits and these items, and waits until they are committed.

    LeaseLostError or another ConflictError if one of `items` was refused. `fence`: asks the node
    even if there is nothing to settle, for the sake of all that it sends before the answer.
    """
    for _, error in (yield from refused_of(settler, items, fence=fence)):
        raise error


def refused_of(
    settler: Settler, items: list[SettleItem], *, fence: bool = False
) -> Steps[list[tuple[SettleItem, PenstockError]]]:
    """As `settle`, but tells which of the items were refused, and why."""
    starts = range(0, len(items) or int(fence), _MAX_ITEMS)
    requests = [SettleRequest(settler, items[at : at + _MAX_ITEMS], fence) for at in starts]
    yield from _committed([*settler.drain(), *requests])
    settler.notify()
    return [
        (item, refusal.error)
        for request in requests
        for item, refusal in zip(request.refused_items, request.refusals, strict=True)
    ]


def give_back(settler: Settler, items: list[SettleItem], *, fence: bool = False) -> Steps[None]:
    """As `settle`, for messages that nobody has seen: that a lease has run out is no error then."""
    with suppress(ConflictError):
        yield from settle(settler, items, fence=fence)


def _not_connected(request: SettleRequest) -> None:
    raise AssertionError("the shell has not connected this queue")


def _not_run(steps: Steps[None]) -> Any:
    raise AssertionError("the shell has not connected this queue")


def _not_attended(settler: Settler) -> None:
    raise AssertionError("the shell has not connected this queue")
