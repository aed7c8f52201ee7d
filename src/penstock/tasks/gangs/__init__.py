"""Gangs: functions that several workers run together, or none does."""

from __future__ import annotations

from penstock.tasks.gangs.envelope import GangCall, pack_gang
from penstock.tasks.gangs.errors import GangOverError
from penstock.tasks.gangs.gang import AsyncGang, Gang
from penstock.tasks.gangs.member import GangMember, GangTimes, MemberFailedError
from penstock.tasks.gangs.worker import GangWorker

__all__ = [
    "AsyncGang",
    "Gang",
    "GangCall",
    "GangMember",
    "GangOverError",
    "GangTimes",
    "GangWorker",
    "MemberFailedError",
    "pack_gang",
]
