"""What a member does with one claim: start, stop, renew, hand over, release, offer."""

from __future__ import annotations

from penstock.consumers import claim_events as e
from penstock.consumers.holdings import Holding, Holdings, Phase
from penstock.consumers.looks import NEVER_US, Looks
from penstock.consumers.moves import Moves
from penstock.consumers.rules import Rules


class Keeper:
    """The claims of a member, with all that is noted of them. Collects actions for `Claims`."""

    def __init__(self, rules: Rules, looks: Looks) -> None:
        self.holdings = Holdings()
        self.moves = Moves()
        self.offered: dict[int, str] = {}  # given up for somebody who was not seen to have it yet
        self.actions: list[e.Action] = []
        self.renew_us = NEVER_US
        self._rules = rules
        self._looks = looks

    # --- getting and keeping ---------------------------------------------------------------

    def granted(self, event: e.Granted, now_us: int) -> bool:
        """A claim was granted; False if that was said before, or the claim is over by now."""
        partition, token = event.partition, event.token
        held = self.holdings.get(partition)
        if self.holdings.is_over(partition, token) or (held and held.token >= token):
            return False
        if held is not None:
            self.stop(held, "claimed anew", now_us)
        self.offered.pop(partition, None)
        held = self.holdings.add(partition, token, self._until_us(event.asked_us))
        self.moves.note(now_us, partition, "claimed", f"token {token}")
        self.start(held, now_us)
        return True

    def found(self, partition: int, token: int, now_us: int) -> None:
        """A claim of this member's whose answer is lost: it is renewed before it is processed."""
        self.holdings.add(partition, token, now_us)
        self.moves.note(now_us, partition, "found", f"token {token}")
        self.renew_us = now_us

    def renewed(self, event: e.Renewed, now_us: int) -> None:
        """Claims last again. Those that stood still because they were not renewed go on."""
        for held in self.holdings.renewed(event.claims, self._until_us(event.asked_us)):
            if held.phase is Phase.HELD and not held.running:
                self.start(held, now_us)

    def renew(self, now_us: int) -> None:
        """Renews everything, if it is time."""
        if now_us < self.renew_us:
            return
        claims = self.holdings.renewable()
        if not claims:
            self.renew_us = NEVER_US
            return
        self.actions.append(e.Renew(claims, self._rules.lease_us, now_us))
        spare_us = self._rules.renew_us // 4
        self.renew_us = now_us + self._rules.renew_us - self._looks.jitter(spare_us)

    def start(self, held: Holding, now_us: int) -> None:
        """Processes it, or renews it first if that may be over."""
        if now_us < held.until_us:
            self.holdings.run(held)
            self.actions.append(e.Start(held.partition, held.token))
            self.renew_us = min(self.renew_us, now_us + self._rules.renew_us)
        else:
            self.renew_us = now_us

    def stop(self, held: Holding, why: str, now_us: int) -> None:
        """Does not process it any more."""
        if held.running:
            held.running = False
            self.actions.append(e.Stop(held.partition, held.token, why))
            self.moves.note(now_us, held.partition, "stopped", why)

    def lapse(self, now_us: int) -> None:
        """Stops what may be another's by now."""
        over = self.holdings.lapsed(now_us)
        for held in over:
            self.stop(held, "its lease may be over", now_us)
        if over:
            self._looks.soon(now_us)

    def lose(self, held: Holding, why: str, now_us: int) -> None:
        """It is not this member's any more."""
        self.stop(held, why, now_us)
        self.holdings.drop(held.partition)
        self.moves.note(now_us, held.partition, "lost", why)

    def _until_us(self, asked_us: int) -> int:
        return asked_us + self._rules.lease_us - self._rules.margin_us

    # --- giving ----------------------------------------------------------------------------

    def hand_over(self, held: Holding, heir: str, now_us: int) -> None:
        """Stops it, and begins to give it to another member."""
        self.stop(held, f"goes to {heir}", now_us)
        self.holdings.enter(held, Phase.MOVING, now_us, heir)
        self.actions.append(e.HandOver(held.partition, held.token, heir))

    def call_off(self, held: Holding, now_us: int) -> None:
        """Keeps what was being handed over to somebody who is gone."""
        self.moves.note(now_us, held.partition, "kept", f"{held.heir} is gone")
        self.holdings.enter(held, Phase.HELD, now_us, "")
        self.start(held, now_us)

    def release(self, held: Holding, heir: str, why: str, now_us: int) -> None:
        """Gives it up, for somebody or for whoever takes it."""
        self.stop(held, why, now_us)
        self.holdings.enter(held, Phase.RELEASING, now_us, heir)
        self._send_release(held, why, now_us)

    def expire(self, now_us: int) -> None:
        """Does not wait for slow hand-overs, and repeats releases that got no answer."""
        for held in list(self.holdings.moving.values()):
            if now_us < held.since_us + self._rules.handover_us:
                break
            why = f"for {held.heir}, who did not take it over in time"
            self.release(held, held.heir, why, now_us)
        for held in list(self.holdings.releasing.values()):
            if now_us >= held.resend_us:
                self._send_release(held, "no answer", now_us)

    def gone(self, held: Holding, now_us: int) -> None:
        """Nobody has it now; for whom it was given up is told."""
        self.stop(held, "nobody has it", now_us)
        self.holdings.drop(held.partition)
        if held.heir:
            self.offer(held.partition, held.heir)
            self._looks.check(now_us)

    def offer(self, partition: int, heir: str) -> None:
        """Tells a member that something is free for it."""
        self.offered[partition] = heir
        self.actions.append(e.Offer(partition, heir))

    def _send_release(self, held: Holding, why: str, now_us: int) -> None:
        # Never taken for done without an answer: to the others it would be this member's for ever.
        waited_us = now_us - held.since_us
        wait_us = max(self._rules.answer_us, min(waited_us, self._rules.lease_us))
        held.resend_us = now_us + wait_us
        self.actions.append(e.Release(held.partition, held.token, why))
        self.moves.note(now_us, held.partition, "released", why)

    @property
    def wake_us(self) -> int:
        """When something of this is due: `lapse`, `renew` or `expire`."""
        holdings = self.holdings
        wakes = [self.renew_us, holdings.lapse_us]
        for held in holdings.moving.values():
            wakes.append(held.since_us + self._rules.handover_us)
            break  # the one that began first
        wakes += [held.resend_us for held in holdings.releasing.values()]
        return min(wakes)
