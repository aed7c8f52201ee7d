"""A group as somebody sees it who is no member: for operators."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.client.blocking import Fabric
from penstock.consumers.claim_events import Claimed, Looked
from penstock.consumers.claims import Claims
from penstock.consumers.explain import Explanation, explain
from penstock.consumers.intentions import Intentions, make_plan
from penstock.consumers.membership import Member
from penstock.consumers.roster import MEMBERS_TABLE, Keys, read_entry
from penstock.consumers.rules import Rules
from penstock.errors import NotFoundError
from penstock.wire.messages import ClaimStatus


@dataclass(slots=True)
class GroupView:
    """Claims are the nodes' word; figures are what members said of themselves, seconds ago."""

    claims: dict[int, ClaimStatus]
    members: dict[str, Member] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of_partition(self, partition: int) -> dict[str, Any]:
        """What the owner of a partition said of it; nothing if it said nothing."""
        told = self.figures.get(self.claims[partition].owner, {})
        found: dict[str, Any] = told.get("partitions", {}).get(str(partition), {})
        return found

    def last_moves(self, partition: int, count: int = 10) -> list[dict[str, Any]]:
        """What happened to a partition, as members tell it, the latest first."""
        moves = [
            {**move, "member": id}
            for id, told in self.figures.items()
            for move in told.get("moves", ())
            if move["partition"] == partition
        ]
        return sorted(moves, key=lambda move: -move["at_us"])[:count]


def view_group(fabric: Fabric, topic: str, group: str) -> GroupView:
    """Reads the claims of a group and the entries of its members. NotFoundError: no such topic."""
    view = GroupView(fabric.topic(topic, create=False).claims(group))
    keys = Keys(group, topic)
    try:
        table = fabric.table(MEMBERS_TABLE, create=False)
    except NotFoundError:  # no member ever ran in this fabric
        return view
    for key, packed in table.items(keys.members):
        id = key.decode(errors="replace")[len(keys.members) :]
        if (member := read_entry(id, packed)) is not None:
            view.members[id] = member
    for key, packed in table.items(keys.figures):
        id = key.decode(errors="replace")[len(keys.figures) :]
        view.figures[id] = msgspec.json.decode(packed)
    return view


def explain_partition(view: GroupView, partition: int, rules: Rules | None = None) -> Explanation:
    """Why a partition is where it is. The plan is by count unless `rules` say otherwise."""
    now_us, wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
    claims = {
        number: Claimed(each.owner if each.left_ms else "", each.token, each.left_ms * 1000)
        for number, each in view.claims.items()
    }
    look = Looked(view.members, range(len(view.claims)), claims, wall_us, now_us)
    seen = Claims("nobody", rules)
    seen.seen = look
    holders = {
        number: each.owner for number, each in claims.items() if each.owner in view.members
    }
    seen.intentions = Intentions(make_plan(look, holders, seen.rules))
    told = explain(seen, partition, now_us)
    owner = claims[partition].owner if partition in claims else ""
    planned = seen.intentions.plan.owners.get(partition, "")
    if owner == planned:
        return told._replace(next="nothing is to be done")
    return told._replace(next=f"{planned or 'nobody'} is to have it")
