"""What cannot be answered, for whatever reason, costs that answer: the node goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.engine import delivery
from penstock.errors import DamagedError

Ask = Callable[[penstock.Fabric], object]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer with messages cannot be made."""
    cut, serve = delivery._cut, delivery.serve

    def fail(*_: Any) -> Any:
        monkeypatch.setattr(delivery, "_cut", cut)
        monkeypatch.setattr(delivery, "serve", serve)
        raise ValueError("nobody has thought of that")

    monkeypatch.setattr(delivery, "_cut", fail)
    monkeypatch.setattr(delivery, "serve", fail)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    "ask",
    [
        lambda fabric: fabric.queue("q").pop_many(1),
        lambda fabric: next(fabric.topic("t").read(0)),
    ],
    ids=["pop", "fetch"],
)
def test_who_asked_is_told_and_others_are_answered(tmp_path: Path, ask: Ask) -> None:
    with penstock.open(str(tmp_path / "data")) as fabric:
        fabric.queue("q").push_many([b"a", b"b", b"c"])
        fabric.topic("t", 1).publish(b"v")
        with pytest.raises(DamagedError, match="nobody has thought of that"):
            ask(fabric)
        assert fabric.queue("q").pop_many(1)
        assert next(iter(fabric.topic("t").read(0))).values == [b"v"]


@pytest.mark.usefixtures("failing")
def test_a_subscription_gets_what_comes_after(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "data")) as fabric:
        queue = fabric.queue("q")
        queue.push(b"first")
        with queue.consume(idle_timeout=5.0, prefetch=1) as messages:
            queue.push(b"second")
            assert next(messages).value == b"second"
        assert any("nobody" in text for text in fabric.stats()["read_damage"])
