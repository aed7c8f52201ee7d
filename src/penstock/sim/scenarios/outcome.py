"""What a scenario found, for people, for programs and for a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """A figure that has a goal: at most so much."""

    what: str
    value: float
    goal: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the goal is reached."""
        return self.value <= self.goal

    def explain(self) -> str:
        """One line."""
        unit = f" {self.unit}" if self.unit else ""
        verdict = "reached" if self.passed else "MISSED"
        return f"{verdict}: {self.what} {self.value:.4g}{unit}, goal at most {self.goal:.4g}{unit}"


@dataclass(frozen=True)
class Chart:
    """Values by name over the same x; not a number where there is none."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    series: dict[str, Sequence[float]]
    logarithmic: bool = False  # the x axis
    logarithmic_y: bool = False


@dataclass(frozen=True)
class Outcome:
    """`rows` are for people; `figures` hold the same for programs."""

    scenario: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    figures: dict[str, float]
    checks: Sequence[Check]
    chart: Chart
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def passed(self) -> bool:
        """Whether every goal is reached."""
        return all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        checks = [{**vars(check), "passed": check.passed} for check in self.checks]
        told = {"scenario": self.scenario, "passed": self.passed, "figures": self.figures}
        return {**told, "checks": checks, "notes": list(self.notes)}
