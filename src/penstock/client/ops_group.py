"""Operations of groups, written once for both shells (see `steps`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.inputs import check_name, milliseconds
from penstock.client.ops_topic import of_each
from penstock.client.spread import ask_owners, for_each
from penstock.client.state import TopicState
from penstock.client.steps import Steps, ask, decoder
from penstock.errors import InvalidError, TooLargeError
from penstock.wire.limits import (
    MAX_LEASE_MS,
    MAX_RESERVE_MS,
    MAX_STATE_BYTES,
    MAX_STATES,
)
from penstock.wire.messages import (
    Claim,
    ClaimInfo,
    Claims,
    ClaimStatus,
    Commit,
    Committed,
    Renew,
    Unclaim,
)

_read_none = decoder(None)
_read_bool = decoder(bool)
_read_bools = decoder(list[bool])
_read_committed = decoder(list[int | None])
_read_claim = decoder(ClaimInfo)
_read_claims = decoder(list[ClaimStatus])


def commit(
    topic: TopicState,
    group: str,
    offsets: Mapping[int, int],
    token: int | Mapping[int, int] = 0,
    states: Mapping[int, bytes] | None = None,
) -> Steps[None]:
    """Commits, for each partition given, the next offset that the group will read.

    Durable when it returns. In a cluster it is all or nothing for the partitions of one node.
    `token`: of the claim under which it is done, for all or for each partition; FencedError if the
    claim is not held any more. `states`: what the group knows at the offset, at most 256 KiB for a
    partition; offset and state are replaced together, so a commit without one leaves none.
    """
    known = _checked_states(offsets, states or {})
    tokens = token if isinstance(token, Mapping) else dict.fromkeys(offsets, token)
    if any(partition not in tokens for partition in offsets):
        raise InvalidError("commit needs a token for each partition, or one for all")
    rows = [(topic._check_partition(each), offsets[each], tokens[each]) for each in offsets]
    if not rows:
        raise InvalidError("commit needs at least one partition and its offset")
    stream, name, placement = topic.info.id, check_name(group), topic.info.placement

    def of_rows(chosen: list[tuple[int, int, int]]) -> Commit:
        told = [known.get(row[0], b"") for row in chosen] if known else []
        return Commit(stream, name, chosen, told)

    if topic._routes is None:
        yield from ask(of_rows(rows), _read_none)
        return

    def part(shards: list[int]) -> Commit:
        return of_rows([row for row in rows if placement[row[0]] in shards])

    yield from ask_owners(topic._routes, [placement[row[0]] for row in rows], part, _read_none)


def _checked_states(
    offsets: Mapping[int, int], states: Mapping[int, bytes]
) -> Mapping[int, bytes]:
    for partition, state in states.items():
        if partition not in offsets:
            raise InvalidError(f"a state for partition {partition}, and no offset")
        check_state(state)
    return states


def check_state(state: bytes) -> bytes:
    """A state as it may be committed. InvalidError or TooLargeError if it cannot be."""
    if not isinstance(state, bytes):
        raise InvalidError(f"a state must be bytes, not {type(state).__name__}")
    if len(state) > MAX_STATE_BYTES:
        raise TooLargeError(f"a state of {len(state):,} bytes; the limit is {MAX_STATE_BYTES:,}")
    return state


def committed(
    topic: TopicState, group: str, partitions: Sequence[int] | None = None
) -> Steps[dict[int, int]]:
    """The committed offsets of a group, for those partitions (all, unless given) that have one."""
    stream, name = topic.info.id, check_name(group)
    found: dict[int, int | None] = yield from of_each(
        topic, _chosen(topic, partitions), lambda some: Committed(stream, name, some),
        _read_committed,
    )  # fmt: skip
    return {partition: offset for partition, offset in found.items() if offset is not None}


def _chosen(topic: TopicState, partitions: Sequence[int] | None) -> list[int]:
    if partitions is None:
        return list(range(topic.partitions))
    return [topic._check_partition(each) for each in partitions]


def claim(
    topic: TopicState, partition: int, group: str, owner: str, lease: float, token: int = 0
) -> Steps[ClaimInfo]:
    """Claims a partition for a member of a group, or renews the claim with this token.

    The answer names the owner; its `token` is 0 if that is somebody else, or if the partition is
    reserved for somebody else. An owner that has it already gets its token again, so the name must
    be that of one life of one process.
    """
    lease_ms = milliseconds("lease", lease, MAX_LEASE_MS)
    chosen = topic._check_partition(partition)
    request = Claim(topic.info.id, chosen, check_name(group), check_name(owner), lease_ms, token)
    return ask(request, _read_claim, topic.info.placement[chosen])


def unclaim(
    topic: TopicState,
    partition: int,
    group: str,
    token: int,
    to: str | None = None,
    reserve: float = 10.0,
) -> Steps[bool]:
    """Gives a claim up; whether it was still held. With `to`, nobody but that owner can claim the
    partition for `reserve` seconds, a minute at most."""
    chosen, name = topic._check_partition(partition), check_name(group)
    request = Unclaim(topic.info.id, chosen, name, token)
    if to is not None:
        request.to = check_name(to)
        request.reserve_ms = max(milliseconds("reserve", reserve, MAX_RESERVE_MS), 1)
    return ask(request, _read_bool, topic.info.placement[chosen])


def renew(
    topic: TopicState,
    group: str,
    owner: str,
    claims: Mapping[int, int],
    within: float | None = None,
) -> Steps[dict[int, bool]]:
    """Has claims (partition: token) last as long again as each was made for, from now on.

    One call for each node, and nothing is written. For each partition, whether the claim is still
    this owner's. Nodes of a cluster that do not answer `within` seconds are left out; without it,
    that is a DeadlineError.
    """
    rows = [(topic._check_partition(partition), token) for partition, token in claims.items()]
    stream, group, owner = topic.info.id, check_name(group), check_name(owner)
    if not rows:
        return {}
    if topic._routes is None:
        told = yield from ask(Renew(stream, group, owner, rows), _read_bools)
    else:
        placed = [(topic.info.placement[row[0]], row) for row in rows]
        told = yield from for_each(
            topic._routes, placed, lambda some: Renew(stream, group, owner, some), _read_bools,
            within,
        )  # fmt: skip
    answers = zip(rows, told, strict=True)
    return {partition: held for (partition, _), held in answers if held is not None}


def claims(
    topic: TopicState,
    group: str,
    partitions: Sequence[int] | None = None,
    states: bool = False,
    within: float | None = None,
) -> Steps[dict[int, ClaimStatus]]:
    """How a group stands in partitions (all, unless given): who has each, and how far it is.

    With `states`, also what was committed with the offsets: what a new owner goes on from. Nodes
    of a cluster that do not answer `within` seconds are left out; without it, that is a
    DeadlineError.
    """
    wanted = _chosen(topic, partitions)
    stream, name = topic.info.id, check_name(group)

    def call(some: list[int] | None) -> Claims:
        return Claims(stream, name, some, states)

    found: dict[int, ClaimStatus] = {}
    named, most = states or partitions is not None, MAX_STATES if states else topic.partitions
    for first in range(0, len(wanted), most):
        some = wanted[first : first + most]
        told = yield from of_each(topic, some, call, _read_claims, within, named)
        found.update((partition, status) for partition, status in told.items() if status)
    return found
