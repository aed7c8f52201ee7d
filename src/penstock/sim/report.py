"""What a run found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SHOWN = 20


@dataclass
class Verdict:
    """The outcome of one run. `digest` is the same whenever the seed and the code are."""

    seed: int
    faults: str
    minutes: float
    parts: list[str]  # of the workload
    problems: list[str]
    digest: str
    figures: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    nodes: int = 1

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems

    def explain(self, trace_lines: int = 60) -> str:
        """The problems, the end of the trace, and how to see it again."""
        if self.passed:
            return f"seed {self.seed}: all promises were kept ({self.figures['events']:,} events)"
        more = len(self.problems) - SHOWN
        lines = [f"seed {self.seed}: {len(self.problems)} problems"]
        lines += [f"  - {problem}" for problem in self.problems[:SHOWN]]
        if more > 0:
            lines.append(f"  - and {more} more")
        lines.append(f"the workload: {', '.join(self.parts)}")
        lines += ["the end of the trace:", *(f"  {line}" for line in self.trace[-trace_lines:])]
        lines.append(
            f"again: penstock sim --seed {self.seed} --seeds 1 --minutes {self.minutes:g} "
            f"--faults {self.faults}{f' --nodes {self.nodes}' if self.nodes > 1 else ''}"
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; the trace only if something is wrong."""
        plain = asdict(self) | {"passed": self.passed}
        if self.passed:
            del plain["trace"]
        return plain
