"""Sessions of a cluster in the core of one node that owns all shards: whoever carries messages to
other nodes is played by the test."""

from __future__ import annotations

import pytest

from penstock.core import sessions as module
from penstock.core.fabric import Fabric
from penstock.core.outbox import EndSession, Packed
from penstock.core.sessions import BINDING_US, Binding, Question
from penstock.errors import InvalidError, LimitError, UnavailableError
from penstock.wire import messages as m
from penstock.wire.sessions import session_id

HOME, SHARD = 0, 1
SESSION = session_id(HOME, 7)


def new_fabric() -> Fabric:
    fabric = Fabric(2, 0)
    fabric.kernel.shared = fabric.kernel.forwarding = True
    return fabric


def asked(fabric: Fabric, answers: list[Binding]) -> Question:
    """What a shard asks when an entry is to be bound to a session."""
    fabric.sessions.bind(fabric.kernel.shards[SHARD], SESSION, answers.append)
    (question,) = fabric.sessions.questions
    fabric.sessions.questions = []
    return question


def test_an_answer_that_the_end_has_overtaken_does_not_count():
    """The home said "bound", was replaced, and its heir ended the session: that came first."""
    fabric, answers = new_fabric(), list[Binding]()
    question = asked(fabric, answers)
    shard = fabric.kernel.shards[SHARD]
    end = Packed(9, 0, 4, m.pack(EndSession(SESSION)))
    fabric.forwards.take(HOME, shard, [end], lambda _: None)
    fabric.sessions.answered(question.ticket, Binding.BOUND)
    assert answers == [Binding.ENDED]
    assert SESSION not in shard.bound


def test_an_answer_counts_once_and_then_the_shard_need_not_ask():
    fabric, answers = new_fabric(), list[Binding]()
    shard = fabric.kernel.shards[SHARD]
    question = asked(fabric, answers)
    assert fabric.sessions.must_bind(shard, SESSION)
    fabric.sessions.answered(question.ticket, Binding.BOUND)
    fabric.sessions.answered(question.ticket, Binding.ENDED)
    assert answers == [Binding.BOUND]
    assert not fabric.sessions.must_bind(shard, SESSION)


def test_a_shard_that_was_lost_meanwhile_binds_nothing():
    fabric, answers = new_fabric(), list[Binding]()
    shard = fabric.kernel.shards[SHARD]
    question = asked(fabric, answers)
    fabric.end_shard(shard)
    assert answers == [Binding.MOVED]
    fabric.begin_shard(shard, 1, 1)
    fabric.sessions.answered(question.ticket, Binding.BOUND)
    assert answers == [Binding.MOVED]
    assert SESSION not in shard.bound


def test_a_question_waits_so_long_and_so_many_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_BINDINGS", 1)
    fabric, answers = new_fabric(), list[Binding]()
    asked(fabric, answers)
    with pytest.raises(LimitError):
        fabric.sessions.bind(fabric.kernel.shards[SHARD], SESSION, answers.append)
    fabric.tick(BINDING_US)
    assert answers == [Binding.MOVED]
    asked(fabric, answers)


def test_the_home_notes_a_shard_once():
    fabric, answers = new_fabric(), list[Binding]()
    session, _ = fabric.sessions.open(m.SessionOpen(1000, HOME))
    home = fabric.kernel.shards[HOME]
    last = home.last
    for _ in range(2):
        fabric.sessions.register(Question(HOME, session, SHARD, 1), answers.append)
    assert home.last == last + 1
    assert home.sessions[session].shards == {SHARD}
    assert answers == [], "not before it is safe"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (m.SessionOpen(0, HOME), InvalidError),
        (m.SessionOpen(1 << 40, HOME), InvalidError),
        (m.SessionOpen(1000), InvalidError),
        (m.SessionOpen(1000, 2), InvalidError),
    ],
)
def test_sessions_that_cannot_be(call: m.SessionOpen, error: type[Exception]):
    with pytest.raises(error):
        new_fabric().sessions.open(call)


def test_bounds_and_levels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 1)
    fabric = new_fabric()
    fabric.sessions.open(m.SessionOpen(1000, HOME))
    with pytest.raises(LimitError):
        fabric.sessions.open(m.SessionOpen(1000, HOME))
    fabric.kernel.forwarding = False
    with pytest.raises(UnavailableError):
        fabric.sessions.open(m.SessionOpen(1000, SHARD))
