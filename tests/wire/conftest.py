"""Hypothesis without deadlines: the machine that runs the tests may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None, max_examples=60)
settings.load_profile("steady")
