"""Promises of claims: one owner at a time, and whoever was replaced changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import Claim, History


def check_claims(history: History, topic: Stream) -> list[str]:
    """Everything that is wrong with the claims of a topic's partitions."""
    lines: dict[int, list[Claim]] = defaultdict(list)
    for each in history.claims:
        if each.topic == topic.name:
            lines[each.partition].append(each)
    found: list[str] = []
    for line in lines.values():
        owners = [each for each in line if each.op == "claim" and each.accepted and each.token]
        found += _check_tokens(owners, line)
        found += _check_exclusive(owners, line, history)
        found += _check_commits(owners, line)
    return found


def _check_tokens(owners: list[Claim], line: list[Claim]) -> Iterator[str]:
    """A token belongs to one owner, who gets it again until it gives it up; later ones are
    higher."""
    over = {c.token: c.done_us for c in line if c.op == "unclaim" and c.accepted}
    for at, each in enumerate(owners):
        if over.get(each.token, each.sent_us) < each.sent_us:
            yield f"token used again: {each.owner} got {each.token}, which was given up"
        for other in owners[:at]:
            if other.token == each.token and other.owner != each.owner:
                yield f"token used twice: {each.token} by {other.owner} and {each.owner}"
            elif other.done_us < each.sent_us and other.token > each.token:
                yield f"token went back: {each.owner} got {each.token} after {other.token}"


def _check_exclusive(
    owners: list[Claim], line: list[Claim], history: History
) -> Iterator[str]:
    """Nobody gets what another has claimed, as long as that one's lease lasts."""
    for each in owners:
        signs = [c for c in line if c.op == "renew" and c.accepted and c.token == each.token]
        gave_up = [c.sent_us for c in line if c.op == "unclaim" and c.token == each.token]
        for other in owners:
            if other.token <= each.token or any(at <= other.done_us for at in gave_up):
                continue
            for sign in (each, *signs):
                lease_us = sign.lease_us - history.trouble.drifted(sign.lease_us)
                if sign.done_us < other.sent_us and other.done_us < sign.sent_us + lease_us:
                    yield (
                        f"claimed by two: {other.owner} got the claim of {each.owner} at "
                        f"{other.done_us}, who had it since {sign.sent_us} for {sign.lease_us} us"
                    )


def _check_commits(owners: list[Claim], line: list[Claim]) -> Iterator[str]:
    """A commit under a claim that was replaced is refused; so a group never goes back."""
    commits = [each for each in line if each.op == "commit" and each.accepted]
    for commit in commits:
        for other in owners:
            if other.token > commit.token and other.done_us < commit.sent_us:
                yield (
                    f"stale commit: {commit.owner} committed {commit.offset} under claim "
                    f"{commit.token} at {commit.done_us}, and {other.owner} had {other.token}"
                )
    for look in line:
        if look.op != "committed" or not look.done_us:
            continue
        if look.state != look.offset:
            yield f"state of another commit: {look.owner} found {look.state} at {look.offset}"
        before = [each.offset for each in commits if each.done_us < look.sent_us]
        if before and look.offset < max(before):
            yield f"commit went back: {look.owner} found {look.offset} after {max(before)}"
