"""Which broken cores `make test` tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def bounded(cases: Sequence[Any]) -> list[Any]:
    """All of them; what one node shows is shown again by a cluster in `make slow` only. A case has
    `breaks` and `nodes`."""
    alone = {case.breaks for case in cases if case.nodes == 1}
    slow = pytest.mark.slow
    return [
        pytest.param(case, marks=slow) if case.nodes > 1 and case.breaks in alone else case
        for case in cases
    ]
