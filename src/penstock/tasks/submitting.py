"""Single submissions: a future, and the parcel that is sent for it. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from penstock.client.inputs import milliseconds
from penstock.errors import InvalidError
from penstock.tasks.calls import (
    KEEP_S,
    MAX_DELAY_MS,
    Caller,
    CallOptions,
    Form,
    checked_priority,
)
from penstock.tasks.codec import Codec, Parent
from penstock.tasks.dependence import check_policy, dependence_of
from penstock.tasks.envelope import read_call
from penstock.tasks.futures import TaskHandle, TaskRef
from penstock.tasks.gangs.envelope import pack_gang
from penstock.tasks.names import TASK_BYTES, named_task_id
from penstock.tasks.outbox import PLAIN, Parcel, Terms
from penstock.tasks.signatures import check_arguments, check_number
from penstock.wire.limits import MAX_GANG_MEMBERS

F = TypeVar("F", bound=TaskHandle)
Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
NewFuture = Callable[[bytes, Codec, str, bool], F]


class Submitting(Generic[F]):
    """Turns calls into parcels, with futures of one shell's kind. Threads may share it."""

    def __init__(self, caller: Caller, new_future: NewFuture[F]) -> None:
        self._caller = caller
        self._new_future = new_future

    def waited(self, call: Call, options: CallOptions, before: int = 0) -> tuple[F, Parcel]:
        """A call whose outcome is waited for. `before`: arguments that the worker adds."""
        task, form, terms = self._looked_at(call, options, True, before)
        future = self._new_future(task, self._caller.codec, form.function, form.keep_ms > 0)
        return future, self._parcel(task, form, terms, call, options.on_failure, future)

    def gang(self, call: Call, options: CallOptions, size: int, on_loss: str) -> tuple[F, Parcel]:
        """A call that so many workers make together, and whose outcome is waited for."""
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= MAX_GANG_MEMBERS:
            raise InvalidError(f"size {size!r}: a gang has 1 to {MAX_GANG_MEMBERS:,} members")
        future, alone = self.waited(call, options, before=1)  # the `Gang`
        if alone.dependence is not None:
            raise InvalidError(
                "a gang cannot depend on other tasks",
                advice="Submit it from a task that depends on them.",
            )
        alone.values = [pack_gang(read_call(alone.values[0]), on_loss)]
        alone.terms = alone.terms._replace(members=size)
        return future, alone

    def posted(self, call: Call, options: CallOptions) -> tuple[TaskRef, Parcel]:
        """A call whose outcome nobody waits for."""
        task, form, terms = self._looked_at(call, options, False)
        parcel = self._parcel(task, form, terms, call, options.on_failure)
        return TaskRef(task, form.keep_ms > 0, self._caller.codec.home), parcel

    def kept(self, task: str | bytes | TaskRef) -> F:
        """A future for an outcome that is kept, or will be: by a task's id, or its name."""
        home = self._caller.codec.home
        if isinstance(task, Parent) and task.strange(home):
            raise InvalidError(f"{task!r} is of the task set {task.home!r}, not of {home!r}")
        return self._new_future(task_id_of(task), self._caller.codec, "", True)

    def mapped(
        self, function: Callable[..., Any], options: CallOptions, arguments: int
    ) -> tuple[Form, Terms]:
        """What all calls of a `map` have in common, each with so many arguments; their outcomes are
        not kept, unless said so."""
        if options.task_id is not None:
            raise InvalidError("map takes no task_id: every item is a task")
        form = self._caller.form(function, options)
        if arguments:  # if there are none, `zipped` says so
            check_number(function, arguments)
        return form, _terms(options)

    def _looked_at(
        self, call: Call, options: CallOptions, reply: bool, before: int = 0
    ) -> tuple[bytes, Form, Terms]:
        form = self._caller.form(call[0], options, KEEP_S, reply)
        check_arguments(*call, before)
        if options.task_id is None:
            return self._caller.new_id(), form, _terms(options)
        # Who submits it again, as long as the queue knows the name, must find the outcome of the
        # first time: it is told nothing else.
        form = form._replace(keep_ms=max(form.keep_ms, milliseconds("keep", KEEP_S)))
        return named_task_id(options.task_id), form, _terms(options)._replace(named=True)

    def _parcel(
        self,
        task: bytes,
        form: Form,
        terms: Terms,
        call: Call,
        on_failure: str,
        future: F | None = None,
    ) -> Parcel:
        sent = self._caller.sent(form, call[1], call[2], task, terms.delay_s)
        check_policy(on_failure)
        dependence = None
        if sent.parents:
            if terms.delay_s:
                raise InvalidError("a task that depends on others cannot be delayed as well")
            dependence = dependence_of(sent.parents, on_failure, form)
            terms = terms._replace(held=True)
        parcel = Parcel([task], [sent.value], future, terms, dependence, form.keep_ms)
        parcel.add_large(sent.large)
        return parcel


def _terms(options: CallOptions) -> Terms:
    if not options.priority and not options.delay:
        return PLAIN
    milliseconds("delay", options.delay, MAX_DELAY_MS)
    return Terms(checked_priority(options.priority), options.delay)


def task_id_of(task: str | bytes | Any) -> bytes:
    """The id of a task: of its name, of a future or a reference, or itself."""
    if isinstance(task, str):
        return named_task_id(task)
    found = task if isinstance(task, bytes) else getattr(task, "id", None)
    if not isinstance(found, bytes) or len(found) != TASK_BYTES:
        raise InvalidError(f"{task!r} is neither a task nor the id or name of one")
    return found


def zipped(iterables: Sequence[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """The arguments of every call of a `map`: as long as the shortest of them."""
    if not iterables:
        raise InvalidError("map needs at least one iterable")
    return zip(*iterables, strict=False)
