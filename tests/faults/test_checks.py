"""The checkers of `make faults` against made-up histories: they pass what is right, only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.faulting.breaking import Fault
from penstock.cli.faulting.check_queue import QueueVerdict, check_queue
from penstock.cli.faulting.check_table import TableVerdict, check_table
from penstock.cli.faulting.check_topic import TopicVerdict, check_topic
from penstock.cli.faulting.ledgers import ACCEPTED, READ, REFUSED, UNKNOWN, Ledger, row_count
from penstock.cli.faulting.pauses import clients_of, pauses_around
from penstock.cli.faulting.topic_work import KEYS

LEASE = 5.0
SECOND = 1_000_000_000


def ns(seconds: float) -> int:
    return int(seconds * SECOND)


class History:
    """Ledgers in a folder, written row by row; times are seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, name: str, *values: int) -> None:
        with Ledger(self.folder / name) as ledger:
            ledger.note(*values)

    def pushed(self, first: int, count: int, verdict: int = ACCEPTED, at: float = 1.0) -> None:
        self.note("producer-1.pushed", first, count, verdict, ns(at), ns(at + 0.01))

    def consumed(
        self, number: int, at: float, delivery: int = 1, verdict: int = ACCEPTED, consumer: int = 1
    ) -> None:
        name = f"consumer-{consumer}.consumed"
        self.note(name, 1, number, delivery, verdict, ns(at), ns(at + 0.01))

    def left(self, start: float, end: float) -> None:
        self.note("consumer-1.left", ns(start), ns(end))

    def published(self, first: int, count: int, verdict: int = ACCEPTED) -> None:
        self.note("publisher-1.published", first, count, verdict, ns(1), ns(1.01))

    def seen(self, number: int, offset: int, partition: int = 0) -> None:
        self.note("reader-1.seen", partition, offset, number, ns(2))

    def table(
        self, value: int, verdict: int, start: float, end: float, key: int = 0, by: int = 1
    ) -> None:
        self.note(f"counter-{by}.written", key, value, verdict, ns(start), ns(end))

    def queue(self, *faults: tuple[float, float]) -> QueueVerdict:
        return check_queue(self.folder, LEASE, [(ns(begun), ns(over)) for begun, over in faults])


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


# --- the queue -------------------------------------------------------------------------------


def test_everything_once_is_right(history: History) -> None:
    history.pushed(0, 2)
    history.pushed(2, 1)
    for number in range(3):
        history.consumed(number, 1.1)
    assert history.queue() == QueueVerdict(acknowledged=3, consumed=3, prompt=3)
    assert row_count(history.folder / "consumer-1.consumed") == 3


def test_what_was_acknowledged_and_never_acked_is_lost(history: History) -> None:
    history.pushed(0, 3)
    history.consumed(0, 1.1)
    history.consumed(1, 1.1, verdict=REFUSED)
    assert history.queue().lost == 2


def test_an_ack_of_which_nobody_knows_loses_nothing(history: History) -> None:
    history.pushed(0, 1)
    history.pushed(1, 1, UNKNOWN)
    history.consumed(0, 1.1, verdict=UNKNOWN)
    found = history.queue()
    assert (found.lost, found.unknown_acks, found.unknown_pushes) == (0, 1, 1)


def test_two_accepted_acks_are_found_and_the_second_delivery_had_no_cause(history: History) -> None:
    history.pushed(0, 1)
    history.consumed(0, 1.1)
    history.consumed(0, 9.0, delivery=2, consumer=2)
    found = history.queue()
    assert (found.acked_twice, found.without_cause) == (1, 1)


def test_what_nobody_pushed_is_found(history: History) -> None:
    history.pushed(0, 1)
    history.consumed(0, 1.1)
    history.consumed(7, 1.1)
    history.note("consumer-1.consumed", 9, 0, 1, ACCEPTED, ns(1), ns(2))
    assert history.queue().unsent == 2


@pytest.mark.parametrize(("again_at", "wrong"), [(1.5, 1), (6.2, 0)])
def test_a_lease_has_to_run_out_first(history: History, again_at: float, wrong: int) -> None:
    history.pushed(0, 1)
    history.consumed(0, 1.1, verdict=REFUSED)
    history.consumed(0, again_at, delivery=2)
    assert history.queue().without_cause == wrong
    assert history.queue().delivered_again == 1


def test_the_same_delivery_twice_has_no_cause_even_in_a_fault(history: History) -> None:
    history.pushed(0, 1)
    history.consumed(0, 1.1, verdict=REFUSED)
    history.consumed(0, 9.0, consumer=2)
    assert history.queue((1.0, 9.0)).without_cause == 1


def test_an_answer_that_came_late_may_be_seen_after_the_next_delivery(history: History) -> None:
    """The first delivery waited, in a network that was cut or behind others, until after its
    lease."""
    history.pushed(0, 1)
    history.consumed(0, 13.0, verdict=REFUSED)
    history.consumed(0, 7.0, delivery=2, consumer=2)
    assert history.queue().without_cause == 0


def test_leases_that_were_seen_run_one_after_the_other(history: History) -> None:
    history.pushed(0, 1)
    history.consumed(0, 1.1, verdict=REFUSED)
    history.consumed(0, 6.2, delivery=2, verdict=REFUSED)
    history.consumed(0, 10.9, delivery=3)
    assert history.queue().without_cause == 1


def test_a_delivery_that_nobody_saw_needs_a_fault_a_return_or_a_lease(history: History) -> None:
    history.pushed(0, 1)
    history.consumed(0, 2.0, delivery=2)
    assert history.queue().without_cause == 1
    assert history.queue((1.5, 1.8)).without_cause == 0
    history.left(1.2, 1.9)
    assert history.queue().without_cause == 0


# --- the topic -------------------------------------------------------------------------------


def test_a_topic_in_order_is_right(history: History) -> None:
    history.published(0, 2)
    history.published(2, 1, UNKNOWN)
    history.seen(0, 0)
    history.seen(1, 0, partition=1)
    expected = TopicVerdict(acknowledged=2, unknown_publishes=1, read=2)
    assert check_topic(history.folder) == expected


def test_what_is_missing_doubled_or_made_up_in_a_topic_is_found(history: History) -> None:
    history.published(0, 3)
    for offset, number in enumerate((0, 0, 9)):
        history.seen(number, offset)
    found = check_topic(history.folder)
    assert (found.lost, found.doubled, found.unsent) == (2, 1, 1)


def test_numbers_that_go_back_in_a_key_and_offsets_with_gaps_are_found(history: History) -> None:
    history.published(0, 2 * KEYS)
    history.seen(KEYS, 0)
    history.seen(0, 1)
    assert check_topic(history.folder).out_of_order == 1
    history.seen(1, 3)
    assert check_topic(history.folder).out_of_order == 2


# --- the table -------------------------------------------------------------------------------


def test_counts_that_follow_each_other_are_right(history: History) -> None:
    history.table(0, READ, 1.0, 1.1)
    history.table(1, ACCEPTED, 1.2, 1.3)
    history.table(1, REFUSED, 1.2, 1.3, by=2)
    history.table(2, UNKNOWN, 1.4, 1.5, by=2)
    history.table(2, READ, 1.6, 1.7)
    expected = TableVerdict(counted=1, conflicts=1, unknown_writes=1)
    assert check_table(history.folder) == expected


def test_a_number_that_two_have_written_is_a_lost_update(history: History) -> None:
    history.table(1, ACCEPTED, 1.0, 1.1)
    history.table(1, ACCEPTED, 1.0, 1.1, by=2)
    history.table(1, READ, 1.2, 1.3)
    assert check_table(history.folder).lost_updates == 1


def test_a_count_that_is_gone_in_the_end_is_a_lost_update(history: History) -> None:
    history.table(1, ACCEPTED, 1.0, 1.1)
    history.table(0, READ, 1.2, 1.3)
    found = check_table(history.folder)
    assert (found.lost_updates, found.stale_reads) == (1, 1)


def test_a_number_that_nobody_wrote_is_found(history: History) -> None:
    history.table(2, READ, 1.2, 1.3)
    assert check_table(history.folder).lost_updates == 2


def test_a_read_at_the_same_time_as_a_write_may_show_either(history: History) -> None:
    history.table(1, ACCEPTED, 1.0, 2.0)
    history.table(0, READ, 1.5, 1.6)
    history.table(1, READ, 2.1, 2.2)
    assert check_table(history.folder).stale_reads == 0


# --- pauses ----------------------------------------------------------------------------------


def test_pauses_belong_to_the_fault_they_lie_in(history: History) -> None:
    for at in (1.0, 4.0, 5.0, 10.0, 10.5):
        history.pushed(0, 1, at=at - 0.01)
    history.pushed(0, 1, UNKNOWN, at=2.0)
    faults = [Fault("a", ns(1.1)), Fault("b", ns(5.1))]
    clients = clients_of(history.folder, {"producer-1": 0}, ns(12))
    first, second = pauses_around(faults, clients)
    assert first.producer == pytest.approx(3.0)
    assert second.producer == pytest.approx(5.0)
    assert second.longest == pytest.approx(5.0)


def test_a_client_that_never_comes_back_pauses_until_the_end(history: History) -> None:
    history.pushed(0, 1, at=0.99)
    clients = clients_of(history.folder, {"producer-1": 0}, ns(31))
    (found,) = pauses_around([Fault("a", ns(2))], clients)
    assert found.producer == pytest.approx(30.0)


def test_of_clients_that_were_cut_off_the_time_after_it_counts(history: History) -> None:
    for at in (1.0, 9.0):
        history.pushed(0, 1, at=at - 0.01)
    fault = Fault("cut", ns(1.5), cut=1, repaired_ns=ns(8))
    (found,) = pauses_around([fault], clients_of(history.folder, {"producer-1": 1}, ns(10)))
    assert found.producer == 0.0
    assert found.rejoined == pytest.approx(1.0)
