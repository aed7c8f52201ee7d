"""Bits that flip in data at rest: nothing wrong is ever served, and nothing is lost in silence."""

from __future__ import annotations

from penstock.sim.client import Client
from penstock.sim.report import Verdict
from penstock.sim.scenario import Scenario
from penstock.store.locations import JOURNAL, SHARD

QUIET_US = 5_000_000


class DamagedScenario(Scenario):
    """Work without faults; then the power goes, some bits flip, and the node starts again."""

    def __init__(self, seed: int, minutes: float, flips: int) -> None:
        super().__init__(seed, minutes, "none")
        self._flips = flips

    def rest(self) -> None:
        """Everything is synced by then, so every flip is damage and no torn write."""
        self.world.run(self.world.now_us + QUIET_US)
        for process in self.processes:
            if process.client is not None:
                process.client.kill()
        self.host.damage_expected = True
        self.host.crash(power_loss=True, down_us=1000)
        kinds = (JOURNAL, SHARD)
        names = sorted(name for name in self.disk.names() if name.startswith(kinds))
        for _ in range(self._flips):
            name = self.world.random.choice(names)
            used = len(self.disk.inodes[name].data.rstrip(b"\0"))
            at = self.world.between(0, max(used - 1, 0))
            self.disk.flip(name, at)
            self.world.note(f"a bit of {name} flips at {at}")

    def problems(self) -> list[str]:
        """Ghosts in any case; losses only if nobody was told."""
        if self.host.broken is not None:
            return [self.host.broken]
        found = super().problems()
        serious = ("ghost", "stored twice", "offset used twice", "acked twice")
        if self._was_told():
            found = [problem for problem in found if problem.startswith(serious)]
        return found

    def _was_told(self) -> bool:
        engine = self.host.engine
        assert engine is not None
        last: Client | None = self.processes[-1].client
        failed = last is not None and last.broken is not None and "DamagedError" in last.broken
        told = self.host.damage_told is not None or failed
        return told or bool(engine.recovered["damages"]) or bool(engine.read_damage)


def run_damaged(seed: int, minutes: float = 0.1, flips: int = 2) -> Verdict:
    """One run with flipped bits."""
    return DamagedScenario(seed, minutes, flips).run()
