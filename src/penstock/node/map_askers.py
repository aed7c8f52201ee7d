"""Clients that wait for a newer map of the cluster: calls that are answered when there is one."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.fabric import Fabric
from penstock.core.parking import Asker
from penstock.errors import LimitError
from penstock.wire import messages as m
from penstock.wire.frames import MAPS

MAX_ASKERS = 20_000  # two for each connection that a node takes
MAX_WAIT_MS = 300_000


class MapAskers:
    """Each is answered once, with all that has changed by then: whoever takes its answers slowly
    has at most one for each question on its way."""

    def __init__(self, fabric: Fabric, since: Callable[[int], bytes]) -> None:
        """`since`: what changed after a version, as `ClusterMap` is answered."""
        self._fabric = fabric
        self._kernel = fabric.kernel
        self._since = since
        self._waiting: dict[tuple[int, int], tuple[Asker, int]] = {}
        fabric.features.append(MAPS)

    def park(self, connection: int, request: int, call: m.ClusterMap) -> None:
        """The map that the asker has is the newest; LimitError if too many wait."""
        if len(self._waiting) >= MAX_ASKERS:
            raise LimitError(f"{MAX_ASKERS:,} questions for a newer map wait already")
        key = connection, request
        asker = Asker(connection, request, lambda: self._leave(key))
        wait_us = min(call.wait_ms, MAX_WAIT_MS) * 1000
        due_us = self._kernel.now_us + wait_us
        asker.timer = self._kernel.timers.at(due_us, lambda: self._answer(asker, call.version))
        self._fabric.park(connection, request, asker)
        self._waiting[key] = asker, call.version

    def tell(self) -> bool:
        """There is a newer map; whether anybody waited for it."""
        waiting = list(self._waiting.values())
        for asker, version in waiting:
            self._answer(asker, version)
        return bool(waiting)

    def _answer(self, asker: Asker, version: int) -> None:
        if not asker.over:
            asker.over = True
            body = self._since(version)
            self._kernel.answer(asker.connection, asker.verb, asker.request, body)

    def _leave(self, key: tuple[int, int]) -> None:
        asker, _ = self._waiting.pop(key, (None, 0))
        if asker is not None and asker.timer is not None:
            self._kernel.timers.cancel(asker.timer)
