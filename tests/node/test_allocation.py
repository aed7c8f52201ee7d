"""A node keeps memory that it frees and needs again at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.node.allocation import KEEP_BYTES

PROGRAM = """
import resource, sys
from penstock.node.allocation import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("no such setting")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    buffers = [bytearray(60_000) for _ in range(40)]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_pages(mode: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=False
    )
    if "no such setting" in ran.stderr:
        pytest.skip("this C library has no such setting")
    return int(ran.stdout)


def test_pages_of_freed_buffers_are_not_mapped_anew() -> None:
    assert KEEP_BYTES > 40 * 60_000
    assert faults_of_pages("kept") < faults_of_pages("given back") / 10
