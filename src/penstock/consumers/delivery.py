"""From the steps of one partition to results that are delivered, and a position that is committed,
in the order, or the unity, that the guarantee asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.consumers.outlets import Record, Source, record_of
from penstock.consumers.progress import Progress
from penstock.consumers.settings import MAX_COMMIT_RESULTS
from penstock.consumers.shared import HaltError, Shared, log, wall_us
from penstock.consumers.states import VERSION, ChunksRef, Lineage, Skip, State
from penstock.consumers.steps import Late, Result, Step
from penstock.errors import PenstockError

COMMIT_BYTES = 4 << 20  # of results, in one transaction


class Seed(NamedTuple):
    """Where a child of a partition that is split begins, and what is known there of its keys."""

    partition: int
    offset: int
    state: bytes


class Delivery:
    """What a partition's worker has made and not yet delivered, or not yet committed.

    `base` is the progress that is committed; of what is made from there on, `skip` is delivered.
    """

    def __init__(
        self, shared: Shared, partition: int, token: int, base: Progress, skip: Skip,
        lineage: Lineage,
    ) -> None:  # fmt: skip
        self._shared = shared
        self._partition = partition
        self._token = token
        self.base = base
        self._skip = skip
        self.lineage = self._base_lineage = lineage
        self._again = skip  # of that, so many have still to be made again
        self._waiting: dict[type[Source], list[Source]] = {}
        self.count = 0
        self.bytes = 0
        self.state_bytes = 0

    def collect(self, step: Step) -> None:
        """Takes in what a step led to, but for what has been delivered before."""
        counts, places = self._shared.counts, self._shared.places
        counts.late += step.late_count
        counts.dead += len(step.dead)
        again = self._again
        results = step.results[again.results :]
        late = step.late[again.late :] if places.late is not None else []
        dead = step.dead[again.dead :] if places.dead is not None else []
        self._again = Skip(
            max(0, again.results - len(step.results)),
            max(0, again.late - len(step.late)),
            max(0, again.dead - len(step.dead)),
        )
        counts.results += len(results)
        for found in (results, late, dead):
            for source in found:
                self._waiting.setdefault(type(source), []).append(source)
                self.count += 1
                self.bytes += 64 + len(source.value if isinstance(source, Result) else b"")

    @property
    def full(self) -> bool:
        """Whether it is time to commit, for what has come together."""
        return self.count >= self._shared.settings.commit_results or self.bytes >= COMMIT_BYTES

    def time_moved(self, next_offset: int, high_us: int) -> None:
        """The clock has moved time on right after `base` was committed: who goes on from there must
        make the same of it before it skips anything."""
        base = self.base
        if base.offset == base.through:
            self.base = base._replace(high_us=high_us)
        else:
            before = tuple(each for each in base.advances if each[0] != next_offset)
            self.base = base._replace(advances=(*before, (next_offset, high_us)))

    # --- delivering --------------------------------------------------------------------------

    async def deliver(self) -> None:
        """Delivers all; safe when it returns. HaltError, and all still waits, if the claim may be
        over."""
        if self.count and not self._shared.may_deliver(self._partition, self._token):
            raise HaltError(f"the claim on partition {self._partition} may be over")
        for outlet, part in self._shared.places.route(self._take()):
            await outlet.deliver(part)

    def _take(self) -> list[Record]:
        waiting, self._waiting = self._waiting, {}
        self.count = self.bytes = 0
        kinds = sorted(waiting, key=lambda kind: kind is not Result)
        return [record_of(each, self._partition) for kind in kinds for each in waiting[kind]]

    # --- committing --------------------------------------------------------------------------

    async def commit(
        self, progress: Progress, dump: bytes = b"", chunks: ChunksRef | None = None,
        heir: str = "", stopped_us: int = 0, seeds: Sequence[Seed] = (),
    ) -> None:  # fmt: skip
        """Commits a progress, and delivers what waits before, after or with it. Both are safe when
        it returns; after an error it is not known how far it came. `seeds` are committed with it,
        or not at all."""
        state = State(
            VERSION, self._shared.me, wall_us(), progress.encode(), self._again, dump, chunks,
            heir, stopped_us, self.lineage,
        )  # fmt: skip
        guarantee = self._shared.settings.guarantee
        if guarantee == "exactly-once":
            await self._commit_at_once(progress, state, seeds)
        elif guarantee == "at-least-once":
            await self.deliver()
            await self._transact([], progress, state, seeds)
        else:
            await self._transact([], progress, state, seeds)
            await self._deliver_or_lose()
        self.base, self._skip, self._base_lineage = progress, self._again, self.lineage
        self._shared.counts.commits += 1

    async def _deliver_or_lose(self) -> None:
        try:
            await self.deliver()
        except (PenstockError, HaltError) as error:  # at most once: they may be there, so not again
            self._shared.counts.failures += 1
            log.warning("results of partition %d are lost: %s", self._partition, error)

    async def _commit_at_once(
        self, progress: Progress, state: State, seeds: Sequence[Seed]
    ) -> None:
        """One transaction. More than fits into one goes before it, with the position as it was and
        a note of how much of what follows that is delivered."""
        parts = list(_parts(self._take())) or [[]]
        for part in parts[:-1]:
            self._skip = _added(self._skip, part)
            told = State(
                VERSION, self._shared.me, wall_us(), self.base.encode(), self._skip,
                lineage=self._base_lineage,
            )  # fmt: skip
            await self._transact(part, self.base, told)
        await self._transact(parts[-1], progress, state, seeds)

    async def _transact(
        self, records: list[Record], progress: Progress, state: State, seeds: Sequence[Seed] = ()
    ) -> None:
        packed = state.encode()
        self.state_bytes = len(packed)
        transaction = self._shared.fabric.transaction()
        transaction.commit_offset(
            self._shared.topic, self._shared.settings.group, self._partition, progress.through,
            self._token, packed,
        )  # fmt: skip
        for seed in seeds:
            transaction.commit_offset(
                self._shared.topic, self._shared.settings.group, seed.partition, seed.offset,
                state=seed.state,
            )  # fmt: skip
        for outlet, part in self._shared.places.route(records):
            outlet.add(transaction, part)
        await transaction.commit()


def _parts(records: list[Record]) -> Iterator[list[Record]]:
    """The records in parts that a transaction can take."""
    part: list[Record] = []
    size = 0
    for record in records:
        if part and (len(part) >= MAX_COMMIT_RESULTS or size + record.size > COMMIT_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += record.size
    if part:
        yield part


def _added(skip: Skip, records: list[Record]) -> Skip:
    results = sum(isinstance(each.source, Result) for each in records)
    late = sum(isinstance(each.source, Late) for each in records)
    return Skip(
        skip.results + results, skip.late + late, skip.dead + len(records) - results - late
    )
