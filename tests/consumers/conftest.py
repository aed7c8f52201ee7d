"""Lets the tests here import what they share: `tests.consumers.model` and its neighbours."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[2]))

settings.register_profile("steady", deadline=None, max_examples=60)
settings.load_profile("steady")
