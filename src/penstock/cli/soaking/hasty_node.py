"""`python -m penstock.cli.soaking.hasty_node --data DIR --listen HOST:PORT --shift SECONDS`: a node
with small segments and frequent checkpoints, so that kills hit them, little in memory, so that most
of what is read comes from mapped files, and a wall clock that may be wrong."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from penstock.engine import reader
from penstock.engine.maintenance import Pace
from penstock.errors import PenstockError
from penstock.node import mapping
from penstock.node.node import Config, Node, parse_address, run_loop, serve

SEGMENT_BYTES = 512 << 10
CHECKPOINT_BYTES = 1 << 20
CACHE_BYTES = 32 << 10
MAPPED_BYTES = 2 << 10  # and more is not copied


def main() -> None:
    """Parses the arguments and serves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--shift", type=float, default=0.0)
    parser.add_argument("--accept-damage", action="store_true")
    arguments = parser.parse_args()
    shift_clock(arguments.shift)
    reader.CACHE_BYTES, mapping.LEAST_BYTES = CACHE_BYTES, MAPPED_BYTES
    host, port = parse_address(arguments.listen)
    config = Config(
        data=arguments.data, host=host, port=port, segment_bytes=SEGMENT_BYTES,
        pace=Pace(checkpoint_bytes=CHECKPOINT_BYTES, prepared=2),
        accept_damage=arguments.accept_damage,
    )  # fmt: skip

    def started(node: Node) -> None:
        print(node.url, flush=True)

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run_loop(serve(config, started))
    except PenstockError as error:
        sys.exit(f"error: {error}")


def shift_clock(seconds: float) -> None:
    """From now on the wall clock of this process is so much ahead, or behind."""
    right = time.time_ns
    shift_ns = int(seconds * 1e9)
    time.time_ns = lambda: right() + shift_ns


if __name__ == "__main__":
    main()
