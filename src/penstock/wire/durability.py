"""What an acknowledgement means."""

from __future__ import annotations

from enum import IntEnum


class Durability(IntEnum):
    """How safe data is when it is acknowledged. Higher includes lower."""

    MEMORY = 0  # in the node's memory: gone with the process
    WRITTEN = 1  # handed to the operating system: survives the process, not the machine
    SYNCED = 2  # on the disk: survives power loss
    REPLICATED = 3  # synced on the strong set of a cluster

    @classmethod
    def named(cls, name: str) -> Durability:
        """The level called `name` in settings and receipts; ValueError if there is none."""
        try:
            return cls[name.upper()]
        except KeyError:
            words = ", ".join(level.label for level in cls)
            raise ValueError(f"durability {name!r}: use one of {words}") from None

    @property
    def label(self) -> str:
        """The word used in settings, receipts and tables."""
        return self.name.lower()
