"""What all cold requests have in common."""

from __future__ import annotations

import msgspec


class ColdRequest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all cold requests: tagged by its name; a field that is not known is an error."""
