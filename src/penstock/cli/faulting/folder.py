"""Where a run keeps its history and its logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RunFolder:
    """A folder. `keep` is set by a run that failed: somebody will want to know why."""

    def __init__(self, path: Path, keep: bool) -> None:
        self.path = path
        self.keep = keep


@contextmanager
def run_folder(named: str, prefix: str) -> Iterator[RunFolder]:
    """The folder that was named, which must be new; or one that goes when the run is over."""
    if named:
        path = Path(named)
        path.mkdir(parents=True)
        yield RunFolder(path, keep=True)
        return
    folder = RunFolder(Path(tempfile.mkdtemp(prefix=prefix)), keep=False)
    try:
        yield folder
    finally:
        if not folder.keep:
            shutil.rmtree(folder.path, ignore_errors=True)
