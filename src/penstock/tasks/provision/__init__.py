"""The provisioner: as many workers as the queue needs, for as long as they are paid anyway."""

from __future__ import annotations

from penstock.tasks.provision.leaving import Leaving
from penstock.tasks.provision.ledger import CostReport, Ledger, WorkerCost
from penstock.tasks.provision.policy import Policy, Terms
from penstock.tasks.provision.provider import Provider, WorkerInfo
from penstock.tasks.provision.provisioner import Provisioner, Status

__all__ = [
    "CostReport",
    "Leaving",
    "Ledger",
    "Policy",
    "Provider",
    "Provisioner",
    "Status",
    "Terms",
    "WorkerCost",
    "WorkerInfo",
]
