"""Lets the tests here import what they share: `tests.fuzz.targets`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
