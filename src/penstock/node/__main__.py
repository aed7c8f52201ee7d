"""`python -m penstock.node --data DIR --listen HOST:PORT`: a node and nothing else."""

from __future__ import annotations

import argparse

from penstock.node.node import Config, Node, parse_address, run_loop, serve


def main() -> None:
    """Parses the arguments and serves."""
    parser = argparse.ArgumentParser(prog="python -m penstock.node")
    parser.add_argument("--data", default=Config.data)
    parser.add_argument("--listen", default=f"{Config.host}:{Config.port}")
    arguments = parser.parse_args()
    host, port = parse_address(arguments.listen)

    def started(node: Node) -> None:
        print(node.url, flush=True)

    run_loop(serve(Config(data=arguments.data, host=host, port=port), started))


if __name__ == "__main__":
    main()
