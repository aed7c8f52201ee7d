"""The protocol core: matching, sending again, and answers that make no sense."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.consume import QueueSubscription
from penstock.client.producer import Lane, Verdict
from penstock.client.protocol import FORGOTTEN_AFTER_S, Protocol
from penstock.client.push import PLAIN, Place, PushRequest
from penstock.client.requests import Pending, Request, Resend, Subscription, listen, unlisten
from penstock.client.rows import Rows
from penstock.client.sequenced import sent_again
from penstock.client.settle import Settler
from penstock.errors import (
    ConflictError,
    ForgottenError,
    LimitError,
    PenstockError,
    ProtocolError,
    TooLargeError,
    UnavailableError,
)
from penstock.wire.buffers import Buffer
from penstock.wire.frames import (
    COUNT,
    FRAME,
    POP,
    Flag,
    PopBody,
    Verb,
    error_frame,
    frame,
)
from penstock.wire.messages import Welcome

OK = int(Flag.RESPONSE)


class Recorder(Request):
    """Notes what the protocol tells it, and counts how often its parts were asked for."""

    __slots__ = ("built", "heard")

    def __init__(self, verb: int = Verb.CALL, resend: Resend = Resend.MARKED) -> None:
        super().__init__(verb, [b"body"], resend)
        self.heard: list[object] = []
        self.built = 0

    def parts(self) -> list[Buffer]:
        self.built += 1
        return super().parts()

    def answered(self, answer: bytearray) -> None:
        self.heard.append("answered")

    def refused(self, error: PenstockError) -> None:
        self.heard.append(error)

    def answered_late(self, answer: bytearray) -> None:
        self.heard.append("late")


def answer(pending: Pending, body: bytes = b"") -> bytearray:
    return bytearray(frame(pending.request.verb, pending.id, OK, body))


def refusal(pending: Pending, error: PenstockError) -> bytearray:
    return bytearray(error_frame(pending.request.verb, pending.id, error))


def flags_of(pending: Pending) -> int:
    flags: int = FRAME.unpack_from(pending.parts[0])[2]
    return flags


def recorder(pending: Pending) -> Recorder:
    assert isinstance(pending.request, Recorder)
    return pending.request


def sent(protocol: Protocol, request: Request) -> Pending:
    pending = protocol.start(request)
    pending.sent = True
    return pending


def test_answers_find_their_requests_in_any_order():
    protocol = Protocol()
    first, second = sent(protocol, Recorder()), sent(protocol, Recorder())
    protocol.receive([answer(second, b"two"), answer(first, b"one")])
    assert [bytes(each.result()[16:]) for each in (first, second)] == [b"one", b"two"]
    assert not protocol.in_flight
    assert recorder(first).heard == ["answered"]


def test_a_frame_has_the_length_and_the_id_of_its_request():
    pending = Protocol().start(Recorder(Verb.PUSH))
    whole = b"".join(pending.parts)
    assert FRAME.unpack_from(whole) == (len(whole), Verb.PUSH, 0, 0, pending.id)


def test_a_refusal_is_raised_and_told_to_the_request():
    protocol = Protocol()
    pending = sent(protocol, Recorder())
    protocol.receive([refusal(pending, ConflictError("no"))])
    with pytest.raises(ConflictError, match="no"):
        pending.result()
    assert isinstance(recorder(pending).heard[0], ConflictError)


def test_who_listens_is_woken_when_the_answer_is_there():
    protocol = Protocol()
    pending = sent(protocol, Recorder())
    woken: list[str] = []

    def one() -> None:
        woken.append("one")

    def two() -> None:
        woken.append("two")

    listen(pending, one)
    listen(pending, two)
    unlisten(pending, one)
    protocol.receive([answer(pending)])
    assert woken == ["two"]


def test_after_a_reconnect_everything_is_sent_again_in_order():
    protocol = Protocol()
    push = sent(protocol, Recorder(Verb.PUSH))
    pop = sent(protocol, Recorder(Verb.POP, Resend.ANEW))
    call = sent(protocol, Recorder(Verb.CALL))
    unsent = protocol.start(Recorder(Verb.PUSH))
    again = protocol.resend()
    assert again == [push, pop, call, unsent]
    assert [flags_of(each) for each in again] == [Flag.RESEND, 0, Flag.RESEND, 0]
    assert [recorder(each).built for each in again] == [1, 2, 1, 1]
    assert all(b"".join(each.parts[1:]) == b"body" for each in again)


def test_a_node_that_is_going_leaves_the_request_in_flight():
    protocol = Protocol()
    going, other = sent(protocol, Recorder()), sent(protocol, Recorder())
    with pytest.raises(UnavailableError):
        protocol.receive([refusal(going, UnavailableError("stopping")), answer(other)])
    assert other.done
    assert not going.done
    assert protocol.resend() == [going]


def test_a_cancelled_request_hears_of_a_late_answer_only():
    protocol = Protocol()
    pending = sent(protocol, Recorder(Verb.POP, Resend.ANEW))
    protocol.forget(pending)
    assert protocol.cancel_frame(pending.id) == frame(Verb.CANCEL, pending.id)
    protocol.receive([answer(pending)])
    assert recorder(pending).heard == ["late"]
    assert not pending.done
    assert protocol.resend() == []


def test_the_bound_on_requests_in_flight_is_the_lower_of_both():
    protocol = Protocol()
    protocol.welcome(Welcome(1, "n", 1, 16, 1 << 20, 100))
    while not protocol.full:
        protocol.start(Recorder())
    assert len(protocol.in_flight) == 84
    assert protocol.room == 0
    with pytest.raises(LimitError):
        protocol.start(Recorder())
    for _ in range(8):
        protocol.start(Recorder(), reserved=True)
    for _ in range(8):
        assert not protocol.packed
        protocol.subscribe(Subscription(Recorder()))
    assert protocol.packed
    with pytest.raises(LimitError):
        protocol.start(Recorder(), reserved=True)


def test_a_request_over_the_nodes_frame_is_refused_before_it_is_sent():
    protocol = Protocol()
    protocol.welcome(Welcome(1, "n", 1, 16, 64, 100))
    large = Request(Verb.CALL, [bytes(100)], Resend.MARKED)
    with pytest.raises(TooLargeError):
        protocol.start(large)
    assert not protocol.in_flight


def test_a_failing_request_leaves_nothing_behind():
    class Failing(Recorder):
        __slots__ = ()

        def parts(self) -> list[Buffer]:
            raise TooLargeError("no")

    protocol = Protocol()
    with pytest.raises(TooLargeError):
        protocol.start(Failing())
    assert not protocol.in_flight


@pytest.mark.parametrize(
    "hostile",
    [
        frame(Verb.CALL, 99, OK),
        frame(Verb.POP, 1, OK),
        frame(Verb.PUSH, 1),
        frame(Verb.DELIVER, 1, 0, COUNT.pack(0, 0)),
        frame(Verb.EVENT, 7, 0, b"x"),
        FRAME.pack(99, Verb.CALL, OK, 0, 1),
        FRAME.pack(3, Verb.CALL, OK, 0, 1),
    ],
)
def test_frames_that_make_no_sense_end_the_connection(hostile):
    protocol = Protocol()
    pending = sent(protocol, Recorder())
    with pytest.raises(ProtocolError):
        protocol.receive([bytearray(hostile)])
    assert not pending.done


def test_what_was_meant_for_the_transport_changes_nothing():
    protocol = Protocol()
    pending = protocol.start(Recorder())
    protocol.receive([bytearray(frame(Verb.COMING, 0)), answer(pending, b"done")])
    assert pending.done
    assert recorder(pending).heard == ["answered"]


def test_an_error_that_cannot_be_read_is_still_an_error():
    protocol = Protocol()
    pending = sent(protocol, Recorder())
    protocol.receive([bytearray(frame(Verb.CALL, pending.id, OK | Flag.ERROR, b"\xff\xff"))])
    with pytest.raises(ProtocolError, match="cannot be read"):
        pending.result()


def test_failing_ends_requests_and_subscriptions():
    protocol = Protocol()
    pending = sent(protocol, Recorder())
    subscription = Subscription(Recorder(Verb.SUBSCRIBE, Resend.ANEW))
    protocol.subscribe(subscription)
    protocol.fail(ProtocolError("broken"))
    assert isinstance(pending.error, ProtocolError)
    assert isinstance(subscription.error, ProtocolError)
    assert not protocol.waiting


def credit_of(pending: Pending) -> int:
    return PopBody(*POP.unpack(b"".join(pending.parts[1:]))).messages


def deliver(subscription: Subscription, messages: int) -> bytearray:
    return bytearray(frame(Verb.DELIVER, subscription.id, 0, COUNT.pack(0, messages)))


def test_a_subscription_is_renewed_with_the_credit_that_is_left():
    protocol = Protocol()
    subscription = QueueSubscription(Settler(1), 100, 0)
    pending = protocol.subscribe(subscription)
    assert credit_of(pending) == 100
    pending.sent = True
    protocol.receive([answer(pending), deliver(subscription, 30)])
    subscription.given += 10
    (again,) = protocol.resend()
    assert (again.id, credit_of(again), flags_of(again)) == (subscription.id, 80, 0)
    again.sent = True
    protocol.receive([deliver(subscription, 5)])
    assert credit_of(protocol.resend()[0]) == 75
    assert len(subscription.inbox) == 2


def test_credit_that_is_given_between_two_lost_connections_is_not_lost():
    protocol = Protocol()
    subscription = QueueSubscription(Settler(1), 1, 0)
    begun = protocol.subscribe(subscription)
    begun.sent = True
    protocol.receive([answer(begun), deliver(subscription, 1)])
    push = sent(protocol, Recorder(Verb.PUSH))
    # The connection is lost, and the next one is while the push is sent again: no more is sent.
    assert protocol.resend() == [push, protocol.in_flight[subscription.id]]
    # The message was handed out; what the consumer says of that has no way to the node.
    subscription.given += 1
    first, again = protocol.resend()
    assert (first, again.id) == (push, subscription.id)
    assert credit_of(again) == 1, "else the node has none to deliver for, and it is never given"
    assert not again.request.resent


def test_credit_that_is_given_before_there_is_a_connection_is_not_lost():
    protocol = Protocol()
    subscription = QueueSubscription(Settler(1), 1, 0)
    begun = protocol.subscribe(subscription)
    subscription.given += 9
    assert protocol.resend() == [begun]
    assert credit_of(begun) == 10


def test_a_subscription_that_is_refused_on_renewal_fails():
    protocol = Protocol()
    subscription = QueueSubscription(Settler(1), 100, 0)
    protocol.receive([answer(protocol.subscribe(subscription))])
    (again,) = protocol.resend()
    protocol.receive([refusal(again, ConflictError("gone"))])
    assert subscription.done
    assert isinstance(subscription.error, ConflictError)
    assert protocol.resend() == []


def test_what_crosses_the_end_of_a_subscription_is_late():
    class Noting(Subscription):
        __slots__ = ("late",)

        def arrived_late(self, frame_: bytearray) -> None:
            self.late = frame_

    protocol = Protocol()
    subscription = Noting(Recorder(Verb.SUBSCRIBE, Resend.ANEW))
    protocol.receive([answer(protocol.subscribe(subscription))])
    protocol.unsubscribe(subscription)
    crossed = deliver(subscription, 1)
    protocol.receive([crossed])
    assert subscription.late is crossed
    assert not subscription.inbox
    assert protocol.resend() == []


def test_a_push_that_is_too_old_to_be_recognised_is_not_sent_again():
    protocol = Protocol()
    protocol.welcome(Welcome(1, "", 0, 256, 17 << 20, 1024))
    old, young = (Request(Verb.PUSH, [b""], Resend.MARKED) for _ in range(2))
    first, second = protocol.start(old), protocol.start(young)
    first.sent, first.since_s = True, 100.0
    second.sent, second.since_s = True, 100.0 + FORGOTTEN_AFTER_S
    assert protocol.resend(101.0 + FORGOTTEN_AFTER_S) == [second]
    with pytest.raises(ForgottenError):
        first.result()


def test_a_push_whose_outcome_nobody_knows_is_not_sent_under_new_numbers_either():
    protocol, lane = Protocol(), Lane(7)
    push = PushRequest(Place(1, 0, 3, lambda shard: lane), Rows((b"v",), None, None), PLAIN, 5)
    pending = protocol.start(push)
    pending.sent, pending.since_s = True, 100.0
    assert protocol.resend(101.0 + FORGOTTEN_AFTER_S) == []
    with pytest.raises(ForgottenError) as raised:
        pending.result()
    again = sent_again(push, raised.value)
    with pytest.raises(ForgottenError):
        next(again)
    assert push.verdict is Verdict.FINAL
    assert not lane.mend()  # nor are its numbers another's


class Interrupted(dict[int, Pending]):
    """Does what another thread does, once, in the middle of a look or a change."""

    def __init__(self, held: dict[int, Pending], meanwhile: Callable[[], None]) -> None:
        super().__init__(held)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def _interrupt(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def get(self, key, default=None):
        found = super().get(key, default)
        self._interrupt()
        return found

    def pop(self, key, default=None):
        found = super().pop(key, default)
        self._interrupt()
        return found


def test_an_answer_that_is_read_while_it_is_given_up_is_late() -> None:
    protocol, request = Protocol(), Recorder()
    pending = protocol.start(request)
    protocol.in_flight = Interrupted(protocol.in_flight, lambda: protocol.forget(pending))
    protocol.receive([answer(pending)])
    assert request.heard == ["late"]


def test_a_request_is_given_up_while_its_answer_is_read() -> None:
    protocol, request, other = Protocol(), Recorder(), Recorder()
    pending, bystander = protocol.start(request), protocol.start(other)
    protocol.in_flight = Interrupted(
        protocol.in_flight, lambda: protocol.receive([answer(pending)])
    )
    protocol.forget(pending)
    assert request.heard == ["late"]
    protocol.receive([answer(bystander)])
    assert other.heard == ["answered"]


def test_a_connection_that_fails_while_an_answer_is_read() -> None:
    protocol, request = Protocol(), Recorder()
    pending = protocol.start(request)
    lost = UnavailableError("lost")
    protocol.in_flight = Interrupted(protocol.in_flight, lambda: protocol.fail(lost))
    protocol.receive([answer(pending)])
    assert pending.done
    assert isinstance(request.heard[0], UnavailableError)


def test_each_who_waits_has_an_error_of_its_own() -> None:
    """What one notes on it, such as how much was stored, is not what the other has to know."""
    protocol = Protocol()
    first, second = (protocol.start(Recorder()) for _ in range(2))
    protocol.fail(UnavailableError("gone", advice="Look."))
    for number, pending in enumerate((first, second)):
        with pytest.raises(UnavailableError, match=r"gone \(Look.\)") as raised:
            pending.result()
        raised.value.add_note(f"{number}")
        assert raised.value.__notes__ == [f"{number}"]
