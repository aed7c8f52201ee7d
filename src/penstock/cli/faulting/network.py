"""Where nodes and clients are: each node at a place of its own that can be cut off, or all on
loopback.

A place is a network namespace with a virtual cable to a switch. To cut a place off, its cable is
plugged into a second switch: packets then vanish without a word, as they do in life. None of it has
a name outside this program's own namespace, and all of it goes when the processes in it have ended.
"""

from __future__ import annotations

import subprocess
from typing import Protocol

from penstock.cli.faulting.namespaces import enter

PORT = 7411
_HERE = "10.77.0.1"
_NEAR, _FAR = "near", "far"
_SECONDS = 10.0


class Network(Protocol):
    """What nodes and clients are connected by."""

    cuts: bool
    """Whether places can be cut off."""

    def listen(self, place: int) -> list[str]:
        """Options of a node at a place."""

    def address(self, place: int) -> str:
        """Where that node is found; empty if only it knows."""

    def inside(self, place: int) -> list[str]:
        """What stands before a command that is to run at a place; 0 is where this program is."""

    def add(self, place: int) -> None:
        """Makes a place."""

    def cut(self, place: int) -> None:
        """Nothing gets from there to the others any more, or back."""

    def heal(self, place: int) -> None:
        """As before."""

    def close(self) -> None:
        """Takes it down."""


class Loopback:
    """One place for all; nothing can be cut."""

    cuts = False

    def listen(self, place: int) -> list[str]:
        """Any free port."""
        return ["--listen", "127.0.0.1:0"]

    def address(self, place: int) -> str:
        """The node says it."""
        return ""

    def inside(self, place: int) -> list[str]:
        """Nothing."""
        return []

    def add(self, place: int) -> None:
        """They are all there."""

    def cut(self, place: int) -> None:
        """Not possible."""
        raise NotImplementedError

    def heal(self, place: int) -> None:
        """Not possible."""
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to take down."""


class Namespaces:
    """Places in namespaces of their own. This program must be in one, too: see `enter_network`."""

    cuts = True

    def __init__(self) -> None:
        self._holders: dict[int, subprocess.Popen[str]] = {}
        _ip("link set lo up")
        for switch in (_NEAR, _FAR):
            _ip(f"link add {switch} type bridge", f"link set {switch} up")
        _ip(f"addr add {_HERE}/24 dev {_NEAR}")

    def listen(self, place: int) -> list[str]:
        """On all addresses of the place: the others are told which one to use."""
        return ["--listen", f"0.0.0.0:{PORT}", "--advertise", self._host(place)]

    def _host(self, place: int) -> str:
        return f"10.77.0.{10 + place}"

    def address(self, place: int) -> str:
        """As it is advertised."""
        return f"{self._host(place)}:{PORT}"

    def inside(self, place: int) -> list[str]:
        """Enters the namespace and becomes the command: the process id stays the same."""
        return ["nsenter", f"--net=/proc/{self._holders[place].pid}/ns/net", "--"] if place else []

    def add(self, place: int) -> None:
        """A namespace lives as long as somebody is in it: a process that waits for the end of its
        input, so that it ends with this program whatever happens."""
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo in; exec cat"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        self._holders[place] = holder
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "in":
            raise RuntimeError("a network namespace could not be made")
        cable = _cable(place)
        _ip(f"link add {cable} type veth peer name eth0 netns {holder.pid}",
            f"link set {cable} master {_NEAR}", f"link set {cable} up")  # fmt: skip
        _ip("link set lo up", f"addr add {self._host(place)}/24 dev eth0", "link set eth0 up",
            inside=self.inside(place))  # fmt: skip

    def cut(self, place: int) -> None:
        """Plugs it into the other switch."""
        _ip(f"link set {_cable(place)} master {_FAR}")

    def heal(self, place: int) -> None:
        """Plugs it back."""
        _ip(f"link set {_cable(place)} master {_NEAR}")

    def close(self) -> None:
        """The namespaces go with those who hold them, and the cables with the namespaces."""
        for holder in self._holders.values():
            holder.kill()
            holder.communicate()
        self._holders.clear()
        _ip(f"link del {_NEAR}", f"link del {_FAR}")


def _cable(place: int) -> str:
    return f"place-{place}"


def _ip(*lines: str, inside: list[str] | None = None) -> None:
    done = subprocess.run(
        [*(inside or ()), "ip", "-batch", "-"], input="\n".join(lines), text=True,
        capture_output=True, timeout=_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the network could not be changed: {done.stderr.strip()}")


def enter_network(arguments: list[str]) -> str:
    """Starts `make faults` anew in a network of its own; see `namespaces.enter`."""
    trial = "ip link add near type bridge && unshare --net true && nsenter --version"
    return enter("penstock.cli.faults", arguments, "net", trial)
