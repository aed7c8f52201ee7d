"""An archive of Spark's classes, kept per user: a session starts in half the time with it."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.spark.private import is_running

MOST_ARCHIVES = 3  # each of nearly 200 MB
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def java_options(cache: Path, name: str) -> list[str]:
    """What to start Java with: it uses the archive of that name, or leaves one behind at its end.

    The archive is written under the name of this process first: one that is not finished, or
    whose writer was killed, is not used. Java itself passes over an archive that does not fit.
    """
    archive = cache / f"{name}.jsa"
    _drop_oldest(cache, archive)
    for made in cache.glob(f"{name}.jsa.*"):
        writer = made.suffix[1:]
        if writer.isdigit() and not is_running(int(writer)):
            made.replace(archive)
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}", *_QUIET.split()]
    return [f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}", *_QUIET.split()]


def _drop_oldest(cache: Path, ours: Path) -> None:
    others = [each for each in cache.glob("*.jsa") if each != ours]
    others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for each in others[MOST_ARCHIVES - 1 :]:
        each.unlink(missing_ok=True)
