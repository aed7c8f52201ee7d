"""Lets the tests here import what they share: the shell, the checker and the world."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
