"""The locality engine: the story of one task, then many hosts and tasks at random."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tasks.locality import Data, Directory, Engine, Run, Send
from penstock.tasks.locality.directory import block_key, host_key


def directory_of(blocks: dict[str, str]) -> Directory:
    """Each host has one worker, which is named after it."""
    directory = Directory()
    for host in {"here", *blocks.values()}:
        directory.put(host_key(f"{host}:1"), host.encode())
    for block, host in blocks.items():
        directory.put(block_key(block, f"{host}:1"), host.encode())
    return directory


def test_a_task_whose_data_is_here_runs_in_its_turn() -> None:
    engine: Engine[str] = Engine("here", directory_of({"a": "here"}))
    engine.found("first", "a")
    engine.found("second")
    assert (engine.taken(), engine.waiting) == ([], 2)
    engine.run(1)
    assert engine.taken() == [Run("first")]
    engine.run(5)
    assert engine.taken() == [Run("second")]
    assert engine.held == 0


def test_a_task_is_sent_to_its_data() -> None:
    engine: Engine[str] = Engine("here", directory_of({"a": "there"}))
    engine.found("task", "a")
    [offer] = engine.taken()
    assert isinstance(offer, Send)
    assert offer.host == "there"
    engine.accepted(offer.placed)
    engine.run(1)
    assert (engine.taken(), engine.held) == ([], 0)


def test_one_that_is_refused_waits_is_tried_once_more_and_then_fetches() -> None:
    engine: Engine[str] = Engine("here", directory_of({"a": "there"}))
    engine.found("remote", "a")
    engine.found("local")
    [offer] = engine.taken()
    assert isinstance(offer, Send)
    engine.refused(offer.placed, "there")
    engine.run(2)
    # It is behind the local task, and its second offer does not keep anybody waiting.
    run, again = engine.taken()
    assert run == Run("local")
    assert isinstance(again, Send)
    engine.refused(again.placed, "there")
    engine.run(1)
    assert engine.taken() == [Run("remote", fetch_from="there")]


def test_the_place_is_looked_up_when_the_task_is_due_not_before() -> None:
    directory = directory_of({"a": "there"})
    engine: Engine[str] = Engine("here", directory)
    engine.found("task", "a")
    [offer] = engine.taken()
    assert isinstance(offer, Send)
    engine.refused(offer.placed, "there")
    directory.put(block_key("a", "here:1"), b"here")
    engine.run(1)
    assert engine.taken() == [Run("task")]


def test_the_second_offer_goes_to_another_host_that_has_the_data() -> None:
    directory = directory_of({"a": "there", "b": "yonder"})
    directory.put(block_key("a", "yonder:1"), b"yonder")
    engine: Engine[str] = Engine("here", directory)
    engine.found("task", "a")
    hosts = []
    for _ in range(2):
        [offer] = engine.taken()
        assert isinstance(offer, Send)
        hosts.append(offer.host)
        engine.refused(offer.placed, offer.host)
        engine.run(1)
    assert hosts == ["there", "yonder"]
    assert engine.taken() == [Run("task", "there")]


def test_what_was_sent_is_not_sent_on() -> None:
    engine: Engine[str] = Engine("here", directory_of({"a": "there"}))
    engine.found("task", "a", moved=True)
    engine.run(1)
    assert engine.taken() == [Run("task", "there")]


def test_draining_leaves_what_is_on_offer_to_its_answer() -> None:
    engine: Engine[str] = Engine("here", directory_of({"a": "there"}))
    engine.found("remote", "a")
    engine.found("local")
    assert engine.drain() == ["local"]
    assert engine.held == 1


def test_a_block_is_there_until_its_last_owner_is_gone() -> None:
    directory = directory_of({"a/b": "there"})
    directory.put(host_key("there:2"), b"there")
    directory.put(block_key("a/b", "there:2"), b"there")
    directory.remove(block_key("a/b", "there:1"))
    assert directory.find("a/b", "here") == (Data.THERE, "there")
    assert directory.find("a/b", "there") == (Data.HERE, "there")
    directory.remove(block_key("a/b", "there:2"))
    assert directory.find("a/b", "here") == (Data.NOWHERE, "")


def test_a_host_without_workers_has_no_data() -> None:
    directory = directory_of({"a": "there"})
    directory.remove(host_key("there:1"))
    assert directory.find("a", "here") == (Data.NOWHERE, "")
    directory.remove(b"cancel/xyz")
    directory.put(b"cancel/xyz", b"")
    assert directory.hosts() == {"here"}


class World:
    """Hosts with queues of bounded depth, as workers use them, in random order of events."""

    def __init__(self, chance: random.Random, hosts: int, blocks: int, depth: int) -> None:
        self.chance = chance
        self.hosts = [f"h{number}" for number in range(hosts)]
        self.depth = depth
        self.directory = Directory()
        self.blocks = [f"b{number}" for number in range(blocks)]
        for host in self.hosts:
            self.directory.put(host_key(host), host.encode())
        for block in self.blocks:
            self.move(block)
        self.main: deque[tuple[int, str]] = deque()
        self.at: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self.engines: dict[str, Engine[tuple[int, str]]] = {
            host: Engine(host, self.directory) for host in self.hosts
        }
        self.offers: list[tuple[str, Send[tuple[int, str]]]] = []
        self.ran: Counter[int] = Counter()
        self.fetched: Counter[int] = Counter()
        self.sent: Counter[int] = Counter()
        self.asked: Counter[int] = Counter()

    def move(self, block: str) -> None:
        for host in self.hosts:
            self.directory.remove(block_key(block, host))
        host = self.chance.choice(self.hosts)
        self.directory.put(block_key(block, host), host.encode())

    def step(self) -> None:
        host = self.chance.choice(self.hosts)
        engine = self.engines[host]
        act = self.chance.randrange(6)
        if act == 0 and self.main:
            task = self.main.popleft()
            engine.found(task, task[1])
        elif act == 1 and self.at[host]:
            task = self.at[host].popleft()
            engine.found(task, task[1], moved=True)
        elif act == 2:
            engine.run(self.chance.randint(1, 3))
        elif act == 3 and self.offers:
            self.answer(*self.offers.pop(self.chance.randrange(len(self.offers))))
        elif act == 4 and self.chance.random() < 0.1:
            self.move(self.chance.choice(self.blocks))
        for effect in engine.taken():
            self.carry_out(host, effect)

    def carry_out(self, host: str, effect: Send[tuple[int, str]] | Run[tuple[int, str]]) -> None:
        if isinstance(effect, Send):
            assert effect.host != host
            self.offers.append((host, effect))
        else:
            self.ran[effect.task[0]] += 1
            self.fetched[effect.task[0]] += effect.fetch_from != ""
            data, owner = self.directory.find(effect.task[1], host)
            # Late binding: what it is told is true now, whatever was true when it was found.
            assert effect.fetch_from == (owner if data is Data.THERE else "")

    def answer(self, host: str, offer: Send[tuple[int, str]]) -> None:
        number = offer.placed.task[0]
        self.asked[number] += 1
        if len(self.at[offer.host]) >= self.depth:
            self.engines[host].refused(offer.placed, offer.host)
        else:
            self.at[offer.host].append(offer.placed.task)
            self.engines[host].accepted(offer.placed)
            self.sent[number] += 1
        for effect in self.engines[host].taken():
            self.carry_out(host, effect)

    @property
    def over(self) -> bool:
        queues = [self.main, *self.at.values()]
        return not any(queues) and not any(engine.held for engine in self.engines.values())


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    hosts=st.integers(1, 5),
    blocks=st.integers(1, 6),
    depth=st.integers(0, 3),
    tasks=st.integers(1, 30),
)
def test_every_task_runs_once_and_none_is_sent_for_ever(seed, hosts, blocks, depth, tasks) -> None:
    chance = random.Random(seed)
    world = World(chance, hosts, blocks, depth)
    world.main.extend((number, chance.choice([*world.blocks, ""])) for number in range(tasks))
    for _ in range(2_000 * tasks):
        if world.over:
            break
        world.step()
    assert world.over, "tasks are still under way"
    assert world.ran == Counter(range(tasks))
    assert all(count == 1 for count in world.sent.values())
    assert all(count <= 2 for count in world.asked.values())


@pytest.mark.parametrize("seed", range(3))
def test_without_overload_every_task_runs_where_its_data_is(seed: int) -> None:
    world = World(random.Random(seed), hosts=4, blocks=8, depth=1_000)
    world.move = lambda block: None  # type: ignore[method-assign]
    world.main.extend((number, f"b{number % 8}") for number in range(100))
    while not world.over:
        world.step()
    assert world.ran == Counter(range(100))
    assert sum(world.sent.values()) > 0
    assert sum(world.fetched.values()) == 0
