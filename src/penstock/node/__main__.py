"""`python -m penstock.node --data DIR --listen HOST:PORT`: a node and nothing else."""

from __future__ import annotations

import argparse
import logging
import sys

from penstock.errors import PenstockError
from penstock.node.node import Config, Node, parse_address, run_loop, serve


def main() -> None:
    """Parses the arguments and serves."""
    parser = argparse.ArgumentParser(prog="python -m penstock.node")
    parser.add_argument("--data", default=Config.data)
    parser.add_argument("--listen", default=f"{Config.host}:{Config.port}")
    parser.add_argument("--cluster", action="store_true", help="found a cluster")
    parser.add_argument("--join", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--advertise", default="", metavar="HOST[:PORT]")
    parser.add_argument("--awake-us", type=int, default=Config.awake_us, metavar="US")
    arguments = parser.parse_args()
    host, port = parse_address(arguments.listen)
    config = Config(
        data=arguments.data, host=host, port=port, cluster=arguments.cluster,
        join=tuple(map(parse_address, arguments.join)), advertise=arguments.advertise,
        awake_us=arguments.awake_us,
    )  # fmt: skip

    def started(node: Node) -> None:
        print(node.url, flush=True)

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run_loop(serve(config, started))
    except PenstockError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
