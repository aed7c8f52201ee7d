"""Nodes of a simulated cluster that are lost for good: when the cluster counts as whole again."""

from __future__ import annotations

from penstock.errors import DamagedError
from penstock.sim.cluster.cluster import Cluster
from penstock.sim.world import World

SECOND_US = 1_000_000


def founded(seed: int, nodes: int = 3) -> Cluster:
    cluster = Cluster(World(seed))
    cluster.found(nodes)
    run_until_whole(cluster, nodes)
    return cluster


def run(cluster: Cluster, seconds: int) -> None:
    cluster.world.run(cluster.world.now_us + seconds * SECOND_US, lambda: False)


def run_until_whole(cluster: Cluster, nodes: int, seconds: int = 180) -> None:
    for _ in range(seconds):
        run(cluster, 1)
        if cluster.whole and len(cluster.members()) == nodes:
            return
    raise AssertionError(f"it is not whole after {seconds} s: {cluster.map()}")


def lose(cluster: Cluster, number: int) -> None:
    """Its disk cannot be read any more."""
    host = cluster.hosts[number]
    host.damage_expected = True
    host.crash(power_loss=False, down_us=None)
    host._damaged(DamagedError("nothing can be read"))


def voters(cluster: Cluster) -> set[int]:
    members = [host.member for host in cluster.members()]
    return {voter for each in members if each for voter in each.plane.raft.membership.voters}


def test_all_nodes_may_be_lost_one_after_the_other() -> None:
    """What is whole again survives the next loss: nobody who is lost has a vote."""
    cluster = founded(1)
    for number in (1, 2, 3):
        lose(cluster, number)
        assert not cluster.whole
        run_until_whole(cluster, 3)
        assert voters(cluster) == {host.number for host in cluster.members()}
    known = cluster.map()
    assert known is not None
    assert {node.id for node in known.nodes} == {4, 5, 6}
    assert cluster.broken is None
    assert not cluster.ledger.problems


def test_a_lost_node_is_removed_although_leaders_change_all_the_time() -> None:
    """Each new leader counts anew how long a node has been down: its time alone does not end."""
    cluster = founded(2)
    lose(cluster, 3)
    for _ in range(10):
        run(cluster, 12)
        leads = [
            host for host in cluster.living()
            if host.member is not None and host.member.plane.raft.leader == host.number
        ]  # fmt: skip
        for host in leads:
            host.crash(power_loss=False, down_us=2 * SECOND_US)
    run_until_whole(cluster, 3, seconds=20)
    assert 3 not in voters(cluster)


def test_a_cluster_without_a_majority_is_not_whole() -> None:
    """The map that is left of better times shows nothing of it."""
    cluster = founded(3)
    lose(cluster, 1)
    lose(cluster, 2)
    for _ in range(30):
        run(cluster, 1)
        assert not cluster.whole
    known = cluster.map()
    assert known is not None
    assert all(node.status == "up" for node in known.nodes)
    cluster.hosts[3].crash(power_loss=False, down_us=SECOND_US)
    run(cluster, 30)
    assert cluster.hosts[3].member is not None
    assert not cluster.whole
