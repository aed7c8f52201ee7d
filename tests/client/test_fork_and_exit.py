"""What becomes of fabrics that are open when a process forks, or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess

import penstock
from penstock.client.blocking_streams import Queue
from penstock.client.settle import FLUSH_AT
from penstock.errors import ClosedError

SECONDS = 60
HANGS_AFTER = 20  # seconds, in a forked process; then it is ended, and nothing is told of it
REFUSED = "ClosedError: this fabric was opened before the process was forked"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = NodeProcess(tmp_path_factory.mktemp("leaving") / "data")
    yield node.start()
    node.end()


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def in_child(act: Callable[[], object]) -> str:
    """What became of it in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_AFTER)
        try:
            act()
            told = "it worked"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return found


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_no_part_in_the_fabrics_of_its_parent(url: str) -> None:
    with penstock.connect(url) as fabric, fabric.tasks("forked") as app:
        queue, table = fabric.queue("forked"), fabric.table("forked")
        queue.push(b"before")
        acts: list[Callable[[], object]] = [
            lambda: queue.push(b"child"),
            lambda: queue.push_many([b"child"] * 10),
            lambda: next(queue.consume(idle_timeout=1.0)),
            lambda: table.put("a", b"child"),
            lambda: app.submit(print),
            lambda: app.flush(),
        ]
        for act in acts:
            assert in_child(act).startswith(REFUSED)
        assert in_child(fabric.close) == "it worked"
        assert in_child(app.close) == "it worked"
        assert in_child(lambda: _pushed_anew(url)) == "it worked"
        receipts = [queue.push(b"parent %d" % number) for number in range(3)]
        assert not any(receipt.duplicate for receipt in receipts)
        table.put("a", b"parent")
        assert table.get("a") == b"parent"
        left = {message.value for message in queue.peek(10)}
        assert left == {b"before", b"anew", b"parent 0", b"parent 1", b"parent 2"}


def _pushed_anew(url: str) -> None:
    with penstock.connect(url) as fabric:
        fabric.queue("forked").push(b"anew")


def settling(queue: Queue) -> list[Callable[[], object]]:
    """All ways to settle a message that was leased before."""
    message, delivery = queue.pop(), queue.pop_batch(2)
    assert message is not None
    assert delivery is not None
    return [
        message.ack,
        lambda: message.ack(wait=True),
        message.nack,
        message.dead,
        lambda: message.extend(30),
        delivery.ack,
        lambda: delivery.ack(wait=True),
        delivery.nack,
        delivery.dead,
        lambda: delivery.extend(30),
        lambda: queue.ack([message]),
        lambda: queue.nack([message]),
        queue.flush,
    ]


@contextmanager
def held_by_another(*locks: AbstractContextManager[object]) -> Iterator[None]:
    """A thread that is not there after a fork holds them."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(SECONDS)
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("attended", [False, True])
def test_a_forked_process_cannot_settle_messages_of_its_parent(url: str, attended: bool) -> None:
    with penstock.connect(url) as fabric:
        queue = fabric.queue(f"settled-{attended}")
        queue.push_many([b"%d" % number for number in range(4)])
        acts = settling(queue)
        if attended:
            last = queue.pop()
            assert last is not None
            last.ack()  # its fate is the parent's concern
        for act in acts:
            told = in_child(act)
            assert told.startswith(REFUSED), told
        background = fabric._background
        stopping = vars(background._stop)["_cond"]  # its thread has it 40 times a second
        for lock in (queue._settler._taking, background._lock, stopping):
            with held_by_another(lock):
                for act in acts:
                    assert in_child(act).startswith(REFUSED)
                assert in_child(fabric.close) == "it worked"
        acts[0]()
        queue.flush()
        assert queue.refused == 0
        assert queue.stats()["messages"] == (2 if attended else 3)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_every_ack_in_a_forked_process_is_refused(url: str) -> None:
    with penstock.connect(url) as fabric:
        queue = fabric.queue("refused")
        queue.push_many([b""] * (2 * FLUSH_AT))
        messages = queue.pop_many(2 * FLUSH_AT)

        def ack_all() -> None:
            refused = 0
            for message in messages:
                with suppress(ClosedError):
                    message.ack()
                    continue
                refused += 1
            assert (refused, queue.refused) == (2 * FLUSH_AT, 0)

        for message in messages[: FLUSH_AT - 1]:  # the next would send them all
            message.ack()
        assert in_child(ack_all) == "it worked"
        queue.flush()
        assert queue.refused == 0
        assert queue.stats()["messages"] == FLUSH_AT + 1


def test_a_fork_while_locks_are_held_hangs_nobody(url: str) -> None:
    with penstock.connect(url) as fabric:
        queue = fabric.queue("held")
        connection = fabric._connection
        with connection._sending, connection._reading, fabric._background._lock:
            assert "ClosedError" in in_child(lambda: queue.push(b"child"))
            assert in_child(fabric.close) == "it worked"
        queue.push(b"parent")


def test_what_a_program_leaves_unsent_is_sent_when_it_ends(url: str) -> None:
    with penstock.connect(url) as fabric:
        fabric.queue("left").push_many([b"1", b"2"])
        done = run(
            """
            import sys, textwrap, penstock
            fabric = penstock.connect(sys.argv[1])
            queue = fabric.queue("left")
            queue.pop().ack()
            app = fabric.tasks("left")
            for number in range(500):
                app.post(textwrap.dedent, str(number))
            """,
            url,
        )
        assert (done.returncode, done.stderr) == (0, "")
        counts = fabric.queue("left").stats()
        assert (counts["ready"], counts["leased"]) == (1, 0)
        assert fabric.queue("tasks.left").stats()["messages"] == 500


def test_the_same_of_a_fabric_in_a_folder(tmp_path: Path) -> None:
    done = run(
        """
        import sys, penstock
        fabric = penstock.open(sys.argv[1])
        queue = fabric.queue("left")
        queue.push_many([b"1", b"2"])
        queue.pop().ack()
        """,
        str(tmp_path / "data"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    with penstock.open(str(tmp_path / "data")) as fabric:
        counts = fabric.queue("left").stats()
    assert counts["messages"] == 1


def _pid_of(node: NodeProcess) -> int:
    assert node.process is not None
    return node.process.pid


def test_a_program_ends_although_its_node_is_gone(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    try:
        with penstock.connect(node.start()) as fabric:
            fabric.queue("left").push(b"1")
        done = run(
            """
            import os, sys, penstock
            from penstock.client import leaving
            leaving.EXIT_SECONDS = 0.5
            fabric = penstock.connect(sys.argv[1])
            message = fabric.queue("left").pop()
            os.kill(int(sys.argv[2]), 9)
            message.ack()
            """,
            f"penstock://{node.address[0]}:{node.address[1]}",
            str(_pid_of(node)),
        )
    finally:
        node.end()
    assert done.returncode == 0
    assert "the program ends, and acks or tasks may be unsent" in done.stderr


def test_a_closed_fabric_is_not_closed_again(url: str) -> None:
    fabric = penstock.connect(url)
    fabric.close()
    with pytest.raises(ClosedError):
        fabric.queue("any")
