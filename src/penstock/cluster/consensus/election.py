"""Who leads: pre-vote, vote, and the rule that a leader who is heard is left alone."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import xxhash

from penstock.cluster.consensus.messages import TimeoutNow, VoteAnswer, VoteRequest
from penstock.cluster.consensus.state import Role, State

_DRAW = Struct("<QQQQ")


class Election:
    """Terms, votes and time-outs. `lead` is called when an election is won, `retire` when a leader
    is none any more."""

    def __init__(
        self, state: State, seed: int, lead: Callable[[], None], retire: Callable[[], None]
    ) -> None:
        self.state = state
        self._seed = seed % (1 << 64)
        self._lead, self._retire = lead, retire
        self._votes: dict[int, bool] = {}
        self._own_vote_in: int | None = None  # the Ready that stores the own vote
        self._attempt = 0  # campaigns since the term began
        self._heard_us: int | None = None  # when the leader was last heard
        self.due_us = state.now_us + self._timeout_us()

    def _timeout_us(self) -> int:
        state = self.state
        drawn = xxhash.xxh3_64_intdigest(
            _DRAW.pack(self._seed, state.node, state.term, self._attempt)
        )
        return state.settings.election_us + drawn % state.settings.election_us

    # --- roles -----------------------------------------------------------------------------

    def follow(self, term: int, leader: int | None) -> None:
        """Become a follower, in this term or a newer one."""
        state = self.state
        led = state.role is Role.LEADER
        if term > state.term:
            state.term, state.vote, self._attempt = term, 0, 0
        state.role, state.leader = Role.FOLLOWER, leader
        self._votes.clear()
        self._heard_us = None
        if leader is not None:
            self.heard_leader()
        else:
            self.due_us = state.now_us + self._timeout_us()
        if led:
            self._retire()

    def heard_leader(self) -> None:
        """The leader of this term is there: no election for a while."""
        self._heard_us = self.state.now_us
        self.due_us = self.state.now_us + self._timeout_us()

    def leader_is_heard(self) -> bool:
        """Then nobody may disturb it. A leader without a majority has stepped down by itself."""
        state = self.state
        if state.role is Role.LEADER:
            return True
        if state.leader is None or self._heard_us is None:
            return False
        return state.now_us < self._heard_us + state.settings.election_us

    def tick(self) -> None:
        """Starts a campaign when nothing was heard for too long."""
        if self.state.now_us >= self.due_us and self.state.is_voter:
            self._campaign(pre=True)

    # --- candidates ------------------------------------------------------------------------

    def _campaign(self, pre: bool, transfer: bool = False) -> None:
        state = self.state
        self._votes = {}
        self._own_vote_in = None
        self._attempt += 1
        state.leader = None
        if pre:
            state.role = Role.PRE_CANDIDATE
        else:
            state.role = Role.CANDIDATE
            state.term, state.vote, self._attempt = state.term + 1, state.node, 0
        self.due_us = state.now_us + self._timeout_us()
        self._ask(pre, transfer)
        if pre:
            self._count(state.node, True)

    def _ask(self, pre: bool, transfer: bool) -> None:
        state, log = self.state, self.state.log
        term = state.term + 1 if pre else state.term
        for peer in log.membership.voters:
            if peer != state.node:
                request = VoteRequest(
                    state.node, peer, term, log.last_index, log.last_term, pre, transfer
                )
                # A late answer must not elect a node that a crash made forget what it asked with.
                (state.send if pre else state.promise)(request)

    def hard_state_given(self, number: int) -> None:
        """This Ready stores term and vote."""
        if self.state.role is Role.CANDIDATE and self._own_vote_in is None:
            self._own_vote_in = number

    def stored(self, number: int) -> None:
        """The own vote counts once it cannot be forgotten."""
        if (
            self.state.role is Role.CANDIDATE
            and self._own_vote_in is not None
            and self._own_vote_in <= number
        ):
            self._count(self.state.node, True)

    def answered(self, answer: VoteAnswer) -> None:
        """A vote; it counts only for the campaign under way."""
        state = self.state
        expected = state.term + 1 if answer.pre and answer.granted else state.term
        role = Role.PRE_CANDIDATE if answer.pre else Role.CANDIDATE
        if state.role is role and answer.term == expected:
            self._count(answer.source, answer.granted)

    def _count(self, voter: int, granted: bool) -> None:
        membership = self.state.log.membership
        if voter in membership.voters:
            self._votes[voter] = granted
        won = sum(self._votes.values())
        if won >= membership.majority:
            if self.state.role is Role.PRE_CANDIDATE:
                self._campaign(pre=False)
            else:
                self._lead()
        elif len(self._votes) - won > len(membership.voters) - membership.majority:
            self.follow(self.state.term, None)

    def asked_to_lead(self, message: TimeoutNow) -> None:
        """The leader hands over; nobody else can ask for that."""
        state = self.state
        if state.role is Role.FOLLOWER and state.leader == message.source and state.is_voter:
            self._campaign(pre=False, transfer=True)

    # --- voters ----------------------------------------------------------------------------

    def requested(self, request: VoteRequest) -> None:
        """Somebody asks for a vote, in this term (or, `pre`, about a later one)."""
        state = self.state
        granted = self._may_vote(request) and self._is_complete(request)
        if request.pre:
            term = request.term if granted else state.term
            state.send(VoteAnswer(state.node, request.source, term, granted, pre=True))
            return
        if granted:
            state.vote = request.source
            self.due_us = state.now_us + self._timeout_us()
        state.promise(VoteAnswer(state.node, request.source, state.term, granted))

    def _may_vote(self, request: VoteRequest) -> bool:
        state = self.state
        if request.pre and request.term > state.term:
            return True
        return state.vote == request.source or (state.vote == 0 and state.leader is None)

    def _is_complete(self, request: VoteRequest) -> bool:
        log = self.state.log
        return (request.last_term, request.last_index) >= (log.last_term, log.last_index)
