"""How one member of a group gets its partitions, keeps them, and gives them away.

Each member decides by itself, from what it sees. That two never have the same partition does not
depend on what they see: a node gives a claim to one of them, and its token fences the others. What
members see only decides how soon all is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.consumers import claim_events as e
from penstock.consumers.holdings import Phase
from penstock.consumers.intentions import Intentions, intend
from penstock.consumers.keeping import Keeper
from penstock.consumers.looks import NEVER_US, Looks
from penstock.consumers.rules import Rules


class Claims:
    """The claims of one member on the partitions of one topic for one group.

    A shell gives it events and carries out the actions, in their order; it asks `may_process`
    before it processes a batch, and gives a `Tick` at `wake_us`. It keeps the member's session
    alive only as long as it runs this: a member that does not run must not look like one."""

    def __init__(self, me: str, rules: Rules | None = None) -> None:
        self.me = me
        self.rules = rules or Rules()
        self._looks = Looks(me, self.rules)
        self._keeper = Keeper(self.rules, self._looks)
        self.holdings = self._keeper.holdings
        self.moves = self._keeper.moves
        self.offered = self._keeper.offered
        self.intentions = Intentions()
        self.seen: e.Looked | None = None  # the last look
        self.claiming: dict[int, int] = {}  # partitions, and when the claim was asked for
        self.leaving = False
        self.left = False
        self._begun = False
        self._queue: list[tuple[int, int]] = []  # what is wanted, by time
        self._handlers: dict[type[Any], Callable[[Any, int], None]] = {
            e.Tick: lambda event, now_us: None,
            e.MembersChanged: self._on_members_changed,
            e.Looked: self._on_looked,
            e.Granted: self._on_granted,
            e.Refused: self._on_refused,
            e.Renewed: self._keeper.renewed,
            e.RenewalRefused: self._on_renewal_refused,
            e.HandedOver: self._on_handed_over,
            e.Released: self._on_released,
            e.Offered: self._on_offered,
            e.Nudged: lambda event, now_us: self._looks.soon(now_us),
            e.Leave: self._on_leave,
        }

    def handle(self, event: e.Event, now_us: int) -> list[e.Action]:
        """What follows from an event. `now_us`: the member's own clock, which never goes back.
        After `Left` nothing does; a claim that is granted so late runs out by itself."""
        if self.left:
            return []
        if not self._begun:
            self._begun = True
            self._looks.changed(now_us, 1)
        self._keeper.lapse(now_us)
        self._handlers[type(event)](event, now_us)
        if not self.left:
            self._go_on(now_us)
        actions, self._keeper.actions = self._keeper.actions, []
        return actions

    def may_process(self, partition: int, now_us: int) -> bool:
        """Whether a partition may be processed at this moment: also right after a pause, before
        any event was handled."""
        return self.holdings.may_process(partition, now_us)

    @property
    def wake_us(self) -> int:
        """When a `Tick` is due, if nothing else happens before."""
        if self.left:
            return NEVER_US
        if not self._begun:
            return 0
        oldest_us = next(iter(self.claiming.values()), NEVER_US)  # they are in their order
        wakes = [self._looks.wake_us, self._keeper.wake_us, oldest_us + self.rules.answer_us]
        if self._queue and len(self.claiming) < self.rules.max_calls:
            wakes.append(self._queue[0][0])
        return min(wakes)

    # --- what others say -------------------------------------------------------------------

    def _on_members_changed(self, event: e.MembersChanged, now_us: int) -> None:
        self.intentions.giving.clear()  # what is not begun is thought over
        self._looks.changed(now_us, len(self.seen.members) if self.seen else 1)

    def _on_looked(self, event: e.Looked, now_us: int) -> None:
        if not self._looks.answered(event.asked_us):
            return
        self.seen = event
        self._compare(event, now_us)
        if self.leaving:
            self._looks.rest(now_us)
        elif self.me not in event.members:
            self._intend(Intentions())
            self._keeper.actions.append(e.Join())
            self._looks.check(now_us)
        else:
            self._think(event, now_us)

    def _on_granted(self, event: e.Granted, now_us: int) -> None:
        self.claiming.pop(event.partition, None)
        if self._keeper.granted(event, now_us):
            self.intentions.wanted.pop(event.partition, None)
            self.intentions.awaited.discard(event.partition)
            if self.intentions.plan.owners.get(event.partition) != self.me:
                self._looks.soon(now_us)

    def _on_refused(self, event: e.Refused, now_us: int) -> None:
        if self.claiming.pop(event.partition, None) is None:
            return
        self.moves.note(now_us, event.partition, "refused", f"{event.owner} has it")
        if event.owner == self.me:  # the answer to an earlier claim is lost
            self._looks.soon(now_us)
        else:
            self._looks.check(now_us)

    def _on_renewal_refused(self, event: e.RenewalRefused, now_us: int) -> None:
        for claim in event.claims:
            held = self.holdings.get(*claim)
            if held is not None:
                self._keeper.lose(held, "its renewal was refused", now_us)
                self._looks.soon(now_us)

    def _on_handed_over(self, event: e.HandedOver, now_us: int) -> None:
        held = self.holdings.get(event.partition, event.token)
        if held is not None and held.phase is Phase.MOVING:
            self._keeper.release(held, held.heir, f"for {held.heir}", now_us)

    def _on_released(self, event: e.Released, now_us: int) -> None:
        held = self.holdings.get(event.partition, event.token)
        if held is not None and held.phase is Phase.RELEASING:
            self._keeper.gone(held, now_us)

    def _on_offered(self, event: e.Offered, now_us: int) -> None:
        me = self.seen.members.get(self.me) if self.seen else None
        if self.seen is None or me is None or me.drain is not None or self.leaving:
            return
        for partition in event.partitions:
            if partition in self.holdings or partition in self.claiming:
                continue
            if partition in self.seen.partitions:
                self.intentions.awaited.discard(partition)
                self.intentions.wanted[partition] = now_us
                heappush(self._queue, (now_us, partition))
            if self.intentions.plan.owners.get(partition) != self.me:
                self._looks.soon(now_us)  # one of both knows what the other does not

    def _on_leave(self, event: e.Leave, now_us: int) -> None:
        self.leaving = True
        self._intend(Intentions())

    # --- after a look ----------------------------------------------------------------------

    def _compare(self, look: e.Looked, now_us: int) -> None:
        """What the nodes know better than this member: claims that are over, and own ones whose
        answers are lost. News from before a claim or a release are told by their tokens."""
        for held in self.holdings:
            claim = look.claims.get(held.partition)
            if claim is None or claim.token < held.token:
                continue
            if claim.token > held.token:
                self._keeper.lose(held, f"{claim.owner or 'another'} had it", now_us)
            elif not claim.owner:
                self._keeper.gone(held, now_us)
        for partition, claim in look.claims.items():
            if claim.owner != self.me or partition in self.holdings:
                continue
            if not self.holdings.is_over(partition, claim.token):
                self.claiming.pop(partition, None)
                self._keeper.found(partition, claim.token, now_us)

    def _think(self, look: e.Looked, now_us: int) -> None:
        for held in list(self.holdings.moving.values()):
            if held.heir not in look.members:
                self._keeper.call_off(held, now_us)
        found = intend(self.me, look, self.holdings, self.claiming, self.rules, now_us)
        self._nudge(found.awaited & self.intentions.awaited, look)
        self._intend(found)
        self._offer_again(look)
        self._look_again(look, now_us)
        mine = look.members[self.me]
        busy = len(self.holdings) or self.claiming or self.offered or found.wanted
        if mine.drain is not None and not busy:
            self._leave_group()

    def _intend(self, found: Intentions) -> None:
        self.intentions = found
        self._queue = [(due_us, partition) for partition, due_us in found.wanted.items()]
        heapify(self._queue)

    def _nudge(self, overdue: set[int], look: e.Looked) -> None:
        """Who still has what should have come since the last look may not know of this member."""
        for owner in sorted({look.claims[partition].owner for partition in overdue}):
            self._keeper.actions.append(e.Nudge(owner))

    def _offer_again(self, look: e.Looked) -> None:
        """What was given up and nobody has yet is offered to whom it should go by now."""
        for partition in list(self.offered):
            claim = look.claims.get(partition)
            if claim is None or (claim.owner and self.holdings.is_over(partition, claim.token)):
                continue  # from before it was given up
            heir = self.intentions.plan.owners.get(partition, self.me)
            if claim.owner or heir == self.me:
                del self.offered[partition]
            else:
                self._keeper.offer(partition, heir)

    def _look_again(self, look: e.Looked, now_us: int) -> None:
        found, holdings, drain = self.intentions, self.holdings, look.members[self.me].drain
        own = len(found.giving) + len(holdings.moving) + len(holdings.releasing)
        others = len(found.awaited) + len(found.unknown) + len(self.offered) + len(self.claiming)
        if own or others:
            self._looks.wait(now_us, own + others + len(found.wanted))
        elif found.wanted:
            self._looks.wait(max(found.wanted.values()), len(found.wanted))
        else:
            self._looks.rest(now_us)
        opens_us = self.rules.schedule.opens_in_us(look.wall_us)
        if opens_us:
            self._looks.by(now_us + opens_us + self._looks.jitter(self.rules.check_us))
        left_us = drain.left_us(look.wall_us) if drain is not None else 0
        if left_us:  # until the share has fallen by one, about
            step_us = left_us // max(1, len(holdings))
            self._looks.by(now_us + max(step_us, self.rules.check_us))

    # --- what time brings ------------------------------------------------------------------

    def _go_on(self, now_us: int) -> None:
        for partition, asked_us in list(self.claiming.items()):
            if now_us < asked_us + self.rules.answer_us:
                break
            del self.claiming[partition]
            self._looks.soon(now_us)  # it may be granted
        self._keeper.expire(now_us)
        if self.leaving:
            self._give_everything_up(now_us)
        else:
            self._hand_over(now_us)
            self._claim(now_us)
        self._keeper.renew(now_us)
        if self._looks.begin(now_us):
            self._keeper.actions.append(e.Look(now_us))

    def _hand_over(self, now_us: int) -> None:
        giving, moving = self.intentions.giving, self.holdings.moving
        while giving and len(moving) < self.rules.max_handovers:
            partition = next(iter(giving))
            heir = giving.pop(partition)
            held = self.holdings.get(partition)
            if held is not None and held.phase is Phase.HELD:
                self._keeper.hand_over(held, heir, now_us)

    def _claim(self, now_us: int) -> None:
        wanted = self.intentions.wanted
        while self._queue and len(self.claiming) < self.rules.max_calls:
            due_us, partition = self._queue[0]
            if due_us > now_us:
                return
            heappop(self._queue)
            if wanted.get(partition) == due_us:
                del wanted[partition]
                self.claiming[partition] = now_us
                self._keeper.actions.append(e.Claim(partition, self.rules.lease_us, now_us))

    def _give_everything_up(self, now_us: int) -> None:
        for held in self.holdings:
            if len(self.holdings.releasing) >= self.rules.max_calls:
                return
            if held.phase is not Phase.RELEASING:
                self._keeper.release(held, "", "this member leaves", now_us)
        if not len(self.holdings) and not self.claiming:
            self._leave_group()

    def _leave_group(self) -> None:
        self.left = True
        self._keeper.actions.append(e.Left())
