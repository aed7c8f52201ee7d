"""What the machine and its owner allow, and what is installed on it."""

from __future__ import annotations

import os
from importlib import metadata

_OFF = {"0", "off", "no", "false"}


def is_off(name: str) -> bool:
    """Whether the environment switches something off for the whole process."""
    return os.environ.get(name, "").lower() in _OFF


def may_spin() -> bool:
    """Whether a core may be kept awake for a moment. `PENSTOCK_SPIN=off` says no for the whole
    process, and so does a machine that has only one core for it."""
    return not is_off("PENSTOCK_SPIN") and cores() > 1


def cores() -> int:
    """Those that this process may use, where the system tells; else all that the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def release() -> str:
    """The version of the installed package; a checkout that is not installed has none."""
    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "unreleased"
