"""Gets servers and client libraries, each into a folder of its own; nothing system-wide.

Debian's packages are unpacked, not installed; jars come by Maven; Python's libraries by pip. What
cannot be had raises UnavailableError, whose text tells why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.folders import INSTALLED

_STEP_SECONDS = 900
_STAMP = ".installed"
_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>benchmarks</groupId><artifactId>peers</artifactId><version>1</version>
<packaging>pom</packaging>
<dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency></dependencies></project>
"""


class UnavailableError(Exception):
    """A system that cannot be measured here, and why."""


class Needs(NamedTuple):
    """What a system needs that Penstock's own environment does not have."""

    debian: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    jars: tuple[str, str, str] | None = None  # group, artifact, version
    programs: tuple[str, ...] = ()  # that must be there already


def debian_folder(name: str) -> Path:
    """Where the packages of a system are unpacked, as if it were the root of a file system."""
    return INSTALLED / "debian" / name


def python_folder(name: str) -> Path:
    """Where the client library of a system is."""
    return INSTALLED / "python" / name


def jars_folder(name: str) -> Path:
    """Where the jars of a system are."""
    return INSTALLED / "jars" / name


def missing(name: str, needs: Needs) -> list[str]:
    """What `install` would have to get, in words; empty if everything is there."""
    wanted = {
        "Debian's packages": (debian_folder(name), " ".join(needs.debian)),
        "Python's libraries": (python_folder(name), " ".join(needs.python)),
        "jars": (jars_folder(name), ":".join(needs.jars or ())),
    }
    return [what for what, (folder, text) in wanted.items() if text and not _has(folder, text)]


def lacking(programs: Sequence[str]) -> list[str]:
    """Which of these programs are not on this machine."""
    return [program for program in programs if shutil.which(program) is None]


def install(name: str, needs: Needs) -> None:
    """Gets what is missing. UnavailableError, with the reason, if something cannot be had."""
    if absent := lacking(needs.programs):
        raise UnavailableError(f"{', '.join(absent)}: not on this machine")
    for what in missing(name, needs):
        if what == "jars":
            assert needs.jars is not None
            _get_jars(jars_folder(name), needs.jars)
        elif what == "Python's libraries":
            _get_python(python_folder(name), needs.python)
        else:
            _get_debian(debian_folder(name), needs.debian)


def _has(folder: Path, text: str) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text() == text


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _get_debian(folder: Path, packages: Sequence[str]) -> None:
    if absent := lacking(("apt-get", "dpkg-deb")):
        raise UnavailableError(f"{absent[0]}: not on this machine, which Debian's packages need")
    apt = INSTALLED / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    # Lists of its own: those of the system stay as they are, and root is not needed.
    options = ["-qq", "-o", f"Dir::State::lists={apt / 'lists'}"]
    options += ["-o", f"Dir::Cache={apt / 'cache'}"]
    if os.geteuid() == 0:
        options += ["-o", "APT::Sandbox::User=root"]
    if not any((apt / "lists").glob("*Packages*")):
        _run(["apt-get", *options, "update"], apt)
    _emptied(folder)
    downloads = _emptied(folder / "packages")
    _run(["apt-get", *options, "download", *packages], downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder)], folder)
    shutil.rmtree(downloads)
    (folder / _STAMP).write_text(" ".join(packages))


def _get_python(folder: Path, requirements: Sequence[str]) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    argv += ["-q", "--only-binary", ":all:", "--target", str(_emptied(folder)), *requirements]
    _run(argv, folder)
    (folder / _STAMP).write_text(" ".join(requirements))


def _get_jars(folder: Path, jar: tuple[str, str, str]) -> None:
    if absent := lacking(("java", "mvn")):
        raise UnavailableError(f"{', '.join(absent)}: not on this machine, which jars need")
    (_emptied(folder) / "pom.xml").write_text(_POM.format(*jar))
    argv = ["mvn", "-q", "-B", _MAVEN_COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    _run([*argv, f"-Dmaven.repo.local={INSTALLED / 'maven'}"], folder)
    (folder / _STAMP).write_text(":".join(jar))


def _run(argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=_STEP_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{argv[0]} took longer than {_STEP_SECONDS} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"{argv[0]} failed: {words[-1][:200]}")
