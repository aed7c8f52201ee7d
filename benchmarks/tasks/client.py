"""A client process: `python -m benchmarks.tasks.client SYSTEM ENDPOINT WORKERS`.

Connects, runs a task, and prints a line. Then each line that it reads is a load and its arguments
as JSON, and is answered by one line of JSON. It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from benchmarks.tasks.loads import LOADS
from benchmarks.tasks.system import TaskClient
from benchmarks.tasks.systems import client_of

READY = "ready"


def serve(client: TaskClient, answers: TextIO) -> None:
    """All that the process does."""
    try:
        client.open()
        client.one(0)
        print(READY, file=answers, flush=True)
        for line in sys.stdin:
            load, arguments = json.loads(line)
            print(json.dumps(LOADS[load](client, arguments)), file=answers, flush=True)
    finally:
        client.close()


def main(system: str, endpoint: str, workers: str) -> None:
    """Keeps the standard output for answers: libraries print what they like."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers are stopped
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(client_of(system, endpoint, int(workers)), answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
