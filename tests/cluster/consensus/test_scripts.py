"""Consensus scripts: `scripts/*.txt` hold commands and what the nodes must do.

A line that starts with `>` is a command; the lines under it are all that happens. `Script` is the
list of commands. After a wanted change: `REWRITE_SCRIPTS=1 pytest tests/cluster/consensus`, and
read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cluster.consensus.script import Script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def replay(lines: list[str]) -> list[str]:
    script = Script()
    result: list[str] = []
    for line in lines:
        if line.startswith(">"):
            result += [line, *script.run(line[1:])]
        elif line.startswith("#") or not line:
            result.append(line)
    return result


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    replayed = replay(lines)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text("\n".join(replayed) + "\n", encoding="utf-8")
    else:
        assert replayed == lines


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 11
