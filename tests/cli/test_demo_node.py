"""The demo: a small run with real processes, and its books against made-up reports."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from penstock.cli.demo_node import run_demo, table_of
from penstock.cli.demonstration import message
from penstock.cli.demonstration.clients import Consumed, Pushed
from penstock.cli.demonstration.ledger import Ledger

LEASE = 2.0
SECOND = 1_000_000_000


def consumed(
    numbers: list[int], at_s: float, deliveries: int = 1, accepted: bool = True,
    sent_s: float = 0.9,
) -> Consumed:  # fmt: skip
    count = len(numbers)
    return Consumed(
        np.zeros(count, np.uint32),
        np.array(numbers, np.uint32),
        np.full(count, int((at_s - sent_s) * SECOND), np.int64),
        np.full(count, deliveries, np.uint16),
        np.full(count, accepted, np.bool_),
        int(at_s * SECOND),
    )


def ledger_of(*reports: Consumed, stored: int = 3, killed_s: float | None = None) -> Ledger:
    ledger = Ledger(1, 3, LEASE)
    ledger.pushed(Pushed(0, 0, stored, 0.001))
    ledger.killed_ns = None if killed_s is None else int(killed_s * SECOND)
    for report in reports:
        ledger.consumed(report)
    return ledger


def verdict(ledger: Ledger) -> tuple[int, int, int]:
    return ledger.lost, ledger.acked_twice, ledger.without_cause


def test_everything_once_is_right() -> None:
    assert verdict(ledger_of(consumed([0, 1, 2], 1.0))) == (0, 0, 0)


def test_a_stored_message_without_an_accepted_ack_is_lost() -> None:
    assert verdict(ledger_of(consumed([0, 2], 1.0))) == (1, 0, 0)
    assert verdict(ledger_of(consumed([0, 1, 2], 1.0, accepted=False))) == (3, 0, 0)


def test_a_message_that_was_never_acknowledged_is_not_lost() -> None:
    assert verdict(ledger_of(consumed([0, 1], 1.0), stored=2)) == (0, 0, 0)


def test_two_accepted_acks_are_found() -> None:
    ledger = ledger_of(consumed([0, 1, 2], 1.0), consumed([1], 9.0, deliveries=2))
    assert verdict(ledger) == (0, 1, 0)


def test_a_second_first_delivery_has_no_cause() -> None:
    ledger = ledger_of(consumed([0, 1, 2], 1.0, accepted=False), consumed([0, 1, 2], 9.0))
    assert verdict(ledger) == (0, 0, 3)


def test_a_delivery_after_the_lease_has_a_cause_and_one_within_it_has_none() -> None:
    first = consumed([0, 1, 2], 1.0, accepted=False)
    assert verdict(ledger_of(first, consumed([0, 1, 2], 3.5, 2))) == (0, 0, 0)
    assert verdict(ledger_of(first, consumed([0, 1, 2], 1.5, 2))) == (0, 0, 3)


def test_reports_of_two_consumers_may_arrive_in_any_order() -> None:
    later, first = consumed([0, 1, 2], 3.5, 2), consumed([0, 1, 2], 1.0, accepted=False)
    assert verdict(ledger_of(later, first)) == (0, 0, 0)


def test_the_kill_is_a_cause_only_between_two_deliveries() -> None:
    first, again = consumed([0, 1, 2], 1.0, accepted=False), consumed([0, 1, 2], 1.5, 2)
    assert verdict(ledger_of(first, again, killed_s=1.2)) == (0, 0, 0)
    assert verdict(ledger_of(first, again, killed_s=0.5)) == (0, 0, 3)


def test_what_was_under_way_at_the_kill_may_be_taken_up_after_it() -> None:
    """By a consumer that waited for the node; that is a cause if a lease could run out meanwhile,
    and none for what was sent later."""
    for sent_s, taken_s, wrong in ((0.9, 4.0, 0), (1.3, 4.0, 3), (0.9, 1.5, 3)):
        first = consumed([0, 1, 2], taken_s, accepted=False, sent_s=sent_s)
        again = consumed([0, 1, 2], taken_s + 0.1, 2, sent_s=sent_s)
        assert verdict(ledger_of(first, again, killed_s=1.2)) == (0, 0, wrong)


def test_a_first_delivery_that_nobody_saw_was_lost_in_the_kill_or_has_no_cause() -> None:
    again = consumed([0, 1, 2], 1.5, 2)
    assert verdict(ledger_of(again, killed_s=1.2)) == (0, 0, 0)
    assert verdict(ledger_of(again)) == (0, 0, 3)


def test_the_same_delivery_count_twice_has_no_cause() -> None:
    reports = [consumed([0, 1, 2], 1.0, accepted=False), consumed([0], 4.0, 2, accepted=False)]
    ledger = ledger_of(*reports, consumed([0], 8.0, 2), consumed([1, 2], 4.0, 2))
    assert verdict(ledger) == (0, 0, 1)


def test_messages_carry_who_and_which() -> None:
    values = message.make(3, 500, 10)
    rows = message.read(values)
    assert {len(value) for value in values} == {100}
    assert rows["producer"].tolist() == [3] * 10
    assert rows["number"].tolist() == list(range(500, 510))
    assert len(set(rows["sent_ns"].tolist())) == 1


def test_a_small_demo_keeps_every_promise() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)
    run = run_demo(20_000, console, lease=1.0)
    console.print(table_of(run))
    assert run.correct, output.getvalue()
    assert run.complete
    assert run.ledger.killed_ns is not None
    assert run.recovery_seconds > 0
    assert not any(process.is_alive() for process in run.processes)
    text = output.getvalue()
    assert "acknowledged and lost" in text
    assert "SIGKILL" in text
