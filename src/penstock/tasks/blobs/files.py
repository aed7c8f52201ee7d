"""Large values as files of a directory that callers and workers share."""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress
from pathlib import Path

from penstock.errors import InvalidError
from penstock.tasks.blobs.blob import Blob
from penstock.wire.buffers import Buffer

_FILE_NAME = re.compile(r"[0-9a-f]{48}\.(\d{1,12})\.(?:blob|part)")


class Directory:
    """Files are written aside and renamed: one that has its name is whole, and never changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """InvalidError if there is none."""
        self._path = Path(path)
        if not self._path.is_dir():
            raise InvalidError(
                f"{self._path} is no directory", advice="Make one that all hosts reach."
            )

    @property
    def path(self) -> str:
        """For another process, wherever it runs."""
        return str(self._path.absolute())

    def write(self, blob: Blob, packed: Buffer) -> None:
        """Durable when it returns. OSError, and then nothing is left of it."""
        target = self._path / blob.file_name
        part = target.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def read(self, blob: Blob) -> memoryview | None:
        """The value, read as it is looked at; None if it is not there any more."""
        try:
            with (self._path / blob.file_name).open("rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
            return None
        return memoryview(whole) if len(whole) == blob.size else None

    def remove(self, blob: Blob) -> None:
        """Whoever reads it reads on."""
        with suppress(OSError):
            (self._path / blob.file_name).unlink(missing_ok=True)

    def sweep(self, now_s: float) -> int:
        """Removes what has expired, whoever wrote it; how many files."""
        removed = 0
        for each in os.scandir(self._path):
            found = _FILE_NAME.fullmatch(each.name)
            if found is not None and int(found[1]) < now_s:
                with suppress(OSError):
                    os.unlink(each.path)
                    removed += 1
        return removed
