"""What workers of Penstock import, and its client."""

from __future__ import annotations

import penstock
from benchmarks.tasks import calls

null = penstock.task(calls.null)
nap = penstock.task(calls.nap)
