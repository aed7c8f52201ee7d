"""Time and chance of the production client, while it runs in a world.

The client's modules reach for `time`, `secrets` and `random` as any program does. For the length of
a run these names lead to the world's clock and to its one source of chance, in these modules only.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import penstock.client
from penstock.sim.world import START_US, World

CLIENT = "penstock.client"


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """No other client may run in this process meanwhile."""
    chance = world.random
    stand_ins: dict[ModuleType, SimpleNamespace] = {
        time: SimpleNamespace(
            monotonic=lambda: (world.now_us - START_US) / 1e6,
            time=lambda: world.now_us / 1e6,
            time_ns=lambda: world.now_us * 1000,
        ),
        secrets: SimpleNamespace(randbits=chance.getrandbits),
        random: SimpleNamespace(uniform=chance.uniform, Random=random.Random),
    }
    changed: list[tuple[ModuleType, str, ModuleType]] = []
    for module in _client_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value in stand_ins:
                changed.append((module, name, value))
                setattr(module, name, stand_ins[value])
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _client_modules() -> list[ModuleType]:
    for found in pkgutil.iter_modules(penstock.client.__path__, f"{CLIENT}."):
        importlib.import_module(found.name)
    return [module for name, module in sys.modules.items() if name.startswith(f"{CLIENT}.")]
