"""Reservations: messages of a queue that one reader has as its own, as often as it wants to read
them, until it says that it is done, or an operator has them back.

A client first has messages leased in the shards that it can reach (`Reserve`), then has the home of
its key decide that these are the reservation (`SealReservation`). What was leased and is not sealed
within an hour, because the client is gone, comes back by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.books import RESERVED_US, TENTATIVE_US, Book
from penstock.core.changes import Change, Given, Op, pack_changes
from penstock.core.effects import Deliver, Slice
from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.leases import Grant
from penstock.core.outbox import EndReserved, KeepReserved
from penstock.core.publishing import check_key
from penstock.core.queue import QueueShard
from penstock.core.queue_rules import check_pop, is_out_of_tries
from penstock.core.queues import Queues
from penstock.core.records import (
    BooksForgotten,
    Forward,
    Kind,
    ReservationRefused,
    ReservationSealed,
    ReservationsEnded,
    Reserved,
    pack_forward,
    pack_note,
)
from penstock.core.runs import Run
from penstock.core.shard import Shard
from penstock.core.slices import slice_of
from penstock.core.staging import Stages
from penstock.core.views import MAX_POP_BYTES
from penstock.errors import ConflictError, InvalidError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Flag, Verb

MAX_MESSAGES = 1_000_000  # of a reservation, on one node
MAX_BYTES = 4 << 30
MAX_GRANTS = 10_000  # of one record


class Reservations:
    """The reservations of a node: the leases of its shards, and the books whose home it is."""

    def __init__(
        self, kernel: Kernel, queues: Queues, forwards: Forwards, stages: Stages
    ) -> None:
        self.kernel = kernel
        self.queues = queues
        self.forwards = forwards
        self.stages = stages
        self.tentative_us = TENTATIVE_US
        forwards.carriers[KeepReserved] = self._keep
        forwards.carriers[EndReserved] = self._end

    # --- the side of the messages ----------------------------------------------------------

    def reserve(self, call: m.Reserve) -> tuple[list[m.ReservedPart], Entry]:
        """Leases messages for a reservation, or finds those that are leased for it already."""
        self.stages.check_level()
        check_key(call.key, call.number)
        check_pop(self.kernel.stream(call.stream, "queue").options)
        if not 0 < call.messages <= MAX_MESSAGES or not 0 < call.max_bytes <= MAX_BYTES:
            raise InvalidError(f"a reservation has 1 to {MAX_MESSAGES:,} messages on a node")
        view = self.queues.view(call.stream)
        held = [q for q in view.shards.values() if q.leases.reserved.of(call.key, call.number)]
        if not held:
            now_us = self.kernel.now_us
            taken = view.take(call.messages, call.max_bytes, self.tentative_us, now_us)
            for number, given in taken.by_shard().items():
                self._log_reserved(self.kernel.shards[number], call, given)
                held.append(view.shards[number])
        for queue in held:
            self.queues.arrived(queue)
        parts = [_part(queue, grants_of(queue, call.key, call.number)) for queue in held]
        return parts, self.kernel.barrier(self.forwards.level)

    def _log_reserved(self, shard: Shard, call: m.Reserve, given: list[Given]) -> None:
        """Logs grants that are given already."""
        reserved = shard.queues[call.stream].leases.reserved
        reserved.add(call.key, call.number, [each.number for each in given])
        for first in range(0, len(given), MAX_GRANTS):
            note = Reserved(
                call.stream, call.key, call.number, given[first : first + MAX_GRANTS]
            )
            self.kernel.log(shard, Kind.NOTE, pack_note(note), self.forwards.level)

    def read(self, connection: int, request: int, call: m.ReadReserved) -> None:
        """Answers with messages of a reservation, those after a place in it."""
        self.kernel.stream(call.stream, "queue")
        if not 0 <= call.shard < len(self.kernel.shards):
            raise InvalidError(f"shard {call.shard}: there are {len(self.kernel.shards)}")
        shard = self.kernel.served(call.shard)
        queue = shard.queues.get(call.stream)
        grants = [] if queue is None else grants_of(queue, call.key, call.number)
        if queue is None or not grants:
            raise NotFoundError(
                f"shard {shard.id} has nothing of reservation {call.number} of {call.key!r}",
                advice="It is finished, was released by an operator, or was never sealed.",
            )
        room = min(call.max_bytes or MAX_POP_BYTES, MAX_POP_BYTES)
        slices = _slices(queue, grants, (call.grant, call.position), room)
        merges = connection in self.queues.merging
        effect = Deliver(connection, Verb.CALL, request, Flag.RESPONSE, slices, merges)
        entry = self.kernel.confirmation([shard])
        if entry is None:
            self.kernel.effects.append(effect)
        else:
            self.kernel.answer_when_safe(
                entry, connection, Verb.CALL, request,
                lambda: self.kernel.effects.append(effect),
            )  # fmt: skip

    def _keep(self, part: KeepReserved, shard: Shard, forward: Forward) -> Entry | None:
        changes = [
            Change(Op.EXTEND, grant.span, grant.number, grant.position, RESERVED_US)
            for grant in self._grants(part, shard)
        ]
        return self._change(part, shard, forward, changes)

    def _end(self, part: EndReserved, shard: Shard, forward: Forward) -> Entry | None:
        queue, changes = shard.queues.get(part.stream), []
        for grant in self._grants(part, shard):
            assert queue is not None
            back = Op.DEAD if is_out_of_tries(queue, grant) else Op.EXPIRE
            op = Op.ACK if part.acked else back
            changes.append(Change(op, grant.span, grant.number, grant.position))
        return self._change(part, shard, forward, changes)

    def _grants(self, part: KeepReserved | EndReserved, shard: Shard) -> list[Grant]:
        queue = shard.queues.get(part.stream)
        return [] if queue is None else grants_of(queue, part.key, part.number)

    def _change(
        self, part: KeepReserved | EndReserved, shard: Shard, forward: Forward,
        changes: list[Change],
    ) -> Entry | None:  # fmt: skip
        """Folds and logs changes of grants; None if there are none."""
        if not changes:
            return None
        queue = shard.queues[part.stream]
        for change in changes:
            queue.changed(change, self.kernel.now_us)
        meta = pack_forward(forward, pack_changes(part.stream, changes))
        entry = self.kernel.log(
            shard, Kind.CHANGE | Kind.FORWARDED, meta, self.forwards.level
        )
        self.queues.arrived(queue)
        return entry

    # --- the home's side -------------------------------------------------------------------

    def seal(self, call: m.SealReservation) -> tuple[m.Reservation | None, Entry]:
        """Decides what a reservation is, unless that is decided; the reservation. What was leased
        for it and is not part of it goes back."""
        self.stages.check_level()
        home, book = self._book(call.stream, call.key, call.number)
        offered = [part.shard for part in call.parts or ()]
        if len(set(offered)) != len(offered):
            raise InvalidError("a reservation names each of its shards once")
        if not set(offered) <= set(range(len(self.kernel.shards))):
            raise InvalidError(f"there are {len(self.kernel.shards)} shards")
        try:
            known = book.find(call.number)
        except ConflictError:
            self._refuse(home, call, offered)
            raise
        if known is not None:
            held = {part.shard for part in known.parts}
            self._refuse(home, call, [shard for shard in offered if shard not in held])
        if known is not None or call.parts is None:
            return known, self._unsafe(home)
        if not call.parts:
            raise InvalidError("a reservation of nothing cannot be sealed")
        home.books.has_room(call.stream, call.key)
        home.outbox.has_room()
        now_us = self.kernel.now_us
        if idle := home.books.idle(now_us):
            self.kernel.note(home, BooksForgotten(idle), Durability.WRITTEN)
        note = ReservationSealed(call.stream, call.key, call.number, now_us, call.parts)
        entry = self.forwards.bring(home, self.kernel.note(home, note, self.forwards.level))
        return m.Reservation(call.key, call.number, call.parts, now_us), entry

    def _refuse(self, home: Shard, call: m.SealReservation, shards: list[int]) -> None:
        """Has shards told that they leased messages for nothing. By the outbox: whatever really was
        of the reservation has ended before that arrives."""
        if shards:
            home.outbox.has_room()
            note = ReservationRefused(call.stream, call.key, call.number, shards)
            self.forwards.bring(home, self.kernel.note(home, note, self.forwards.level))

    def finish(self, call: m.FinishReservations) -> tuple[int, Entry]:
        """Acknowledges reservations up to a number; how many messages they have."""
        home, book = self._book(call.stream, call.key, call.through)
        if call.through <= book.through:
            return 0, self._unsafe(home)
        home.books.has_room(call.stream, call.key)
        numbers = sorted(number for number in book.open if number <= call.through)
        return self._ended(home, book, call.stream, call.key, numbers, call.through, True)

    def unreserve(self, call: m.Unreserve) -> tuple[int, Entry]:
        """Gives back what reservations hold; how many messages they have."""
        home, book = self._book(call.stream, call.key, 0)
        wanted = book.open if call.numbers is None else call.numbers
        numbers = sorted(number for number in set(wanted) if number in book.open)
        if not numbers:
            return 0, self._unsafe(home)
        return self._ended(home, book, call.stream, call.key, numbers, book.through, False)

    def _ended(
        self, home: Shard, book: Book, stream: int, key: str, numbers: list[int], through: int,
        acked: bool,
    ) -> tuple[int, Entry]:  # fmt: skip
        self.stages.check_level()
        home.outbox.has_room()
        messages = sum(book.open[number].messages for number in numbers)
        note = ReservationsEnded(stream, key, numbers, through, acked, self.kernel.now_us)
        logged = self.kernel.note(home, note, self.forwards.level)
        return messages, self.forwards.bring(home, logged)

    def _book(self, stream: int, key: str, number: int) -> tuple[Shard, Book]:
        check_key(key, number)
        self.kernel.stream(stream, "queue")
        home = self.kernel.shard_of(key.encode())
        return home, home.books.find(stream, key)

    def _unsafe(self, home: Shard) -> Entry:
        """What to wait for before anybody hears what a home knows."""
        if self.kernel.shared:
            return self.kernel.shard_barrier(home, Durability.REPLICATED)
        return self.kernel.barrier(Durability.SYNCED)

    def open(self, call: m.Reservations) -> list[m.Reservation]:
        """All open reservations of a queue whose home this node serves."""
        self.kernel.stream(call.stream, "queue")
        found = [
            reservation
            for shard in self.kernel.shards
            if shard.owned
            for (stream, _), book in shard.books.books.items()
            if stream == call.stream
            for reservation in book.open.values()
        ]
        return sorted(found, key=lambda each: (each.key, each.number))


def grants_of(queue: QueueShard, key: str, number: int) -> list[Grant]:
    """The grants of a reservation, in order."""
    grants = queue.leases.grants
    return [grants[each] for each in queue.leases.reserved.of(key, number)]


def _runs(queue: QueueShard, grants: Iterable[Grant]) -> Iterable[tuple[int, Run]]:
    """The runs of grants, each part of one batch, with the grant's number."""
    for grant in grants:
        index = queue.lane_of(grant.position).index
        for position, mask in index.parts(grant.position, grant.mask):
            yield grant.number, Run(position, mask, grant.deliveries)


def _part(queue: QueueShard, grants: list[Grant]) -> m.ReservedPart:
    messages = size = 0
    for _, run in _runs(queue, grants):
        stored = queue.find(run.position)
        messages += run.messages
        size += 0 if stored is None else stored.length * run.messages // stored.rows
    return m.ReservedPart(queue.shard, messages, size)


def _slices(
    queue: QueueShard, grants: list[Grant], after: tuple[int, int], room: int
) -> list[Slice]:
    """What comes after a grant's position, at most so many bytes, but one batch in any case."""
    slices: list[Slice] = []
    for number, run in _runs(queue, (each for each in grants if each.number >= after[0])):
        if (number, run.position) < after:
            continue
        part = slice_of(queue, run, number)
        if part is None:
            continue
        if slices and part.length > room:
            break
        slices.append(part)
        room -= part.length
    return slices
