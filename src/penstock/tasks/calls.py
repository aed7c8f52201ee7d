"""From a function and its arguments to what is pushed. No I/O here."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.inputs import milliseconds
from penstock.client.push import now_us
from penstock.errors import InvalidError, TooLargeError
from penstock.tasks.blobs.blob import ARGUMENTS_S, INLINE_BYTES, Blob, Large, new_blob
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Task, Trust, name_of
from penstock.tasks.envelope import TaskCall, encode
from penstock.tasks.importing import is_typed, path_of, typed_error
from penstock.tasks.names import CLIENT_BYTES, NOBODY, reply_partition, task_id_of
from penstock.tasks.options import TaskOptions, checked_retries, checked_timeout
from penstock.wire.limits import MAX_BATCH_BYTES, MAX_PRIORITY

KEEP_S = 3600.0  # outcomes of what is submitted alone, unless said otherwise
MAX_CALL_BYTES = MAX_BATCH_BYTES - 4096  # a call is a message, and fits a batch with its head
MAX_DELAY_MS = 1 << 50
_UNDECLARED = TaskOptions()


class CallOptions(NamedTuple):
    """What a submission says of its terms; None: as the function was declared."""

    task_id: str | None = None
    priority: int = 0
    delay: float = 0.0
    keep: float | None = None
    retries: int | None = None
    timeout: float | None = None
    on_failure: str = "fail"
    block: str = ""


DEFAULT = CallOptions()


class Form(NamedTuple):
    """A call without its arguments: everything that calls of one kind have in common."""

    function: str
    reply: int
    retries: int
    backoff_ms: int
    timeout_ms: int
    keep_ms: int
    block: str
    delay_ms: int = 0


class Sent(NamedTuple):
    """What is sent for a call."""

    value: bytes
    parents: list[bytes]
    """The ids of the tasks whose results are its arguments."""
    large: Large | None = None


class Caller:
    """Makes the calls of one client, and numbers them. Threads may share it."""

    def __init__(
        self, client: bytes, codec: Codec, trust: Trust, files: bool = False
    ) -> None:
        """`files`: whether there is a directory for very large arguments."""
        if len(client) != CLIENT_BYTES:
            raise InvalidError(f"a client's id has {CLIENT_BYTES} bytes, not {len(client)}")
        self.client = client
        self.codec = codec
        self._trust = trust
        self._files = files
        self.runs_here: Callable[[], bool] = lambda: False
        """Whether this process has a worker whose executors know all that it knows."""
        self._partition = reply_partition(client)
        self._numbers = itertools.count(1)

    @classmethod
    def new(
        cls, pickle_key: bytes | None, allow: Iterable[str], files: bool = False, home: str = ""
    ) -> Caller:
        """One with an id of its own. `allow`: packages whose classes results may be of, besides
        those of the functions that are called. `home`: the task set that is called."""
        trust = Trust(allow)
        codec = Codec(trust, pickle_key, home)
        return cls(secrets.token_bytes(CLIENT_BYTES), codec, trust, files)

    def new_id(self) -> bytes:
        """The id of the client's next task."""
        return task_id_of(self.client, next(self._numbers))

    def form(
        self,
        function: Callable[..., Any],
        options: CallOptions,
        keep_s: float = 0.0,
        reply: bool = True,
    ) -> Form:
        """Checks a function and what was said of it. `keep_s`: how long the outcome is kept if
        neither the submission nor the declaration says."""
        name = name_of(function)
        if is_typed(name) and not self.runs_here():
            raise typed_error(name.partition(":")[2])
        declared = function.options if isinstance(function, Task) else _UNDECLARED
        plain = function.function if isinstance(function, Task) else function
        self._trust.add(path_of(plain))  # its results may be of its own classes
        retries, timeout, keep = options.retries, options.timeout, options.keep
        kept_ms = milliseconds("keep", keep_s) if declared.keep_ms is None else declared.keep_ms
        return Form(
            name,
            self._partition if reply else NOBODY,
            declared.retries if retries is None else checked_retries(retries),
            declared.backoff_ms,
            declared.timeout_ms if timeout is None else checked_timeout(timeout),
            kept_ms if keep is None else milliseconds("keep", keep),
            checked_block(options.block),
            milliseconds("delay", options.delay, MAX_DELAY_MS),
        )

    def call(
        self, form: Form, args: Sequence[Any], kwargs: Mapping[str, Any], task: bytes
    ) -> tuple[bytes, list[bytes]]:
        """What is pushed for a call, and the ids of the tasks whose results are its arguments."""
        arguments, parents = self.codec.pack_call(args, kwargs)
        value = _packed(form, arguments, task, parents)
        if len(value) > MAX_CALL_BYTES:
            raise TooLargeError(
                f"the arguments of {form.function} have {len(arguments):,} bytes; the limit "
                f"is {MAX_CALL_BYTES:,}",
                advice="Put the data into a file, a topic or a table, and send where it is.",
            )
        return value, parents

    def sent(
        self, form: Form, args: Sequence[Any], kwargs: Mapping[str, Any], task: bytes,
        delay_s: float = 0.0,
    ) -> Sent:  # fmt: skip
        """As `call`, for a task that is run once: large arguments are sent apart."""
        arguments, parents = self.codec.pack_call(args, kwargs)
        if len(arguments) <= INLINE_BYTES:
            return Sent(_packed(form, arguments, task, parents), parents)
        ends_s = time.time() + ARGUMENTS_S + delay_s
        what = f"the arguments of {form.function}"
        blob = new_blob(task, len(arguments), ends_s, self._files, what)
        return Sent(_packed(form, b"", task, parents, blob), parents, (blob, arguments))


def _packed(
    form: Form, arguments: bytes, task: bytes, parents: list[bytes], large: Blob | None = None
) -> bytes:
    function, reply, retries, backoff_ms, timeout_ms, keep_ms, block, delay_ms = form
    call = TaskCall(
        function, arguments, task, reply, now_us(),
        retries, backoff_ms, timeout_ms, keep_ms, parents, block, large, delay_ms,
    )  # fmt: skip
    return encode(call)


def checked_priority(priority: int) -> int:
    """A priority as the queue takes it."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidError(f"priority must be a number, not {priority!r}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidError(f"priority {priority}: use 0 to {MAX_PRIORITY}")
    return priority


def checked_block(block: str) -> str:
    """The name of the data that a task works on; empty: none in particular."""
    if not isinstance(block, str):
        raise InvalidError(f"block must be a name, not {block!r}")
    return block
