"""Settings of queues, topics and tables, as they travel and as the control log keeps them."""

from __future__ import annotations

import msgspec


class QueueOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a queue. Limits hold per node."""

    durability: str = "synced"
    lease_ms: int = 30_000
    max_deliveries: int = 16  # then to the dead letters
    max_messages: int = 100_000_000
    max_bytes: int = 256 << 30
    ttl_ms: int = 0  # 0: messages do not expire
    ordered: str = "no"  # "no", "queue" or "key"
    id_window_ms: int = 3_600_000  # how long push(id=…) remembers
    stealing: bool = True  # in a cluster: messages may move to where consumers wait
    gangs: bool = False  # a message is granted to several parked workers at once

    @property
    def on_one_shard(self) -> bool:
        """Whether all its messages are on the shard of its name."""
        return self.gangs or self.ordered == "queue"


class TopicOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a topic. Retention holds per partition."""

    partitions: int = 8
    durability: str = "synced"
    retention_ms: int = 7 * 86_400_000  # 0: not by age
    retention_bytes: int = 0  # 0: not by size
    keep: str = "all"  # or "latest": of every key


class TableOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a table."""

    durability: str = "synced"
    max_bytes: int = 1 << 30  # keys and values are kept in the node's memory


Options = QueueOptions | TopicOptions | TableOptions
OPTION_TYPES: dict[str, type[Options]] = {
    "queue": QueueOptions,
    "topic": TopicOptions,
    "table": TableOptions,
}
