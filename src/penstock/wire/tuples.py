"""Making named tuples on a hot path."""

from __future__ import annotations

new_tuple = tuple.__new__
"""`new_tuple(Kind, fields)`: as `Kind(*fields)`, which is a call of Python more. All fields must be
there, those with defaults too."""
