"""Fragments into objects: opens, changes and finishes them by calling the user's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.consumers.calls import Calls, ErrorPolicy, RefusedError
from penstock.consumers.fragments import NEVER_US, Fragment, Rows
from penstock.consumers.objects import FOREVER_US, OpenObject, OpenObjects
from penstock.consumers.progress import Ignored, IgnoreList, name_of
from penstock.consumers.stateful import About, Output, Reason, Stateful
from penstock.consumers.steps import Late, Limits, Result, Step
from penstock.errors import LimitError

S = TypeVar("S")


def microseconds(seconds: float | None) -> int | None:
    """Seconds as the unit that times are kept in."""
    return None if seconds is None else round(seconds * 1_000_000)


class Folding(Generic[S]):
    """Applies fragments in the order in which they are given, and timers between them.

    `position` is the offset before which everything has been read when an object is finished;
    `watermark_us` the time up to which nothing more is in time. `muted`: this has been read before,
    so late fragments and dead letters are not told again.
    """

    def __init__(
        self, stateful: Stateful[S], partition: int, policy: ErrorPolicy, limits: Limits
    ) -> None:
        completion = stateful.completion
        self.stateful = stateful
        self.eager = completion.delay == 0  # ends and fragments count as soon as they come
        self.timeout_us = microseconds(completion.timeout)
        self.objects: OpenObjects[S] = OpenObjects(self.timeout_us)
        self.ignore = IgnoreList()
        self.position = 0
        self.watermark_us = NEVER_US
        self.muted = False
        self.step = Step()
        self.state_bytes = 0
        self._by_key = self.objects.by_key
        self._open, self._on_message = stateful.open, stateful.on_message
        self._marker = completion.marker
        self._count = completion.count
        self._period_us = microseconds(completion.period)
        self._reopens = completion.late == "reopen"
        self._keeps_late = completion.late == "side"
        self._partition = partition
        self._limits = limits
        self._checks_each = self._count is not None or limits.state_bytes is not None
        self._calls = Calls(partition, policy)

    # --- fragments -------------------------------------------------------------------------

    def fold(self, rows: Rows) -> None:
        """Applies rows by time, and each timer after what is not later than it."""
        dues, fire, apply = self.objects.dues, self.fire, self.apply
        for fragment, high_us in rows.fragments():
            if dues and dues[0][0] < fragment.time_us:
                fire(fragment.time_us - 1)
            apply(fragment, high_us)

    def fold_eagerly(self, rows: Rows, behind: list[bool], lag_us: int) -> None:
        """Applies rows as they came; `behind` says which are behind the watermark."""
        dues = self.objects.dues
        for (fragment, high_us), is_behind in zip(rows.fragments(), behind, strict=True):
            self.position = fragment.offset
            if is_behind:
                self.watermark_us = max(self.watermark_us, high_us - lag_us)
                self.fire(self.watermark_us)  # on a replay, rows that moved it may be left out
                self.position = fragment.offset + 1
                self.take_behind(fragment, high_us)
                continue
            if dues and dues[0][0] < fragment.time_us:
                self.fire(fragment.time_us - 1)
            self.position = fragment.offset + 1
            self.apply(fragment, high_us)

    def apply(self, fragment: Fragment, high_us: int) -> None:
        """Adds a fragment to the open object of its key, or opens one."""
        key, _, time_us, offset = fragment
        found = self._by_key.get(key)
        try:
            state = self._open(key) if found is None else found.state
            changed = self._on_message(state, fragment)
            ended = self._marker is not None and self._marker(fragment)
        except Exception as error:
            try:
                state, changed, ended = self._try_again(error, fragment, found)
            except RefusedError as refused:
                self._put_aside(refused)
                return
        if found is None:
            found = self.place(key, state, time_us, offset)
        if changed is not None:
            found.state = changed
        found.add(time_us, offset)
        if found.unsaved is None or offset < found.unsaved:
            self.objects.unsaved(found, offset, high_us)
        if ended or self._checks_each:
            self._check(found, ended)
        elif found.queued_us == FOREVER_US:  # a timer that is set already is only put off
            self.objects.queue(found)

    def _try_again(
        self, error: Exception, fragment: Fragment, found: OpenObject[S] | None
    ) -> tuple[S, S | None, bool]:
        def attempt() -> tuple[S, S | None, bool]:
            state = self._open(fragment.key) if found is None else found.state
            changed = self._on_message(state, fragment)
            return state, changed, self._marker is not None and self._marker(fragment)

        key, offset = fragment.key, fragment.offset
        return self._calls.again(error, attempt, "on_message", key, offset, fragment)

    def place(self, key: bytes, state: S, time_us: int, offset: int) -> OpenObject[S]:
        """A new open object; LimitError if there are too many."""
        if len(self.objects) >= self._limits.open_objects:
            raise LimitError(
                f"{self._limits.open_objects:,} objects of partition {self._partition} are open",
                advice="Raise the limit, shorten the timeout, or use more partitions.",
            )
        found = OpenObject(key, state, time_us, offset)
        if self._period_us is not None:
            found.tick_us = time_us + self._period_us
        self.objects.by_key[key] = found
        return found

    def _check(self, found: OpenObject[S], ended: bool) -> None:
        self.measure(found)
        if ended and self.eager:
            self.finish(found, "end")
            return
        if ended:
            found.end_us = found.last_us
        if found.count == self._count:
            self.finish(found, "count")
        else:
            self.objects.queue(found)

    def measure(self, found: OpenObject[S]) -> None:
        """Counts the bytes of a state that has changed; LimitError if all take too many."""
        if self._limits.state_bytes is None:
            return
        size = self.stateful.size(found.state)
        self.state_bytes += size - found.size
        found.size = size
        if self.state_bytes > self._limits.state_bytes:
            raise LimitError(
                f"the open objects of partition {self._partition} take {self.state_bytes:,} bytes",
                advice="Raise the limit, shorten the timeout, or keep less in each object.",
            )

    def give_up(self, goes: Callable[[bytes], bool]) -> None:
        """Forgets the open objects of keys that are another's."""
        for found in [found for found in self.objects if goes(found.key)]:
            self.objects.remove(found)
            self.state_bytes -= found.size

    # --- behind the watermark --------------------------------------------------------------

    def take_behind(self, fragment: Fragment, high_us: int) -> None:
        """A fragment that is not in time: for an object that is still open, or late."""
        found = self.objects.by_key.get(fragment.key)
        if found is not None and self._within(found, fragment):
            self.apply(fragment, high_us)
        elif not self._reopens:
            self._too_late(fragment)
        elif found is None:
            self.apply(fragment, high_us)
        else:
            self._alone(fragment, high_us, found)
        self.fire(self.watermark_us)

    def _within(self, found: OpenObject[S], fragment: Fragment) -> bool:
        if fragment.time_us >= found.first_us:
            return True
        if not self._reopens or self._ends(fragment):
            return False
        return self.timeout_us is None or fragment.time_us >= found.first_us - self.timeout_us

    def _ends(self, fragment: Fragment) -> bool:
        try:
            return self._marker is not None and self._marker(fragment)
        except Exception:
            return False  # `apply` meets the same error, and deals with it

    def _too_late(self, fragment: Fragment) -> None:
        if self.muted:
            return
        self.step.late_count += 1
        if self._keeps_late:
            self.step.late.append(Late(fragment, self.watermark_us))

    def _alone(self, fragment: Fragment, high_us: int, later: OpenObject[S]) -> None:
        """An object that is over with its first fragment, while a later one of the key is open."""
        objects = self.objects
        was_changed = fragment.key in objects.changed
        del objects.by_key[fragment.key]
        self.apply(fragment, high_us)
        alone = objects.by_key.get(fragment.key)
        if alone is not None:
            self.finish(alone, "timeout" if alone.end_us is None else "end")
        objects.by_key[fragment.key] = later
        if was_changed:
            objects.changed.add(fragment.key)

    # --- timers ----------------------------------------------------------------------------

    def fire(self, limit_us: int) -> None:
        """Fires every timer up to a time, by time and key."""
        while (due := self.objects.next_due(limit_us)) is not None:
            due_us, found = due
            if due_us == self.objects.over_us(found):
                self.finish(found, "timeout" if found.end_us is None else "end")
            else:
                self._tick(found, due_us)

    def _tick(self, found: OpenObject[S], due_us: int) -> None:
        assert self._period_us is not None
        found.tick_us = due_us + self._period_us
        try:
            changed = self.stateful.on_timer(found.state)
        except Exception as error:
            try:
                changed = self._calls.again(
                    error,
                    lambda: self.stateful.on_timer(found.state),
                    "on_timer",
                    found.key,
                    found.last_offset,
                )
            except RefusedError as refused:
                self._put_aside(refused)
                changed = None
        if changed is not None:
            found.state = changed
        self.measure(found)
        self.objects.changed.add(found.key)
        self.objects.queue(found)

    # --- the end of an object --------------------------------------------------------------

    def finish(self, found: OpenObject[S], reason: Reason) -> None:
        """The object is over, and its results go to the step."""
        self.deliver(found, self.retire(found, reason, self.position))

    def retire(self, found: OpenObject[S], reason: Reason, position: int) -> About:
        """The object is over; its fragments, all read before `position`, are not read again."""
        self.objects.remove(found)
        self.state_bytes -= found.size
        # At a count the rest of the same instant is left for the next object.
        last_offset = found.tail_offset if reason == "count" else position - 1
        self.ignore.add(name_of(found.key), Ignored(position, found.last_us, last_offset))
        return About(
            self._partition, found.key, reason, found.count,
            found.first_us, found.last_us, found.first_offset, found.last_offset,
        )  # fmt: skip

    def deliver(self, found: OpenObject[S], about: About) -> None:
        """Puts the results of a retired object into the step."""
        try:
            outputs = self._results(found, about)
        except RefusedError as refused:
            self.step.dead.append(refused.letter)
            return
        self.step.results.extend(outputs)

    def _results(self, found: OpenObject[S], about: About) -> list[Result]:
        def make() -> list[Result]:
            outputs = self.stateful.finish(found.state, about)
            return [
                Result(each.key, each.value, about, number, each.to)
                if isinstance(each, Output)
                else Result(found.key, each, about, number)
                for number, each in enumerate(outputs)
            ]

        try:
            return make()
        except Exception as error:
            return self._calls.again(error, make, "finish", found.key, found.last_offset)

    def _put_aside(self, refused: RefusedError) -> None:
        if not self.muted:
            self.step.dead.append(refused.letter)
