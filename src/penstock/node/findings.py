"""What an examination of a data directory finds; plain data, for `penstock doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["empty", "healthy", "torn", "damaged"]


@dataclass
class FileFinding:
    """A file of the directory. `used` is where its records end, `live` how much is wanted."""

    name: str
    kind: str
    bytes: int
    used: int = 0
    live: int = 0
    records: int = 0
    note: str = ""


@dataclass
class DamageFinding:
    """Bytes that do not verify, and what is known about what they said.

    `messages` are those that are lost with them. If `refused`, no node opens the directory unless
    the damage is accepted. If `repaired`, a whole copy of the batch is stored elsewhere.
    """

    file: str
    offset: int
    length: int
    reason: str
    shard: int | None = None
    kind: str | None = None
    stream: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    messages: int = 0
    refused: bool = False
    repaired: bool = False


@dataclass
class CheckpointFinding:
    """The checkpoint that a node would start from, and where replay of the journal begins."""

    file: str
    sections: int
    damaged: list[str]
    replay_file: str
    replay_offset: int
    unreadable: list[str] = field(default_factory=list)


@dataclass
class TornFinding:
    """The journal ends here although more was begun: none of it was ever acknowledged as synced."""

    file: str
    offset: int
    discarded_records: int


@dataclass
class GapFinding:
    """Records of a shard that should be in the journal, and are not."""

    shard: int
    first: int
    last: int


@dataclass
class StreamFinding:
    """A queue, topic or table, and its figures as a node would show them after a start."""

    kind: str
    name: str
    namespace: str
    messages: int
    bytes: int
    figures: dict[str, Any]


@dataclass
class Findings:
    """All that was found."""

    path: str
    files: list[FileFinding] = field(default_factory=list)
    checkpoint: CheckpointFinding | None = None
    replayed_records: int = 0
    damages: list[DamageFinding] = field(default_factory=list)
    torn: TornFinding | None = None
    gaps: list[GapFinding] = field(default_factory=list)
    streams: list[StreamFinding] = field(default_factory=list)
    refusal: str | None = None
    opens_if_accepted: bool = True
    of_a_cluster: bool = False  # other nodes may have what is damaged here
    disk_bytes: int = 0
    used_bytes: int = 0
    live_bytes: int = 0

    @property
    def lost_messages(self) -> int:
        """Messages that are wanted and damaged."""
        return sum(damage.messages for damage in self.damages)

    @property
    def repaired(self) -> int:
        """Damaged batches that are stored whole elsewhere in the directory by now."""
        return sum(damage.repaired for damage in self.damages)

    @property
    def verdict(self) -> Verdict:
        """In one word. A torn end is what a crash leaves, and no damage."""
        if self.damages or self.gaps or self.refusal is not None:
            return "damaged"
        if self.checkpoint is not None and (self.checkpoint.damaged or self.checkpoint.unreadable):
            return "damaged"
        if self.torn is not None:
            return "torn"
        return "healthy" if self.files else "empty"

    @property
    def summary(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "damaged":
            return self._damage()
        if self.verdict == "torn":
            return "Healthy. The journal's end is torn, as after a crash; no promise is broken."
        if self.verdict == "empty":
            return "Healthy. Nothing has been stored here yet."
        return "Healthy. Every record verifies."

    def _damage(self) -> str:
        if self.refusal is not None:
            return f"Damaged, and a node refuses to start: {self.refusal}."
        if (lost := self.lost_messages) == 1:
            return "Damaged. 1 message is lost; a node starts without it."
        if lost:
            return f"Damaged. {lost:,} messages are lost; a node starts without them."
        return "Damaged, but nothing that is still wanted is lost. A node starts."

    def _with_others(self) -> str:
        if self.refusal is None:
            return "Start the node: it fetches what is damaged from the other nodes of its cluster."
        return (
            "The other nodes of its cluster have what it had: remove this one from the cluster, "
            "and join with an empty directory."
        )

    @property
    def advice(self) -> list[str]:
        """What to do next, step by step."""
        if self.verdict == "torn":
            return ["Nothing to do: a node that starts here cuts the torn end off by itself."]
        if self.verdict != "damaged":
            return ["Nothing to do."]
        steps = ["Look for errors of the disk (dmesg, smartctl): it returned other bytes."]
        if self.of_a_cluster:
            return [*steps, self._with_others()]
        if self.refusal is None:
            steps.append("If the lost messages matter, restore the directory from a copy.")
        elif self.opens_if_accepted:
            steps.append("Restore the directory from a copy, if there is one. If there is none:")
            steps.append(
                f"make a copy of it, then start `penstock serve --data {self.path} "
                "--accept-damage`: the node goes on with what is listed here."
            )
        else:
            steps.append("Restore the directory from a copy: no node can open it as it is.")
        return steps
