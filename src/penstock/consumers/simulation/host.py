"""One member's process: the production state machine, its own clock, and a line to the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.consumers import claim_events as e
from penstock.consumers.claims import Claims
from penstock.consumers.membership import Drain, Member
from penstock.sim.world import Event

if TYPE_CHECKING:
    from penstock.consumers.simulation.group import Group

WORK_US = 1_000_000  # between commits of a member
REGISTER_US = 1_000_000  # between attempts
HANDOVER_US = 40_000  # typical, for the state of one partition


class Host:
    """A member. It can be paused, when its timers and messages wait, and crashed."""

    def __init__(self, group: Group, member: Member) -> None:
        self.group = group
        self.world = group.world
        self.member = member
        self.claims = Claims(member.id, group.rules)
        self.running: dict[int, int] = {}  # what it processes, and under which token
        self.up = True
        self.paused = False
        self.stops: set[int] = set()  # what it stopped, since the group cleared this
        self._rate = 1 + self.world.random.uniform(-group.drift, group.drift)
        self._offset_us = self.world.between(0, 1 << 40)
        self._began_us = self.world.now_us
        self._inbox: list[e.Event] = []
        self._wake: Event | None = None
        self._wake_us = 0
        self._register()
        self._beat()
        self.world.after(self.world.between(0, WORK_US), self._work)
        self.take(e.Tick())

    @property
    def clock_us(self) -> int:
        """The member's own clock: it began anywhere, and runs a little fast or slow."""
        return self._offset_us + int((self.world.now_us - self._began_us) * self._rate)

    def processes(self, partition: int) -> bool:
        """Whether it would process this now, if it is not paused."""
        return self.up and self.claims.may_process(partition, self.clock_us)

    # --- life ------------------------------------------------------------------------------

    def take(self, event: e.Event) -> None:
        """Something happens to it."""
        if not self.up:
            return
        if self.paused:
            self._inbox.append(event)
            return
        for action in self.claims.handle(event, self.clock_us):
            self._do(action)
        self._sleep()

    def pause(self) -> None:
        """It stands still, in the middle of its work."""
        self.paused = True

    def resume(self) -> None:
        """It goes on where it was: with the commits that it was about to send."""
        if not self.up or not self.paused:
            return
        self.paused = False
        self._commit(list(self.running.items()))
        inbox, self._inbox = self._inbox, []
        for event in (*inbox, e.Tick()):
            self.take(event)

    def crash(self) -> None:
        """It is gone, and tells nobody."""
        self.up = False
        self.running.clear()

    def amend(self, member: Member) -> None:
        """Its entry in the table becomes another."""
        self.member = member
        self._register()

    def drain(self, period_us: int) -> None:
        """It leaves little by little."""
        self.amend(replace(self.member, drain=Drain(self.world.now_us, period_us)))

    def _sleep(self) -> None:
        wake_us = self.claims.wake_us
        if self._wake is not None:
            if self._wake.action is not None and self._wake_us == wake_us:
                return
            self._wake.cancel()
        self._wake_us = wake_us
        delay_us = int((wake_us - self.clock_us) / self._rate) + 1
        self._wake = self.world.after(delay_us, self._tick)

    def _tick(self) -> None:
        self._wake = None
        self.take(e.Tick())

    def _beat(self) -> None:
        if self.up:
            if not self.paused:
                self.group.send(lambda: self.group.node.beat(self.member.id))
            self.world.after(self.group.session_us // 4, self._beat)

    def _work(self) -> None:
        if not self.up:
            return
        if not self.paused:
            now_us = self.clock_us
            done = [
                (number, token)
                for number, token in self.running.items()
                if self.claims.may_process(number, now_us)
            ]
            self.group.check_work(self, done)
            self._commit(done)
        self.world.after(WORK_US, self._work)

    def _commit(self, claims: list[tuple[int, int]]) -> None:
        if claims:
            self.group.send(lambda: self.group.node.commit(self.member.id, claims))

    # --- actions ---------------------------------------------------------------------------

    def _do(self, action: e.Action) -> None:
        group = self.group
        group.counted[type(action).__name__] += 1
        match action:
            case e.Start(partition, token):
                self.running[partition] = token
                group.started(partition)
            case e.Stop(partition):
                self.running.pop(partition, None)
                self.stops.add(partition)
                group.stopped(self, partition)
            case e.Look(asked_us):
                self._ask(lambda: self._look(asked_us))
            case e.Claim(partition, lease_us, asked_us):
                self._ask(lambda: self._claim(partition, lease_us, asked_us))
            case e.Renew(claims, lease_us, asked_us):
                self._ask(lambda: self._renew(claims, lease_us, asked_us))
            case e.Release(partition, token):
                self._ask(lambda: self._release(partition, token))
            case e.HandOver(partition, token, to):
                self._hand_over(partition, token, to)
            case e.Offer(partition, to):
                group.tell(to, e.Offered((partition,), self.member.id))
            case e.Nudge(to):
                group.tell(to, e.Nudged(self.member.id))
            case e.Join():
                self._register()
            case e.Left():
                self.up = False
                group.send(lambda: group.node.remove(self.member.id))

    def _register(self) -> None:
        """Until it is there."""
        session = self.group.node.sessions.get(self.member.id)
        if self.up and (session is None or session.member != self.member):
            if not self.paused:
                self.group.send(lambda: self.group.node.register(self.member))
            self.world.after(REGISTER_US, self._register)

    def _ask(self, call: Callable[[], list[e.Event]]) -> None:
        """A call to the node; what it answers comes back as events. Both ways may fail."""

        def arrive() -> None:
            for event in call():
                self.group.send(partial(self.take, event))

        self.group.send(arrive)

    def _look(self, asked_us: int) -> list[e.Event]:
        self.group.node.calls["look"] += 1
        look = self.group.look(asked_us)
        if self.world.chance(self.group.weather.loss):  # one of several nodes does not answer
            turn = self.world.between(0, 3)
            told = {number: claim for number, claim in look.claims.items() if number % 4 != turn}
            look = replace(look, claims=told)
        return [look]

    def _claim(self, partition: int, lease_us: int, asked_us: int) -> list[e.Event]:
        token, owner = self.group.node.claim(partition, self.member.id, lease_us)
        if token:
            return [e.Granted(partition, token, asked_us)]
        return [e.Refused(partition, owner, asked_us)]

    def _renew(
        self, claims: tuple[tuple[int, int], ...], lease_us: int, asked_us: int
    ) -> list[e.Event]:
        renewed, refused = self.group.node.renew(self.member.id, claims, lease_us)
        answers: list[e.Event] = []
        if renewed:
            answers.append(e.Renewed(tuple(renewed), asked_us))
        if refused:
            answers.append(e.RenewalRefused(tuple(refused)))
        return answers

    def _release(self, partition: int, token: int) -> list[e.Event]:
        self.group.node.release(partition, token)
        return [e.Released(partition, token)]

    def _hand_over(self, partition: int, token: int, to: str) -> None:
        """The state goes straight to the next owner, which says that it has it, if it runs."""

        def arrive() -> None:
            heir = self.group.hosts.get(to)
            if heir is not None and heir.up and not heir.paused:
                self.group.send(lambda: self.take(e.HandedOver(partition, token)))

        delay_us = self.world.latency(HANDOVER_US)
        self.world.after(delay_us, lambda: self.group.send(arrive))
