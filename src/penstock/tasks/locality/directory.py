"""Who has which data: what workers say of themselves, as the control table tells it."""

from __future__ import annotations

from penstock.tasks.locality.decisions import Data

BLOCK_PREFIX = b"block/"
HOST_PREFIX = b"host/"
_BETWEEN = "/"


def block_key(block: str, worker: str) -> bytes:
    """The entry by which a worker says that its host has a block. Its value is the host."""
    return BLOCK_PREFIX + f"{block}{_BETWEEN}{worker}".encode()


def host_key(worker: str) -> bytes:
    """The entry by which a worker says that it takes what is sent to its host."""
    return HOST_PREFIX + worker.encode()


class Directory:
    """Blocks and the hosts that have them, folded from entries of the control table.

    A block may be on several hosts, and several workers of a host may say so; it stays there until
    the last of them is gone. Entries that are neither are passed over.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, dict[str, str]] = {}  # block -> worker -> host
        self._workers: dict[str, str] = {}  # worker -> host

    def put(self, key: bytes, host: bytes) -> None:
        """An entry was written."""
        block, worker = _parsed(key)
        if worker and block is None:
            self._workers[worker] = host.decode()
        elif worker and block is not None:
            self._blocks.setdefault(block, {})[worker] = host.decode()

    def remove(self, key: bytes) -> None:
        """An entry is gone: it was taken back, or the session of its worker has ended."""
        block, worker = _parsed(key)
        if block is None:
            self._workers.pop(worker, None)
            return
        owners = self._blocks.get(block, {})
        owners.pop(worker, None)
        if not owners:
            self._blocks.pop(block, None)

    def hosts(self) -> set[str]:
        """Hosts with a worker that takes what is sent there."""
        return set(self._workers.values())

    def find(self, block: str, here: str, not_at: str = "") -> tuple[Data, str]:
        """Where a block is, and on which host, if that is another one.

        Only hosts with a worker count. Of several the first is taken that is not `not_at`, the one
        that has refused before; that one only if there is no other.
        """
        alive = self.hosts()
        hosts = [host for host in self._blocks.get(block, {}).values() if host in alive]
        if here in hosts:
            return Data.HERE, here
        others = [host for host in hosts if host != not_at]
        chosen = next(iter(others or hosts), "")
        return (Data.THERE, chosen) if chosen else (Data.NOWHERE, "")


def _parsed(key: bytes) -> tuple[str | None, str]:
    if key.startswith(BLOCK_PREFIX):
        block, _, worker = key.removeprefix(BLOCK_PREFIX).decode().rpartition(_BETWEEN)
        return block, worker
    if key.startswith(HOST_PREFIX):
        return None, key.removeprefix(HOST_PREFIX).decode()
    return None, ""
