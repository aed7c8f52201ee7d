"""When a member looks at the group: soon after a change, later and later while it waits for others,
rarely when there is nothing to do. Members look at different moments, by their ids."""

from __future__ import annotations

import xxhash

from penstock.consumers.rules import Rules

NEVER_US = 1 << 62
_LATEST_QUIETS = 10  # changes that do not end put a look off for so many quiet times at most
_MAX_DOUBLINGS = 16
_MANY = 1 << 62  # more than a look can find, so that the first wait is short
_MAX_UNANSWERED = 4  # after that, looks that get no answer do not become rarer


class Looks:
    """Times of looks. One is under way at a time."""

    def __init__(self, me: str, rules: Rules) -> None:
        self._me = me
        self._rules = rules
        self._rolls = 0
        self._doublings = 0
        self._unmet = _MANY
        self._unanswered = 0
        self._changed_us: int | None = None  # the first change that was not looked at
        self._asked_us: int | None = None
        self._due_us = NEVER_US

    def jitter(self, span_us: int) -> int:
        """A time below a span, another one for every member and every time."""
        self._rolls += 1
        return xxhash.xxh64_intdigest(f"{self._me} {self._rolls}".encode()) % max(1, span_us)

    @property
    def wake_us(self) -> int:
        """When `begin` has to be asked again."""
        if self._asked_us is None:
            return self._due_us
        return self._asked_us + self._rules.answer_us

    def begin(self, now_us: int) -> bool:
        """Whether to look now; the look is under way then."""
        if self._asked_us is not None:
            if now_us < self._asked_us + self._rules.answer_us:
                return False
            self._asked_us = None
            self._unanswered = min(self._unanswered + 1, _MAX_UNANSWERED)
            self._wait(now_us, self._unanswered - 1)
        if now_us < self._due_us:
            return False
        self._asked_us, self._changed_us, self._due_us = now_us, None, NEVER_US
        return True

    def answered(self, asked_us: int) -> bool:
        """Whether this answers the look that is under way, which is over then."""
        if asked_us != self._asked_us:
            return False
        self._asked_us, self._unanswered = None, 0
        return True

    def changed(self, now_us: int, members: int) -> None:
        """Membership changed: a look when no more changes come for a while."""
        rules = self._rules
        spread_us = self.jitter(max(rules.quiet_us, members * rules.pace_us))
        if self._changed_us is None:
            self._changed_us, self._unmet = now_us, _MANY
        latest_us = self._changed_us + _LATEST_QUIETS * rules.quiet_us
        self._due_us = min(now_us + rules.quiet_us, latest_us) + spread_us

    def soon(self, now_us: int) -> None:
        """Something is not as it was thought to be."""
        self.by(now_us + self._rules.quiet_us + self.jitter(self._rules.quiet_us))

    def check(self, now_us: int) -> None:
        """Somebody has to do something: a look at whether it did."""
        self._wait(now_us, 0)

    def wait(self, now_us: int, unmet: int) -> None:
        """A look found so much that is not as it should be. The next one comes twice as late as
        the last, if there is no less of it."""
        self._doublings = 0 if unmet < self._unmet else min(self._doublings + 1, _MAX_DOUBLINGS)
        self._unmet = unmet
        self._wait(now_us, self._doublings)

    def _wait(self, now_us: int, doublings: int) -> None:
        wait_us = min(self._rules.check_us << doublings, self._rules.audit_us)
        self.by(now_us + wait_us + self.jitter(wait_us // 2))

    def rest(self, now_us: int) -> None:
        """All is as it should be."""
        self._unmet = _MANY
        self.by(now_us + self._rules.audit_us + self.jitter(self._rules.audit_us // 2))

    def by(self, at_us: int) -> None:
        """A look at that time, if none is due before."""
        self._due_us = min(self._due_us, at_us)
