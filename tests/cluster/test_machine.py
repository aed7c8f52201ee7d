"""Random commands, failures and plans in any order: nothing breaks, and all comes right."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.cluster.world import GRACE_US, SECOND_US, World, node

from penstock.cluster import commands as c
from penstock.cluster.check import check
from penstock.cluster.map import Speaks, Stated, diff, pack, patch, read_map
from penstock.cluster.state import ClusterState

NUMBERS = st.integers(1, 8)
SHARDS = st.integers(0, 5)
EPOCHS = st.integers(0, 4)
VERSIONS = st.integers(0, 30)
COMMANDS = st.one_of(
    st.builds(c.Found, st.just(7), st.just(4), st.integers(1, 3), st.just(node("n1"))),
    st.builds(lambda name: c.Join(node(name)), st.sampled_from("abcdef")),
    st.builds(c.Rejoin, NUMBERS, st.just("h"), st.just(1), st.integers(0, 3)),
    *(st.builds(kind, NUMBERS) for kind in (c.Leave, c.Remove, c.Drain, c.Undrain)),
    *(st.builds(kind, NUMBERS, st.integers(0, 3)) for kind in (c.Down, c.Up)),
    st.builds(c.ShrinkInSync, SHARDS, EPOCHS, NUMBERS, st.tuples(NUMBERS), VERSIONS),
    st.builds(c.GrowInSync, SHARDS, EPOCHS, NUMBERS, NUMBERS, VERSIONS),
    *(
        st.builds(kind, SHARDS, EPOCHS, NUMBERS)
        for kind in (c.Promote, c.Transfer, c.AddReplica, c.DropReplica)
    ),
    st.builds(c.Define, st.sampled_from("xy"), st.binary(max_size=4), VERSIONS),
    st.builds(c.Undefine, st.sampled_from("xy"), VERSIONS),
    st.builds(c.SetReplication, st.integers(1, 7)),
    st.builds(c.Withdraw, NUMBERS, st.integers(0, 3), st.tuples(SHARDS, SHARDS)),
    st.builds(
        lambda level, lives: c.Raise(
            level, tuple(Stated(n, life, Speaks(1, 3)) for n, life in enumerate(lives, 1))
        ),
        st.integers(1, 3),
        st.lists(st.integers(0, 3), max_size=3),
    ),
)


@given(st.lists(COMMANDS, max_size=60))
def test_any_commands_leave_a_sound_state_and_the_same_on_all_nodes(commands):
    one, other = ClusterState(), ClusterState()
    one.apply(c.Found(7, 4, 2, node("n1")))
    other.apply(c.Found(7, 4, 2, node("n1")))
    for at, command in enumerate(commands):
        before = one.map()
        outcome = one.apply(c.read_command(c.pack_command(command)))
        assert check(one, before) == check(one) == []
        assert (one.version == before.version) == (one.map() == before) or outcome.accepted
        assert patch(before, diff(before, one.map())) == one.map() == read_map(pack(one.map()))
        if at == len(commands) // 2:
            other = ClusterState.restore(other.snapshot())
        assert other.apply(command) == outcome
    assert one.snapshot() == other.snapshot()


class Cluster(RuleBasedStateMachine):
    """Nodes come, go, fail and return while the leader plans and the owners feed replicas."""

    @initialize(shards=st.sampled_from([1, 5, 12]), replication=st.integers(1, 4))
    def found(self, shards: int, replication: int) -> None:
        self.world = World(shards, replication)

    @precondition(lambda self: len(self.world.state.nodes) < 8)
    @rule(count=st.integers(1, 2), weight=st.integers(1, 3))
    def join(self, count: int, weight: int) -> None:
        self.world.join(count, weight)

    @rule(number=NUMBERS)
    def fail(self, number: int) -> None:
        info = self.world.state.nodes.get(number)
        if info is not None:
            self.world.do(c.Down(number, info.incarnation))

    @rule(number=NUMBERS, anew=st.booleans())
    def come_back(self, number: int, anew: bool) -> None:
        info = self.world.state.nodes.get(number)
        if info is not None and info.status == "down":
            (self.world.restart if anew else self.world.back)(number)

    @rule(number=NUMBERS, kind=st.sampled_from([c.Drain, c.Undrain, c.Leave, c.Remove]))
    def ask(self, number: int, kind: type[c.Command]) -> None:
        self.world.do(kind(number))  # type: ignore[call-arg, arg-type]

    @rule(replication=st.integers(1, 4))
    def set_replication(self, replication: int) -> None:
        self.world.do(c.SetReplication(replication))

    @rule(times=st.integers(1, 3))
    def lead(self, times: int) -> None:
        for _ in range(times):
            self.world.lead()

    @rule()
    def feed(self) -> None:
        self.world.feed()

    @rule(span_us=st.sampled_from([SECOND_US, GRACE_US // 2, GRACE_US]))
    def wait(self, span_us: int) -> None:
        self.world.wait(span_us)

    @invariant()
    def is_sound(self) -> None:
        assert check(self.world.state) == []

    def teardown(self) -> None:
        """When all that is down is back, all gets its share, and the leader has nothing to do."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for number, info in list(world.state.nodes.items()):
            if info.status == "down":
                world.back(number)
        if not any(info.status == "up" for info in world.state.nodes.values()):
            world.join()
        world.settle()
        assert world.unfairness() == []
        assert world.plan() == []


def test_a_cluster_comes_right_after_anything():
    run_state_machine_as_test(
        Cluster, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )
