"""Publishing stages: once for every key and number, all of them or none.

The home is the shard of the key. It has all stages secured in their shards, then one record says
that they are published; the outbox brings that to the shards. Whoever comes with a number that is
not higher than the last hears so, and what it has staged is dropped, by the same outbox: a stage
that is on its way to be published is published before that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import xxhash

from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.publications import Made
from penstock.core.records import PublicationMade, PublicationRefused, PublicationsForgotten
from penstock.core.shard import Shard
from penstock.core.staging import Stages
from penstock.core.tickets import Tickets
from penstock.errors import InvalidError, LimitError, MovedError, PenstockError
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Verb
from penstock.wire.limits import MAX_NAME_BYTES

MAX_STAGES = 10_000  # of one publication, counted once for each shard
MAX_BEHIND = 100  # publications that wait for an earlier one of their key
MAX_WAITING = 10_000  # questions of one node
WAIT_US = 2_000_000  # for the answer

Answered = Callable[[PenstockError | None], None]


class StageQuestion(NamedTuple):
    """What the owner of a shard is asked: to secure stages, or, with `undo`, not to any more."""

    ticket: int
    shard: int
    stages: list[m.StagedPart]
    undo: bool = False


class Publishing:
    """Both sides: the home, and the shards in which stages are secured."""

    def __init__(self, kernel: Kernel, stages: Stages, forwards: Forwards) -> None:
        self.kernel = kernel
        self.stages = stages
        self.forwards = forwards
        self.questions: list[StageQuestion] = []  # for whoever carries them to other nodes
        # By key: what waits behind a publication whose stages are being secured.
        self._behind: dict[str, list[tuple[int, int, m.PublishStaged]]] = {}
        late = MovedError("the owner of a shard of this publication cannot be reached now")
        self.tickets: Tickets[int, PenstockError | None] = Tickets(
            kernel, late, WAIT_US, MAX_WAITING
        )

    # --- the home's side -------------------------------------------------------------------

    def publish(self, connection: int, request: int, call: m.PublishStaged) -> None:
        """Answers with a Publication when it is safe; on an error nothing is published."""
        self.stages.check_level()
        check_key(call.key, call.number)
        shards = [each.shard for each in call.shards]
        known = all(0 <= number < len(self.kernel.shards) for number in shards)
        if not known or len(set(shards)) != len(shards):
            raise InvalidError("a publication names each of its shards once")
        if sum(len(each.stages) for each in call.shards) > MAX_STAGES:
            raise LimitError(f"a publication has {MAX_STAGES:,} parts of stages at most")
        behind = self._behind.get(_name(call))
        if behind is None:
            self._begin(connection, request, call)
        elif len(behind) < MAX_BEHIND:
            behind.append((connection, request, call))
        else:
            raise LimitError(f"{MAX_BEHIND} publications of this key wait already")

    def _begin(self, connection: int, request: int, call: m.PublishStaged) -> None:
        name = _name(call)
        home = self.home(name)
        made = home.publications.keys.get(name)
        if made is not None and call.number <= made.number:
            self._too_late(connection, request, call, home, made)
            return
        home.publications.has_room(name)
        home.outbox.has_room()
        if not self.kernel.shared:
            for each in call.shards:
                self.stages.check_whole(self.kernel.shards[each.shard], each.stages)
            self._record(connection, request, call)
            return
        self.tickets.check_room(len(call.shards))
        self._behind[name] = []  # whoever comes meanwhile must see how this one ends
        self._secure(call.shards, partial(self._secured, connection, request, call))

    def _secure(self, shards: list[m.StagesOf], then: Answered) -> None:
        """Asks for all of them; `then` gets None, or what is wrong with one. Then the others are
        told that it is off, also those that did not answer."""
        waiting = len(shards)
        wrong: PenstockError | None = None

        def answered(error: PenstockError | None) -> None:
            nonlocal waiting, wrong
            waiting -= 1
            wrong = wrong or error
            if not waiting:
                if wrong is not None:
                    self._undo(shards)
                then(wrong)

        for each in shards:
            ticket = self.tickets.add(each.shard, answered)
            self.questions.append(StageQuestion(ticket, each.shard, each.stages))
        if not shards:
            then(None)

    def _undo(self, shards: list[m.StagesOf]) -> None:
        for each in shards:
            self.questions.append(StageQuestion(0, each.shard, each.stages, undo=True))

    def answered(self, ticket: int, error: PenstockError | None) -> None:
        """What the owner of a shard says."""
        self.tickets.answered(ticket, error)

    def _secured(
        self, connection: int, request: int, call: m.PublishStaged, error: PenstockError | None
    ) -> None:
        """All stages will last; or one is gone."""
        try:
            if error is not None:
                raise error
            self._record(connection, request, call)
        except PenstockError as refusal:
            if error is None:
                self._undo(call.shards)
            self.kernel.fail(connection, Verb.CALL, request, refusal)
        for later in self._behind.pop(_name(call)):
            try:
                self.publish(*later)
            except PenstockError as refusal:
                self.kernel.fail(later[0], Verb.CALL, later[1], refusal)

    def _record(self, connection: int, request: int, call: m.PublishStaged) -> None:
        name, now_us = _name(call), self.kernel.now_us
        home = self.home(name)
        if idle := home.publications.idle(now_us):
            self.kernel.note(home, PublicationsForgotten(idle), Durability.WRITTEN)
        note = PublicationMade(name, call.number, _digest(call.shards), now_us, call.shards)
        entry = self.forwards.bring(home, self.kernel.note(home, note, self.forwards.level))
        self._answer(connection, request, entry, m.Publication(call.key, call.number, at_us=now_us))

    def _too_late(
        self, connection: int, request: int, call: m.PublishStaged, home: Shard, made: Made
    ) -> None:
        """A resend is answered like the first; whatever else was staged for it is dropped."""
        same = (call.number, _digest(call.shards)) == (made.number, made.digest)
        outcome = "published" if same else "already"
        if same or not call.shards:
            entry = self._unsafe(home)
        else:
            home.outbox.has_room()
            note = PublicationRefused(call.shards)
            entry = self.forwards.bring(home, self.kernel.note(home, note, self.forwards.level))
        told = m.Publication(call.key, made.number, outcome, made.at_us)
        self._answer(connection, request, entry, told)

    def _unsafe(self, home: Shard) -> Entry:
        if self.kernel.shared:
            return self.kernel.shard_barrier(home, Durability.REPLICATED)
        return self.kernel.barrier(Durability.SYNCED)

    def _answer(
        self, connection: int, request: int, entry: Entry, told: m.Publication
    ) -> None:
        self.kernel.answer_when_safe(
            entry, connection, Verb.CALL, request,
            lambda: self.kernel.answer(connection, Verb.CALL, request, told),
        )  # fmt: skip

    def home(self, name: str) -> Shard:
        """The home of a key, by its name; MovedError if another node serves it."""
        return self.kernel.shard_of(name.encode())

    # --- the side of the stages ------------------------------------------------------------

    def take(self, question: StageQuestion, then: Answered) -> None:
        """Secures stages of a shard that this node serves; `then` is called when that is safe."""
        shard = self.kernel.served(question.shard)
        if question.undo:
            self.stages.unsecure(shard, question.stages)
            return
        refusal: PenstockError | None = None
        try:
            entry = self.stages.secure(shard, question.stages)
        except PenstockError as error:
            # Another node may own the shard by now, and have what is missing here.
            confirmed = self.kernel.confirmation([shard])
            if confirmed is None:
                raise
            entry, refusal = confirmed, error
        entry.answer, entry.failed = lambda: then(refusal), then

    # --- operators -------------------------------------------------------------------------

    def known(self, call: m.Publications) -> list[m.Publication]:
        """All keys of a namespace whose home this node serves."""
        start = m.publication_name(call.namespace, "")
        found = [
            m.Publication(name.removeprefix(start), made.number, at_us=made.at_us)
            for shard in self.kernel.shards
            if shard.owned
            for name, made in shard.publications.keys.items()
            if name.startswith(start)
        ]
        return sorted(found, key=lambda each: each.key)

    def forget(self, call: m.ForgetPublication) -> tuple[bool, Entry]:
        """Forgets a key: its numbers may be used again."""
        name = m.publication_name(call.namespace, call.key)
        home = self.home(name)
        if name not in home.publications.keys:
            return False, self._unsafe(home)
        note = PublicationsForgotten([name])
        return True, self.kernel.note(home, note, self.forwards.level)


def check_key(key: str, number: int) -> None:
    """InvalidError if these cannot name a publication or a reservation."""
    if not 0 < len(key.encode()) <= MAX_NAME_BYTES:
        raise InvalidError(f"a key has 1 to {MAX_NAME_BYTES} bytes")
    if not 0 <= number < 1 << 62:
        raise InvalidError(f"number {number}: use 0 or more")


def _name(call: m.PublishStaged) -> str:
    return m.publication_name(call.namespace, call.key)


def _digest(shards: list[m.StagesOf]) -> int:
    """Of the stages of a publication, whatever the order of its shards."""
    packed = m.pack(sorted(shards, key=lambda each: each.shard))
    return xxhash.xxh3_64_intdigest(packed)
