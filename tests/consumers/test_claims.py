"""How a member gets partitions, keeps them and gives them away: as scripts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.consumers.conversation import FREE, MS, Conversation

from penstock.consumers import claim_events as e
from penstock.consumers.membership import Drain, Member
from penstock.consumers.rules import Rules
from penstock.consumers.schedule import Schedule, Window
from penstock.errors import InvalidError

RULES = Rules()
MINE = ("a", 1, 9000)


def lease_ms() -> int:
    return RULES.lease_us // MS


# --- getting --------------------------------------------------------------------------------


def test_it_looks_joins_claims_and_starts():
    talk = Conversation()
    talk.looked({0: FREE, 1: FREE}, members="")
    assert talk.actions == [e.Join()]
    talk.looked({0: FREE, 1: FREE})
    first, second = talk.all(e.Claim)
    assert (first.partition, second.partition) == (0, 1)
    assert talk.granted(first, 7) == [e.Start(0, 7)]
    assert talk.claims.may_process(0, talk.now_us)
    assert not talk.claims.may_process(1, talk.now_us)


def test_it_claims_its_share_and_leaves_the_rest_to_the_others():
    talk = Conversation()
    talk.looked(dict.fromkeys(range(6), FREE), members="abc")
    assert [claim.partition for claim in talk.all(e.Claim)] == [0, 1]


def test_what_somebody_left_is_claimed_when_its_lease_is_over():
    talk = Conversation()
    talk.looked({0: ("gone", 4, 3000)})
    assert talk.all(e.Claim) == []
    asked_ms = talk.now_us // MS
    talk.wait(5000)
    assert 3000 <= talk.the(e.Claim).asked_us // MS - asked_ms < 3100


def test_so_many_claims_wait_for_answers_and_no_more():
    talk = Conversation(Rules(max_calls=3))
    talk.looked(dict.fromkeys(range(10), FREE))
    claims = talk.all(e.Claim)
    assert len(claims) == 3
    talk.granted(claims[0])
    assert [claim.partition for claim in talk.all(e.Claim)] == [3]


def test_a_refused_claim_is_not_repeated_before_another_look():
    talk = Conversation()
    talk.looked({0: FREE})
    talk.give(e.Refused(0, "b", talk.the(e.Claim).asked_us))
    talk.until_look()
    assert talk.all(e.Claim) == []
    assert talk.now_us >= RULES.check_us


def test_a_grant_whose_answer_is_lost_is_found_and_renewed_before_it_is_processed():
    talk = Conversation()
    talk.looked({0: FREE})
    talk.looked({0: ("a", 3, 8000)})
    assert talk.all(e.Start) == []
    renew = talk.the(e.Renew)
    assert renew.claims == ((0, 3),)
    assert talk.give(e.Renewed(renew.claims, renew.asked_us)) == [e.Start(0, 3)]


def test_a_claim_that_was_granted_already_is_looked_for():
    talk = Conversation()
    talk.looked({0: FREE})
    claim = talk.the(e.Claim)
    talk.give(e.Refused(0, "a", claim.asked_us))
    talk.until_look()
    assert talk.now_us < claim.asked_us + RULES.check_us


def test_a_grant_that_comes_too_late_is_renewed_before_it_is_processed():
    talk = Conversation()
    talk.looked({0: FREE})
    claim = talk.the(e.Claim)
    talk.wait(lease_ms())
    talk.granted(claim)
    assert talk.all(e.Start) == []
    assert talk.the(e.Renew).claims == ((0, 1),)


def test_a_grant_is_told_twice_and_counts_once():
    talk = Conversation()
    talk.looked({0: FREE})
    claim = talk.the(e.Claim)
    talk.granted(claim)
    assert talk.granted(claim) == []


def test_the_answer_to_an_older_look_is_not_listened_to():
    talk = Conversation()
    old = talk.until_look()
    talk.wait(RULES.answer_us // MS)
    new = talk.until_look()
    assert talk.looked({0: FREE}, look=old) == []
    talk.looked({0: FREE}, look=new)
    assert talk.the(e.Claim).partition == 0


def test_what_its_node_did_not_tell_is_left_alone_and_looked_at_again():
    talk = Conversation()
    talk.looked({0: None, 1: FREE})
    claim = talk.the(e.Claim)
    assert claim.partition == 1
    talk.granted(claim)
    talk.looked({0: FREE, 1: MINE})
    assert talk.now_us < 3 * RULES.check_us
    assert talk.the(e.Claim).partition == 0


# --- keeping --------------------------------------------------------------------------------


def test_claims_are_renewed_in_one_call_several_times_in_a_lease():
    talk = Conversation()
    talk.owns(0, 1, 2)
    renewals = [a for a in talk.wait(lease_ms() * 9 // 10) if isinstance(a, e.Renew)]
    assert len(renewals) in (3, 4)
    assert {renew.claims for renew in renewals} == {((0, 1), (1, 1), (2, 1))}


def test_processing_stops_by_itself_a_margin_before_the_lease_is_over():
    talk = Conversation()
    talk.looked({0: FREE})
    claim = talk.the(e.Claim)
    talk.wait(500)
    talk.granted(claim)
    end_us = claim.asked_us + RULES.lease_us - RULES.margin_us
    assert talk.claims.may_process(0, end_us - 1)
    assert not talk.claims.may_process(0, end_us)
    talk.wait((end_us - talk.now_us) // MS - 1)
    assert talk.all(e.Stop) == []
    talk.wait(2)
    assert talk.the(e.Stop).partition == 0


def test_who_wakes_from_a_pause_stops_first_and_goes_on_once_it_is_renewed():
    talk = Conversation()
    talk.owns(0)
    talk.jump(20_000)
    assert not talk.claims.may_process(0, talk.now_us)
    talk.give(e.MembersChanged())
    stop, renew = talk.actions
    assert isinstance(stop, e.Stop)
    assert isinstance(renew, e.Renew)
    assert talk.give(e.Renewed(renew.claims, renew.asked_us)) == [e.Start(0, 1)]


def test_an_answer_from_before_a_pause_does_not_make_a_claim_younger():
    talk = Conversation()
    talk.owns(0)
    talk.wait(3000)
    renew = talk.all(e.Renew)[-1]
    talk.jump(20_000)
    talk.give(e.Renewed(renew.claims, renew.asked_us))
    assert talk.all(e.Start) == []
    assert not talk.claims.may_process(0, talk.now_us)


def test_what_cannot_be_renewed_is_lost_and_the_rest_goes_on():
    talk = Conversation()
    talk.owns(0, 1)
    talk.give(e.RenewalRefused(((1, 1),)))
    assert talk.the(e.Stop).partition == 1
    assert talk.claims.may_process(0, talk.now_us)
    talk.until_look()
    assert talk.now_us < RULES.check_us


def test_what_a_look_shows_with_another_is_stopped_at_once():
    talk = Conversation()
    talk.owns(0, 1)
    talk.looked({0: MINE, 1: ("b", 2, 9000)}, members="ab")
    assert talk.all(e.Stop) == [e.Stop(1, 1, "b had it")]


def test_news_from_before_a_claim_do_not_count():
    talk = Conversation()
    talk.looked({0: FREE})
    look = talk.until_look()
    talk.granted(e.Claim(0, RULES.lease_us, talk.now_us), 5)
    talk.looked({0: ("b", 4, 100)}, members="ab", look=look)
    assert talk.all(e.Stop) == []
    assert talk.claims.may_process(0, talk.now_us)


def test_who_is_not_in_the_table_joins_again_and_keeps_what_it_has():
    talk = Conversation()
    talk.owns(0, 1)
    talk.looked({0: MINE, 1: MINE}, members="b")
    assert talk.all(e.Join) == [e.Join()]
    assert talk.all(e.Stop) == []


# --- giving ---------------------------------------------------------------------------------


def give_one() -> Conversation:
    """`a` has two partitions, and `b` has come: one of them is being handed over."""
    talk = Conversation()
    talk.owns(0, 1)
    talk.looked({0: MINE, 1: MINE}, members="ab")
    return talk


def test_a_partition_is_handed_over_released_and_offered_and_the_others_never_stop():
    talk = give_one()
    assert talk.actions == [e.Stop(1, 1, "goes to b"), e.HandOver(1, 1, "b")]
    assert talk.give(e.HandedOver(1, 1)) == [e.Release(1, 1, "for b")]
    assert talk.give(e.Released(1, 1)) == [e.Offer(1, "b")]
    assert talk.claims.may_process(0, talk.now_us)
    talk.looked({0: MINE, 1: ("b", 2, 9000)}, members="ab")
    assert talk.actions == []
    assert talk.claims.offered == {}


def test_so_many_are_handed_over_at_a_time_and_the_others_are_processed_meanwhile():
    talk = Conversation(Rules(max_handovers=2))
    talk.owns(*range(8))
    talk.looked(dict.fromkeys(range(8), MINE), members="ab")
    assert [action.partition for action in talk.all(e.HandOver)] == [4, 5]
    assert talk.claims.may_process(7, talk.now_us)
    talk.give(e.HandedOver(4, 1))
    assert [action.partition for action in talk.all(e.HandOver)] == [6]


def test_a_handover_that_takes_too_long_is_not_waited_for():
    talk = give_one()
    talk.wait(RULES.handover_us // MS)
    assert talk.all(e.Release) == [e.Release(1, 1, "for b, who did not take it over in time")]


def test_a_handover_to_somebody_who_is_gone_is_called_off():
    talk = give_one()
    talk.looked({0: MINE, 1: MINE}, members="a")
    assert talk.actions == [e.Start(1, 1)]


def test_a_claim_that_is_being_handed_over_is_renewed_too():
    talk = give_one()
    talk.wait(3000)
    assert talk.all(e.Renew)[-1].claims == ((0, 1), (1, 1))


def test_a_release_is_repeated_until_it_is_answered_and_ever_less_often():
    talk = give_one()
    talk.give(e.HandedOver(1, 1))
    times = []
    for second in range(60):
        talk.wait(1000)
        times += [second] * len(talk.all(e.Release))
    gaps = [later - before for before, later in pairwise(times)]
    assert len(times) in range(5, 10)
    assert gaps == sorted(gaps)
    assert gaps[-1] == RULES.lease_us // 1_000_000


def test_what_was_given_up_and_nobody_has_is_offered_to_whom_it_should_go_by_now():
    talk = give_one()
    talk.give(e.HandedOver(1, 1))
    talk.give(e.Released(1, 1))
    talk.looked({0: MINE, 1: ("", 1, 0)}, members="ac")
    assert talk.actions == [e.Offer(1, "c")]


def test_what_was_given_up_and_nobody_else_can_have_is_claimed_again():
    talk = give_one()
    talk.give(e.HandedOver(1, 1))
    talk.give(e.Released(1, 1))
    talk.looked({0: MINE, 1: ("", 1, 0)}, members="a")
    assert talk.granted(talk.the(e.Claim), 2) == [e.Start(1, 2)]


def test_news_from_before_a_release_do_not_bring_a_claim_back():
    talk = give_one()
    look = talk.until_look()
    talk.give(e.HandedOver(1, 1))
    talk.give(e.Released(1, 1))
    talk.looked({0: MINE, 1: MINE}, members="ab", look=look)
    assert talk.actions == []
    assert 1 not in talk.claims.holdings


def test_a_change_of_membership_calls_off_what_is_not_begun():
    talk = Conversation(Rules(max_handovers=1))
    talk.owns(*range(4))
    talk.looked(dict.fromkeys(range(4), MINE), members="ab")
    talk.give(e.MembersChanged())
    talk.give(e.HandedOver(2, 1))
    assert talk.all(e.HandOver) == []
    talk.looked(dict.fromkeys(range(4), MINE), members="a")
    assert talk.claims.may_process(3, talk.now_us)


# --- what others offer ----------------------------------------------------------------------


def test_an_offer_is_taken_at_once():
    talk = Conversation()
    talk.looked({0: FREE, 1: ("b", 1, 9000)}, members="ab")
    talk.looked({0: FREE, 1: ("b", 1, 9000), 2: ("b", 1, 9000), 3: ("b", 1, 9000)}, members="ab")
    assert talk.claims.intentions.awaited == {3}
    talk.give(e.Offered((3,), "b"))
    assert talk.the(e.Claim).partition == 3


def test_an_offer_against_the_plan_is_taken_and_looked_into():
    talk = Conversation()
    talk.looked({0: FREE, 1: ("b", 1, 9000)}, members="ab")
    talk.give(e.Offered((1,), "b"))
    assert talk.the(e.Claim).partition == 1
    before_us = talk.now_us
    talk.until_look()
    assert talk.now_us - before_us < RULES.check_us


def test_who_has_what_is_waited_for_is_told_if_it_does_not_come():
    talk = Conversation()
    claims = {0: FREE, 1: ("b", 1, 9000), 2: ("b", 1, 9000), 3: ("b", 1, 9000)}
    talk.looked(claims, members="ab")
    assert talk.all(e.Nudge) == []
    talk.looked(claims, members="ab")
    assert talk.the(e.Nudge) == e.Nudge("b")


def test_what_is_awaited_from_somebody_who_dies_is_claimed_when_its_lease_is_over():
    talk = Conversation()
    talk.looked({0: FREE, 1: ("b", 1, 9000), 2: ("b", 1, 9000), 3: ("b", 1, 9000)}, members="ab")
    talk.granted(talk.the(e.Claim))
    assert talk.claims.intentions.awaited == {3}
    talk.give(e.MembersChanged())
    talk.looked({0: MINE, **dict.fromkeys((1, 2, 3), ("b", 1, 2000))}, members="a")
    assert talk.all(e.Claim) == []
    talk.wait(2500)
    assert [claim.partition for claim in talk.all(e.Claim)] == [1, 2, 3]


def test_who_is_told_so_looks():
    talk = Conversation()
    talk.owns(0)
    talk.looked({0: MINE})
    before_us = talk.now_us
    talk.give(e.Nudged("b"))
    talk.until_look()
    assert talk.now_us - before_us < RULES.check_us


# --- looking --------------------------------------------------------------------------------


def test_many_changes_are_looked_at_once_and_not_put_off_for_ever():
    talk = Conversation()
    talk.owns(0)
    before_us, looks = talk.now_us, []
    for _ in range(40):
        talk.give(e.MembersChanged())
        talk.wait(100)
        looks += talk.all(e.Look)
    [look] = looks
    assert 2_000_000 <= look.asked_us - before_us < 2_500_000


def test_looks_become_rarer_while_nothing_gets_better():
    talk = Conversation()
    times = []
    for _ in range(8):
        talk.looked({0: ("b", 1, 9000), 1: ("b", 1, 9000)}, members="ab")
        times.append(talk.now_us)
    gaps = [later - before for before, later in pairwise(times)]
    waits = [gap / RULES.check_us for gap in gaps]
    assert all(1 << n <= wait < 2 << n for n, wait in enumerate(waits[:4]))
    assert waits[-1] <= 1.5 * RULES.audit_us / RULES.check_us


def test_when_all_is_well_it_looks_rarely():
    talk = Conversation(renewed=True)
    talk.owns(0)
    talk.looked({0: MINE})
    before_us = talk.now_us
    talk.until_look()
    assert RULES.audit_us <= talk.now_us - before_us <= 1.5 * RULES.audit_us


def test_members_look_at_different_moments():
    first = []
    for name in ("a", "b", "c", "d"):
        talk = Conversation(me=name)
        talk.until_look()
        first.append(talk.now_us)
    assert len(set(first)) == 4


# --- leaving --------------------------------------------------------------------------------


def test_who_leaves_gives_all_up_and_then_is_gone():
    talk = Conversation(Rules(max_calls=1))
    talk.owns(0, 1)
    talk.give(e.Leave())
    assert talk.actions == [
        e.Stop(0, 1, "this member leaves"), e.Release(0, 1, "this member leaves"),
    ]  # fmt: skip
    assert talk.claims.may_process(1, talk.now_us)
    talk.give(e.Released(0, 1))
    assert talk.give(e.Released(1, 1)) == [e.Left()]
    assert talk.give(e.Tick()) == []


def test_who_drains_hands_over_little_by_little_and_leaves_at_the_end():
    talk = Conversation()
    talk.owns(*range(4))
    draining = [Member("a", drain=Drain(0, 40_000_000)), Member("b")]
    state = dict.fromkeys(range(4), MINE)
    given = []
    for second in (1, 11, 21, 31, 41):
        talk.looked(state, draining, wall_us=second * 1_000_000)
        for move in talk.all(e.HandOver):
            given.append((second, move.partition))
            talk.give(e.HandedOver(move.partition, 1))
            talk.give(e.Released(move.partition, 1))
            state[move.partition] = ("b", 2, 9000)
    assert [second for second, _ in given] == [1, 1, 21, 41]  # half is above its share at once
    assert talk.claims.left is False
    talk.looked(state, draining, wall_us=42_000_000)
    assert talk.actions == [e.Left()]


def test_who_drains_takes_no_offers():
    talk = Conversation()
    talk.looked({0: ("b", 1, 9000)}, [Member("a", drain=Drain(0, 10**9)), Member("b")])
    assert talk.give(e.Offered((0,), "b")) == []


# --- when -----------------------------------------------------------------------------------


def test_outside_of_windows_nothing_moves_for_balance_and_at_the_next_it_does():
    window = Schedule((Window(100_000_000, 50_000_000, 1_000_000_000),))
    talk = Conversation(Rules(schedule=window), renewed=True)
    talk.owns(0, 1, 2, 3)
    state = dict.fromkeys(range(4), MINE)
    talk.looked(state, members="ab", wall_us=90_000_000)
    before_us = talk.now_us
    assert talk.all(e.HandOver) == []
    look = talk.until_look()
    assert 10_000_000 <= talk.now_us - before_us <= 11_000_000
    talk.looked(state, members="ab", wall_us=101_000_000, look=look)
    assert len(talk.all(e.HandOver)) == 2


def test_outside_of_windows_what_somebody_left_is_claimed():
    talk = Conversation(Rules(schedule=Schedule((Window(0, 1, 10**12),))))
    talk.looked({0: ("gone", 1, 0), 1: ("b", 1, 9000)}, members="ab", wall_us=5)
    assert talk.the(e.Claim).partition == 0


def test_by_load_only_what_is_too_much_moves():
    talk = Conversation(Rules(by_load=True))
    talk.owns(0, 1, 2)
    state = {0: MINE, 1: MINE, 2: MINE, 3: ("b", 1, 9000)}
    talk.looked(state, members="ab", loads={0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0})
    assert talk.all(e.HandOver) == []
    talk.looked(state, members="ab", loads={0: 1.5, 1: 4.0, 2: 1.0, 3: 3.0})
    assert talk.all(e.HandOver) == [e.HandOver(0, 1, "b")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_us": 10}, {"margin_us": 0}, {"margin_us": 6_000_000}, {"quiet_us": 0},
        {"audit_us": 10}, {"max_calls": 0}, {"max_handovers": 0}, {"threshold": 0.0},
    ],
)  # fmt: skip
def test_rules_that_cannot_be_kept_are_refused(wrong):
    with pytest.raises(InvalidError):
        Rules(**wrong)
