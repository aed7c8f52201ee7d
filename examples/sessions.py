"""Clicks into sessions, exactly once, by two consumers that share the work."""

import tempfile

import penstock
from penstock.consumers import Clicks, Sessionizer, decode_session
from penstock.consumers.generator import CLOSING_KEY, is_end
from penstock.consumers.sessions import session_order, text

CLICKS = Clicks(seed=7, chains=100)  # what people do, made from a seed; its sessions are known


class Sessions(Sessionizer):
    """A session ends with its END, or after half an hour of silence; repeated clicks count once."""

    def __init__(self) -> None:
        super().__init__(
            end=is_end, timeout=CLICKS.timeout, delay=CLICKS.delay, fragment_id=bytes
        )


def publish(topic: penstock.Topic) -> int:
    rows = list(CLICKS.fragments())
    topic.publish_many(
        [value for _, value, _ in rows],
        keys=[key for key, _, _ in rows],
        timestamps=[time_us / 1e6 for _, _, time_us in rows],
    )
    for partition in range(topic.partitions):  # time goes on in each of them: all is over
        end = rows[-1][2] / 1e6
        topic.publish(b"closing", key=CLOSING_KEY, partition=partition, timestamp=end)
    return len(rows)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(folder) as fabric:
        count = publish(fabric.topic("clicks", partitions=4))

        def consumer() -> penstock.ConsumerGroup:
            return penstock.ConsumerGroup(
                fabric, group="sessions", topic="clicks", handler=Sessions, to="queue:sessions"
            )

        # Here both are threads of one program; anywhere else: `penstock consume`, many times.
        with consumer().start(until_idle=1.0) as first, consumer().start(until_idle=1.0) as second:
            first.wait()
            second.wait()

        messages = fabric.queue("sessions").pop_many(100_000)
        found = [decode_session(message.value) for message in messages]
        found = [each for each in found if each.key != text(CLOSING_KEY)]
        known = sorted(CLICKS.answer(), key=session_order)
        print(f"{count:,} clicks, {len(found):,} sessions")
        print("as known:", sorted(found, key=session_order) == known)
        assert sorted(found, key=session_order) == known


if __name__ == "__main__":
    main()
