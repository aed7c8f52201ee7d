from __future__ import annotations

from benchmarks.syncs import count_calls

TRACE = """\
12 fdatasync(5) = 0
13 fsync(7 <unfinished ...>
13 <... fsync resumed>) = 0
12 pwritev2(5, [{iov_base="", iov_len=64}], 1, 4096, RWF_DSYNC) = 64
12 pwritev2(5, [{iov_base="", iov_len=64}], 1, 4096, 0) = 64
12 --- SIGTERM {si_signo=SIGTERM} ---
"""


def test_calls_that_sync_are_counted_once_and_plain_writes_are_not() -> None:
    assert count_calls(TRACE) == 3
