"""One queue in one shard: which messages are ready, leased, delayed, held, dead.

Positions carry the priority in their top byte (15 - priority), so that the lowest position is the
highest priority and, within it, the oldest. State changes only in `stored`, `granted` and
`changed`: the same three fold the log after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from penstock.core.changes import Change, Given, Op
from penstock.core.dedupe import IdWindow
from penstock.core.gang_line import GangLine
from penstock.core.holds import Holds, came
from penstock.core.index import Singles, Stored
from penstock.core.lanes import LANE_SHIFT, Lane, lane_start
from penstock.core.leases import Grant, Leases
from penstock.core.lost import Lost
from penstock.core.runs import Run, bits_of, full, rows_of, run_of
from penstock.core.waiting import Delayed, KeyQueues, Returned
from penstock.wire.batch import Header
from penstock.wire.limits import MAX_PRIORITY
from penstock.wire.messages import QueueOptions

# Plain numbers: looking up a member of an enum costs more than comparing it.
_ACK, _EXTEND, _EXPIRE = int(Op.ACK), int(Op.EXTEND), int(Op.EXPIRE)
SPARE_TTLS = 1000  # times-to-live of finished batches: so many are not worth a look
Places = list[tuple[int, int]]  # locations of records, and bytes of each


@dataclass(slots=True)
class Totals:
    """Figures of one stream over all shards of the node, and where freed bytes are reported."""

    free: Callable[[Places], None]
    messages: int = 0  # not finished
    bytes: int = 0
    pushed: int = 0  # messages that came to parts of a queue which are forgotten by now
    coming: int = 0  # messages that are accepted and not visible yet

    def stored(self, messages: int, size: int) -> None:
        """A batch is there."""
        self.messages += messages
        self.bytes += size

    def finished(self, messages: int, freed: Places) -> int:
        """Messages are finished, and so are their bytes: how many those are."""
        size = freed[0][1] if len(freed) == 1 else sum([size for _, size in freed])
        self.messages -= messages
        self.bytes -= size
        self.free(freed)
        return size


class QueueShard:
    """The state machine of one queue in one shard."""

    def __init__(
        self, shard: int, stream: int, options: QueueOptions, totals: Totals, origin: int = 0,
        first_grant: int = 1,
    ) -> None:  # fmt: skip
        """`origin` is where positions start: above all that were used here before."""
        self.shard = shard
        self.origin = origin
        self.touched_us = 0  # when something last happened here
        self.stream = stream
        self.options = options
        self.lanes: dict[int, Lane] = {}
        self.gangs = GangLine() if options.gangs else None
        self.returned = Returned() if self.gangs is None else self.gangs
        self.delayed = Delayed()
        self.held: dict[bytes, Run] = {}
        self.coming: set[bytes] = set()  # ids of messages to be held that are not committed yet
        self._held_at: dict[int, bytes] = {}  # position: id
        self.holds = Holds()  # of those, the ones that wait for entries of tables
        self.dead: dict[int, Run] = {}
        self.leases = Leases(first_grant)
        self.ids = IdWindow()
        self.keys = KeyQueues() if options.ordered == "key" else None
        self.totals = totals
        self.kept_messages = 0  # its part of the totals
        self.kept_bytes = 0
        self.pushed = 0  # messages that ever came, since the node started
        self.damage = Lost()
        self.ttl: list[tuple[int, int]] = []  # (expires, base of a batch)

    # --- what is there ---------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Messages that a pop could get now."""
        return self.returned.messages + sum(lane.fresh for lane in self.lanes.values())

    @property
    def messages(self) -> int:
        """All messages that are not finished, dead letters aside."""
        return self.ready + self.leases.messages + self.delayed.messages + len(self.held)

    @property
    def empty(self) -> bool:
        """Nothing is left to keep: the state may be forgotten once nobody resends anything."""
        if self.messages or self.dead or len(self.holds):
            return False
        return not (len(self.ids) or self._accepted_not_visible())

    def _accepted_not_visible(self) -> bool:
        return any(lane.tail != lane.end for lane in self.lanes.values())

    def lane(self, priority: int) -> Lane:
        """The lane of a priority; made when first used."""
        start = lane_start(priority)
        lane = self.lanes.get(start)
        if lane is None:
            first = start + self.origin
            lane = self.lanes[start] = Lane(first, first, first)
            self.lanes = dict(sorted(self.lanes.items()))
        return lane

    def lane_of(self, position: int) -> Lane:
        """The lane that a position belongs to."""
        return self.lanes[position >> LANE_SHIFT << LANE_SHIFT]

    def lane_at(self, position: int) -> Lane | None:
        """The same, or None if there is none."""
        return self.lanes.get(position >> LANE_SHIFT << LANE_SHIFT)

    def find(self, position: int) -> Stored | None:
        """The stored batch that holds a position, if any of it is live."""
        lane = self.lane_at(position)
        return None if lane is None else lane.index.find(position)

    def head(self) -> tuple[int, int] | None:
        """Lane and arrival time of the first ready message: what a pop compares shards by."""
        position = self.first_ready()
        return None if position is None else self.rank(position)

    def rank(self, position: int) -> tuple[int, int]:
        """What decides who is first: the lane (its priority), then the time of arrival."""
        return position >> LANE_SHIFT, self.lane_of(position).index.arrived_at(position)

    def waiting(self, messages: int) -> list[Run]:
        """The first runs that a pop would get, each part of one batch, in no strict order: so many
        messages of each priority, as far as there are."""
        runs = sorted(self.returned.runs.values(), key=lambda run: run.position)[:messages]
        for lane in self.lanes.values():
            if lane.fresh:
                runs += lane.waiting(messages)
        return runs

    def first_ready(self) -> int | None:
        """The position of the message that the next pop gets."""
        if self.gangs is not None:
            return None  # they are granted to parked workers
        if self.options.ordered == "queue" and (self.leases.grants or self.delayed.runs):
            return None
        first = self.returned.head()
        for lane in self.lanes.values():
            if lane.fresh:
                lane.pass_skips()
                return lane.cursor if first is None else min(first, lane.cursor)
        return first

    def singles(self) -> Singles | None:
        """A walk over what the next pops get, if that is fresh and in batches of one message; only
        where leases of neighbours are independent of each other."""
        if self.options.ordered != "no":
            return None
        first = self.returned.head()
        for lane in self.lanes.values():
            if lane.fresh:
                lane.pass_skips()
                if first is not None and first < lane.cursor:
                    return None
                return lane.index.singles(lane.cursor, first, lane.skips)
        return None

    # --- fold ------------------------------------------------------------------------------

    def stored(
        self,
        header: Header,
        location: int,
        length: int,
        keys: list[bytes | None] | None,
        held: bytes | None,
    ) -> None:
        """A batch is committed in this record: its messages exist from now on."""
        lane, base, count = self.lane(header.priority), header.base, header.count
        arrived = header.arrived_us
        lane.index.append(base, count, location, length, arrived)
        lane.grow(base, count)
        self.keep(count, length)
        if arrived > self.touched_us:
            self.touched_us = arrived
        due_us = arrived - header.due_us if header.due_us < 0 else header.due_us
        if ttl_ms := header.ttl_ms or self.options.ttl_ms:
            heappush(self.ttl, (arrived + ttl_ms * 1000, base))
            batches = sum(len(each.index) for each in self.lanes.values())
            if len(self.ttl) > 2 * batches + SPARE_TTLS:
                self._sort_ttls()
        if self.gangs is not None:
            self.gangs.came(base, header.members)
        if held is not None:
            lane.set_aside(base, count)
            self.coming.discard(held)
            self.hold(held, Run(base, full(count)))
            came(self, held)
        elif self.keys is not None:
            lane.set_aside(base, count)
            self._store_keyed(base, keys or [None] * count)
        elif due_us > arrived:
            lane.set_aside(base, count)
            self.delayed.add(Run(base, full(count)), due_us)
        elif self.gangs is not None:
            lane.set_aside(base, count)
            self.gangs.add(Run(base, full(count)))
        else:
            if not lane.fresh:
                lane.set_aside(base, 0)
            lane.fresh += count

    def keep(self, messages: int, size: int) -> None:
        """Messages are there, and count."""
        self.totals.stored(messages, size)
        self.pushed += messages
        self.kept_messages += messages
        self.kept_bytes += size

    def grown(self, size: int) -> None:
        """What is kept takes so many bytes more where it lies now, or less."""
        self.totals.bytes += size
        self.kept_bytes += size

    def hold(self, key: bytes, run: Run) -> None:
        """Messages wait until they are released by their id."""
        self.held[key] = run
        self._held_at[run.position] = key

    def unheld(self, key: bytes, finished: bool = False) -> None:
        """A held message is ready, or finished; if it is damaged, there is nothing to be done."""
        run = self.held.pop(key, None)
        if run is None:
            return
        del self._held_at[run.position]
        if finished:
            self.finish(run)
        else:
            self.returned.add(run)

    def waits_at(self, position: int) -> bytes | None:
        """The id of the message at a position, if it waits for entries of tables."""
        key = self._held_at.get(position)
        return None if self.holds.get(key) is None else key

    def _sort_ttls(self) -> None:
        """Leaves out those of batches that are finished: what is consumed in a moment may have been
        pushed to live for years."""
        self.ttl = sorted(item for item in self.ttl if self.find(item[1]) is not None)

    def lost(self, base: int, count: int) -> None:
        """A batch is damaged: its positions are used, its messages are given to nobody."""
        lane = self.lane(MAX_PRIORITY - (base >> LANE_SHIFT))
        lane.grow(base, count)
        lane.set_aside(base, count)
        self.damage.add(base, count)

    def _store_keyed(self, base: int, keys: list[bytes | None]) -> None:
        assert self.keys is not None
        for position, key in enumerate(keys, base):
            if self.keys.add(position, key):
                self.returned.add(Run(position, 1))

    def _redrive_keyed(self, keys: KeyQueues, position: int) -> None:
        """A younger message that is ready makes way, unless somebody had it already."""
        first = keys.first_of(position)
        waiting = None if first is None or first < position else self.returned.runs.get(first)
        passes = first is None or (waiting is not None and not waiting.deliveries)
        keys.redrive(position, passes)
        if waiting is not None and passes:
            self.returned.remove(waiting.position)
        if passes:
            self.returned.add(Run(position, 1))

    def granted(self, given: Given, now_us: int) -> Grant:
        """Messages are leased: taken from wherever they wait."""
        if now_us > self.touched_us:
            self.touched_us = now_us
        run = self._take(given.position, given.span)
        return self.leases.give(given.number, run, given.lease_us, now_us)

    def _take(self, position: int, span: int) -> Run:
        for waiting in (self.returned, self.delayed):
            run = waiting.remove(position)
            if run is not None:
                taken = Run(position, run.mask & full(span), run.deliveries)
                rest = run_of(position + span, run.mask >> span, run.deliveries)
                if rest is not None:
                    self.returned.add(rest)
                return taken
        lane = self.lane_of(position)
        lane.pass_skips()
        run = Run(position, full(span))
        if self.damage and (lost := self.damage.among(position, span)):
            rest = run_of(position, full(span) & ~lost, 0)
            assert rest is not None, "a grant of lost messages"
            run = rest
        assert position + span <= lane.end, "a grant of messages that are not there"
        assert run.position == lane.cursor, "a fresh message out of turn"
        lane.cursor = position + span
        lane.fresh -= run.messages
        return run

    def changed(self, change: Change, now_us: int) -> None:
        """One change from the log, or one just decided."""
        op = change.op
        if now_us > self.touched_us:
            self.touched_us = now_us
        if op == _EXTEND:
            self.leases.extend(self.leases.grants[change.grant], change.arg, now_us)
        elif op <= _EXPIRE or op == Op.RETURN:
            self._settle(change, now_us)
        elif op == Op.DROP:
            self._drop(change.position, change.span)
        elif op == Op.PURGE:
            self._purge(change.position)
        elif op == Op.RELEASE:
            self._release(change.position)
        else:
            run = self.dead.pop(change.position)
            if op == Op.BURY:
                self.finish(run)
            elif self.keys is None:
                self.returned.add(Run(run.position, run.mask))
            else:
                self._redrive_keyed(self.keys, run.position)

    def _release(self, position: int) -> None:
        key = self._held_at.get(position)
        if key is not None:
            self.holds.drop(key)
            self.unheld(key)
        elif (run := self.delayed.remove(position)) is not None:  # it may be due by itself by now
            self.returned.add(run)

    def _settle(self, change: Change, now_us: int) -> None:
        op, span, number, position, _, mask = change
        grant = self.leases.grants[number]
        bits = bits_of(position, span, mask, grant.position)
        bits = self.leases.settle(grant, bits, op == _ACK)
        run = run_of(grant.position, bits, grant.deliveries)
        if run is None:
            return
        if op == _ACK:
            self.finish(run)
            return
        for position, mask in self.lane_of(run.position).index.parts(run.position, run.mask):
            part = Run(position, mask, run.deliveries - (change.op == Op.RETURN))
            if change.op == Op.DEAD:
                self._bury(part)
            elif change.op in (Op.NACK, Op.RETURN) and change.arg:
                self.delayed.add(part, now_us + change.arg)
            else:
                self.returned.add(part)

    def _bury(self, run: Run) -> None:
        self.dead[run.position] = run
        if self.keys is not None:
            self._next_of_key(run, self.keys.bury)

    def finish(self, run: Run) -> None:
        """Messages are over; they must not wait anywhere any more."""
        messages = run.messages
        freed = self.lane_of(run.position).index.finish_run(run.position, run.mask, messages)
        self.kept_messages -= messages
        self.kept_bytes -= self.totals.finished(messages, freed)
        if self.keys is not None:
            self._next_of_key(run, self.keys.finish)
        if self.gangs is not None:
            self.gangs.finished(run.position)

    def _next_of_key(self, run: Run, leave: Callable[[int], int | None]) -> None:
        for row in rows_of(run.mask).tolist():
            following = leave(run.position + row)
            if following is not None:
                self.returned.add(Run(following, 1))

    def forget_ttls(self, ended: int = -1) -> None:
        """Forgets those of batches that are finished, and the one that ends now: it does so once,
        for what waits then, and a log that is folded must know that too."""
        while self.ttl and (self.ttl[0][1] == ended or self.find(self.ttl[0][1]) is None):
            heappop(self.ttl)

    def _drop(self, position: int, span: int) -> None:
        self.forget_ttls(position)
        lane = self.lane_of(position)
        for run in self.returned.drop(position, span) + self.delayed.drop(position, span):
            self.finish(run)
        start = max(lane.cursor, position)
        fresh = position + span - start
        if position in lane.skips or fresh <= 0 or position + span > lane.end:
            return
        lane.fresh -= fresh
        self.finish(Run(start, full(fresh)))
        if start == lane.cursor:
            lane.cursor += fresh
        else:
            lane.skips.add(position)

    def _purge(self, end: int) -> None:
        lane = self.lane_of(end - 1)
        start = end - 1 >> LANE_SHIFT << LANE_SHIFT
        if self.keys is not None:
            for position in self.keys.behind():
                if position < end:
                    self.finish(Run(position, 1))
        for run in self.returned.drop(start, end - start) + self.delayed.drop(start, end - start):
            self.finish(run)
        while lane.fresh:
            lane.pass_skips()
            if lane.cursor >= end:  # pushed before, but not visible yet when it was decided
                return
            stored = lane.index.find(lane.cursor)
            assert stored is not None
            span = stored.base + stored.span - lane.cursor
            lane.fresh -= span
            run = Run(lane.cursor, full(span))
            lane.cursor += span
            self.finish(run)
