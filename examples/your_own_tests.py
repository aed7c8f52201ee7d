"""Testing code that uses Penstock: a fabric in memory, and a clock that you move yourself."""

from penstock import Queue
from penstock.testing import FakeClock, memory_fabric


def work_on_one(queue: Queue) -> bytes | None:
    """The code under test: it forgets to acknowledge."""
    message = queue.pop()
    return None if message is None else message.value


def test_a_forgotten_message_comes_back() -> None:
    clock = FakeClock()
    with memory_fabric(clock) as fabric:
        queue = fabric.queue("jobs", lease=30)
        queue.push(b"job")
        assert work_on_one(queue) == b"job"
        assert work_on_one(queue) is None
        clock.advance(31)
        assert work_on_one(queue) == b"job"


if __name__ == "__main__":
    test_a_forgotten_message_comes_back()
    print("ok")
