"""`penstock cluster up` and `down`: a cluster of processes on this machine, to try things out."""

from __future__ import annotations

import json as jsons
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.command import Json, told_errors
from penstock.cli.output import Output

MAX_NODES = 32
WHOLE_SECONDS = 60.0  # until every node has its part
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.2
_NOTES = "nodes.json"

Data = Annotated[str, typer.Option("--data", metavar="DIR", help="Has a folder for each node.")]


class LocalCluster:
    """Node processes over the folders `node-1`, `node-2`, … of a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: dict[str, Any] = {}  # address and process of each node, by number
        self.processes: dict[int, subprocess.Popen[str]] = {}
        if (path := folder / _NOTES).exists():
            self.notes = jsons.loads(path.read_text())

    @property
    def url(self) -> str:
        """All nodes, for clients."""
        return "penstock://" + ",".join(note["address"] for note in self.notes.values())

    def start(self, nodes: int) -> None:
        """Starts so many nodes; those that were there before keep their addresses."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, nodes + 1):
            known = self.notes.get(str(number))
            seed = self.notes.get("1")
            joining = ["--join", seed["address"]] if seed else ["--cluster"]
            address = known["address"] if known else "127.0.0.1:0"
            self._start(number, ["--listen", address, *([] if known else joining)])
            if not known:  # one after the other: they join in the order of their numbers
                self._read_address(number)
        for number in range(1, nodes + 1):
            if str(number) not in self.notes or not self.notes[str(number)]["process"]:
                self._read_address(number)
        (self.folder / _NOTES).write_text(jsons.dumps(self.notes))

    def _start(self, number: int, options: list[str]) -> None:
        command = [sys.executable, "-m", "penstock.node", "--data", str(self._data(number))]
        with open(self.folder / f"node-{number}.log", "a") as log:
            self.processes[number] = subprocess.Popen(
                [*command, *options], stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,  # Ctrl-C is for this program alone, which stops the nodes
            )  # fmt: skip
        if str(number) in self.notes:
            self.notes[str(number)]["process"] = 0

    def _read_address(self, number: int) -> None:
        from penstock.errors import UnavailableError

        process = self.processes[number]
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            log = self.folder / f"node-{number}.log"
            raise UnavailableError(f"node {number} did not start", advice=f"See {log}.")
        address = url.removeprefix("penstock://")
        self.notes[str(number)] = {"address": address, "process": process.pid}

    def wait_until_whole(self) -> dict[str, Any]:
        """The status when every node has its part, or after a time."""
        from penstock.cli.cluster import ask_status
        from penstock.errors import UnavailableError

        until = time.monotonic() + WHOLE_SECONDS
        while True:
            try:
                found = ask_status(self.url)
                part = [n["owns"] for n in found["nodes"] if n["status"] == "up"]
                shared = len(part) >= len(self.processes) and all(part)
                alone = len(self.processes) == 1  # then there is nobody to have a second copy
                if (shared and (alone or not found["rows"])) or time.monotonic() >= until:
                    return found
            except UnavailableError:
                if time.monotonic() >= until:
                    raise
            time.sleep(LOOK_SECONDS)

    def watch(self, output: Output) -> None:
        """Until Ctrl-C, or all nodes have ended; says when one has."""
        running = dict(self.processes)
        while running:
            time.sleep(LOOK_SECONDS)
            for number, process in list(running.items()):
                if process.poll() is not None:
                    del running[number]
                    output.note(f"node {number} ended with code {process.returncode}")

    def stop(self) -> None:
        """Stops what was started here, all at once; cleanly, if that does not take too long."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def running(self) -> dict[int, int]:
        """The processes of nodes that have their folder open, by number; also of another `up`."""
        noted = {int(number): note["process"] for number, note in self.notes.items()}
        return {n: process for n, process in noted.items() if process and self._is_open(n)}

    def _is_open(self, number: int) -> bool:
        from penstock.errors import InUseError
        from penstock.node.files import FileDisk

        if not self._data(number).exists():
            return False
        try:
            FileDisk(self._data(number)).close()
        except InUseError:
            return True
        return False

    def _data(self, number: int) -> Path:
        return self.folder / f"node-{number}"


def up(
    data: Data = "./penstock-cluster",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=MAX_NODES)] = 3,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave them running; `cluster down` stops them.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    output = Output(json)
    with told_errors(json):
        from penstock.cli.cluster import show
        from penstock.errors import InUseError

        cluster = LocalCluster(Path(data))
        if cluster.running():
            raise InUseError(f"the cluster in {data} is up: {cluster.url}")
        stays = False
        try:
            signal.signal(signal.SIGTERM, _interrupt)
            cluster.start(max(nodes, len(cluster.notes)))
            output.record({"event": "started", "url": cluster.url}, f"serving {cluster.url}")
            show(cluster.wait_until_whole(), output)
            stays = detach
            if not detach:
                cluster.watch(output)
        except KeyboardInterrupt:
            output.note("stopping")
        finally:
            if not stays:
                cluster.stop()
        if not detach:
            output.record({"event": "stopped"}, "stopped")


def down(data: Data = "./penstock-cluster", json: Json = False) -> None:
    """Stop a cluster that was started with `up --detach`."""
    with told_errors(json):
        from penstock.errors import DeadlineError

        cluster = LocalCluster(Path(data))
        running = cluster.running()
        for process in running.values():
            os.kill(process, signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while cluster.running():
            if time.monotonic() >= until:
                raise DeadlineError(f"nodes {', '.join(map(str, cluster.running()))} did not stop")
            time.sleep(LOOK_SECONDS)
        Output(json).record({"stopped": len(running)}, f"{len(running)} nodes stopped")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
