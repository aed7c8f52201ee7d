"""Where the benchmarks keep what they install, what servers write, and what was measured."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
INSTALLED = HERE / ".peers"  # named in .gitignore; removing it undoes all that was installed
RESULTS = HERE / "results"
_DATA = "PENSTOCK_PEERS_DATA"


def data_folder() -> Path:
    """Where servers keep their data; all of them on the same disk."""
    return Path(os.environ.get(_DATA) or INSTALLED / "data")


def use_data_folder(folder: Path) -> None:
    """Has this process, and those that it starts, keep data of servers elsewhere."""
    os.environ[_DATA] = str(folder.resolve())


def fresh_folder(name: str) -> Path:
    """An empty folder for the data of one server."""
    folder = data_folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
