"""A client process that has little to do stays small: it does without numpy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.node.conftest import NodeProcess

from penstock.wire import packing

_WORK = """
import sys
import penstock
with penstock.connect(sys.argv[1]) as fabric:
    queue = fabric.queue("small")
    queue.push(b"one")
    queue.pop(timeout=5).ack(wait=True)
    queue.push_many([b"two"] * 100)
    taken = 0
    for message in queue.consume(idle_timeout=0.1):
        taken += 1
        message.ack()
print(taken, "numpy" in sys.modules)
"""


@pytest.mark.skipif(not packing.COMPILED, reason="the compiled module's twin needs numpy")
def test_pushing_and_taking_messages_does_not_load_numpy(node: NodeProcess):
    done = subprocess.run(
        [sys.executable, "-c", _WORK, node.url], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["100", "False"]
