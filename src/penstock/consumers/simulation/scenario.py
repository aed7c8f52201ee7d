"""A large group of consumers: 300 members divide 4,000 partitions among themselves.

Members come, crash, leave, drain, stand still, and all of it at once; what is measured is how soon
each partition is processed again and shares are even, and what that costs. No published figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.consumers import claim_events as e
from penstock.consumers.simulation.changes import Change, measure
from penstock.consumers.simulation.group import SESSION_US, Group, Weather
from penstock.consumers.simulation.storm import Storm
from penstock.sim.scenarios.outcome import Chart, Check, Outcome

MEMBERS = 300
PARTITIONS = 4000
SECOND_US = 1_000_000
LIMIT_US = 180 * SECOND_US
PAUSE_US = 25 * SECOND_US
DRAIN_US = 10 * SECOND_US
STORM_US = 30 * SECOND_US
LOSS = 0.01
PLANNED = ("start", "one joins", "a tenth joins", "some leave", "some drain")
CRASHES = ("one crashes", "a tenth crashes")
MISSED = 1e9  # of what did not settle, in seconds


@dataclass
class _Run:
    """A group and what was measured of it."""

    group: Group
    changes: list[Change] = field(default_factory=list)

    def change(self, what: str, act: Callable[[], object]) -> None:
        self.group.forget_gone()
        self.changes.append(measure(self.group, what, act, LIMIT_US))

    def crash(self, count: int) -> None:
        for host in self.group.some(count):
            host.crash()

    def leave(self, count: int) -> None:
        for host in self.group.some(count):
            host.take(e.Leave())

    def drain(self, count: int) -> None:
        for host in self.group.some(count):
            host.drain(DRAIN_US)

    def pause(self, count: int) -> None:
        for host in self.group.some(count):
            host.pause()
            self.group.world.after(PAUSE_US, host.resume)


def run(seed: int = 1, members: int = MEMBERS, partitions: int = PARTITIONS) -> Outcome:
    """One group through everything, one after the other, then at once."""
    ran = _Run(Group(seed, partitions))
    group, tenth, few = ran.group, max(1, members // 10), max(1, members // 20)
    ran.change("start", lambda: group.join(members))
    for _ in range(3):
        ran.change("one joins", group.join)
        ran.change("one crashes", lambda: ran.crash(1))
    ran.change("a tenth joins", lambda: group.join(tenth))
    ran.change("a tenth crashes", lambda: ran.crash(tenth))
    ran.change("some drain", lambda: ran.drain(few))
    ran.change("some leave", lambda: ran.leave(few))
    ran.change("some stand still", lambda: ran.pause(few))
    group.weather = Weather(loss=LOSS)
    for _ in range(2):
        ran.change("one joins, with loss", group.join)
        ran.change("one crashes, with loss", lambda: ran.crash(1))
    group.weather = Weather()
    storm = Storm(group, members // 2, members, every_us=3 * SECOND_US)
    storm.blow(STORM_US)
    ran.change("after a storm", lambda: None)
    return _outcome(ran, partitions)


def _outcome(ran: _Run, partitions: int) -> Outcome:
    kinds: dict[str, list[Change]] = defaultdict(list)
    for change in ran.changes:
        kinds[change.what].append(change)
    columns = (
        "change", "times", "members", "partitions moved", "settled after, s", "looks per member",
        "claims and releases per move", "stood still, ms", "stopped for nothing",
    )  # fmt: skip
    rows = [_row(what, changes) for what, changes in kinds.items()]
    figures = {
        f"{what.replace(' ', '_').replace(',', '')}_{name}": value
        for what, changes in kinds.items()
        for name, value in _figures(changes).items()
    }
    figures |= {"broken_promises": len(ran.group.problems), "fenced": ran.group.node.fenced}
    times = sorted(_seconds(change) for change in ran.changes)
    chart = Chart(
        f"{len(ran.changes)} changes of a group with {partitions:,} partitions",
        "percentile of changes",
        "s until it is settled",
        [100 * (at + 1) / len(times) for at in range(len(times))],
        {"settled": times},
    )
    refused = f"{ran.group.node.fenced:,} commits were refused: their members had lost the claim."
    notes = [*ran.group.problems, _spread(times), refused]
    return Outcome("groups-300", columns, rows, figures, _checks(ran, kinds), chart, notes)


def _figures(changes: list[Change]) -> dict[str, float]:
    return {
        "settled_s": max(map(_seconds, changes)),
        "moved": sum(change.moved for change in changes) / len(changes),
        "looks_per_member": max(change.looks_per_member for change in changes),
        "calls_per_move": max(change.calls_per_move for change in changes),
        "notices": max(change.notices for change in changes),
        "still_ms": max(change.still_us for change in changes) / 1000,
        "stopped": sum(change.stopped for change in changes),
    }


def _row(what: str, changes: list[Change]) -> tuple[object, ...]:
    times = sorted(map(_seconds, changes))
    figures = _figures(changes)
    spread = f"{times[0]:.1f}" if len(times) == 1 else f"{times[0]:.1f} to {times[-1]:.1f}"
    return (
        what, len(changes), changes[-1].members, f"{figures['moved']:.0f}", spread,
        f"{figures['looks_per_member']:.2f}", f"{figures['calls_per_move']:.2f}",
        f"{figures['still_ms']:.0f}", f"{figures['stopped']:.0f}",
    )  # fmt: skip


def _checks(ran: _Run, kinds: dict[str, list[Change]]) -> list[Check]:
    rules = ran.group.rules
    planned = [change for what in PLANNED for change in kinds[what]]
    crashes = [change for what in CRASHES for change in kinds[what]]
    quick = [change for change in planned if change.what != "some drain"]
    lease_s = (SESSION_US + rules.lease_us) / SECOND_US
    audit_s = 1.5 * rules.audit_us / SECOND_US
    return [
        Check("broken promises", len(ran.group.problems), 0),
        Check("changes that never settled", sum(c.settled_us is None for c in ran.changes), 0),
        Check("slowest planned change", max(map(_seconds, quick)), 5, "s"),
        Check("slowest crash", max(map(_seconds, crashes)), lease_s + 5, "s"),
        Check("after the storm", _seconds(ran.changes[-1]), lease_s + audit_s, "s"),
        Check("claims and releases per move, planned", _most_calls(quick), 2),
        # Shares fall all the time, and members look at different moments: some is passed on.
        Check("claims and releases per move, drains", _most_calls(kinds["some drain"]), 2.2),
        Check("claims per move, crashes", _most_calls(crashes), 1.1),
        Check(
            "looks per member, without drains",
            max(change.looks_per_member for change in quick + crashes),
            4,
        ),
        Check("stopped for nothing", sum(change.stopped for change in planned + crashes), 0),
    ]


def _most_calls(changes: list[Change]) -> float:
    return max(change.calls_per_move for change in changes)


def _spread(times: list[float]) -> str:
    middle, most = times[len(times) // 2], times[len(times) * 9 // 10]
    return f"Settled after: median {middle:.1f} s, 90 % {most:.1f} s, longest {times[-1]:.1f} s."


def _seconds(change: Change) -> float:
    return MISSED if change.settled_us is None else change.settled_us / SECOND_US
