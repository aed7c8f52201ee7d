"""A cluster whose nodes crash while bits flip on the disk of one that runs: promises are kept."""

from __future__ import annotations

import pytest
from tests.engine.test_repairs import PAYLOAD_AT

from penstock.engine.cache import RecentPayloads
from penstock.engine.repairs import Repairs
from penstock.sim.cluster.scenario import ClusterScenario
from penstock.store.locations import split

EVERY_US = 1_000_000
SURE_BYTES = 20_000  # so far below the end it is known that a record was synced: no torn end


class DamagedScenario(ClusterScenario):
    """Every second, bits of stored batches flip on one node, and once more before the last act:
    what is left to be read then is damaged, too."""

    def __init__(self, seed: int, minutes: float) -> None:
        super().__init__(seed, minutes, "crash", nodes=3)
        self.victim = seed % 3 + 1
        self.flips = 0
        self._lives: dict[int, Repairs] = {}  # of the victim, by incarnation

    @property
    def repaired(self) -> int:
        """Batches, in all lives of the victim."""
        return sum(each.repaired for each in self._lives.values())

    def _work(self) -> None:
        self.world.after(EVERY_US, self._flip_again)
        super()._work()

    def _heal(self) -> None:
        super()._heal()
        self._flip()

    def _flip_again(self) -> None:
        if not self.stage.over:
            self._flip()
            self.world.after(EVERY_US, self._flip_again)

    def _flip(self) -> None:
        """Only what another node that is in sync has, too: else it would be lost for good."""
        host = self.cluster.hosts[self.victim]
        member = host.member
        if member is None or not member.present:
            return
        self._lives[host.incarnation] = member.repairs
        engine, host.damage_expected = member.engine, True
        engine.reader.recent = RecentPayloads(0)
        for shard in engine.fabric.kernel.shards:
            others = set(member.plane.state.shards[shard.id].in_sync) - {self.victim}
            batches = list(shard.batches()) if others else []
            sure = [s for _, s in batches if 0 < s.location < engine.journal.synced - SURE_BYTES]
            for stored in self.world.random.sample(sure, min(2, len(sure))):
                number, offset = split(stored.location)
                if number in engine.files and stored.length > PAYLOAD_AT:
                    host.disk.flip(engine.files[number].name, offset + PAYLOAD_AT)
                    self.flips += 1


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_promises_are_kept_although_bits_flip(seed: int):
    scenario = DamagedScenario(seed, minutes=1)
    verdict = scenario.run()
    assert verdict.passed, verdict.explain()
    assert scenario.flips
