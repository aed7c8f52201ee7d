"""The systems by name. Each is one module, which is loaded on demand.

It has the server's side, `SYSTEM`, for the process that runs all, and the client's, `CLIENT`, for
processes that have its library.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from benchmarks.install import UnavailableError
from benchmarks.interleaved import chosen
from benchmarks.system import Client, Place, System


class Entry(NamedTuple):
    """Where a system is defined, and in which variant."""

    module: str
    variant: str
    usual: bool = True  # measured if no systems are named


SYSTEMS = {
    "penstock": Entry("penstock_node", "synced"),
    "penstock-written": Entry("penstock_node", "written"),
    "penstock-awake": Entry("penstock_node", "synced", usual=False),
    "penstock-written-awake": Entry("penstock_node", "written", usual=False),
    "pipe": Entry("bare_pipe", "synced"),
    "pipe-fresh": Entry("bare_pipe", "fresh"),
    "disk": Entry("bare_disk", "synced"),
    "redis-always": Entry("redis_streams", "always"),
    "redis-everysec": Entry("redis_streams", "everysec"),
    "nats": Entry("nats_jetstream", "file"),
    "rabbitmq-classic": Entry("rabbitmq", "classic"),
    "rabbitmq-quorum": Entry("rabbitmq", "quorum"),
    "kafka": Entry("kafka_broker", "default"),
    "kafka-flush": Entry("kafka_broker", "flush"),
    "beanstalkd": Entry("beanstalkd", "50"),
    "beanstalkd-always": Entry("beanstalkd", "0", usual=False),
    "postgres": Entry("postgres", "on"),
    "postgres-async": Entry("postgres", "off", usual=False),
}
LEFT_OUT = {"nsq": "Debian has no package of nsqd"}
BASE = "penstock"  # what ratios refer to


def system_of(name: str) -> System:
    """A system by its name; UnavailableError if it is one that cannot be had."""
    if name in LEFT_OUT:
        raise UnavailableError(LEFT_OUT[name])
    entry = SYSTEMS[name]
    module = import_module(f"{__name__}.{entry.module}")
    system: System = module.SYSTEM(name, entry.variant)
    return system


def client_of(name: str, place: Place) -> Client:
    """A client of a system, in a process that has its library."""
    entry = SYSTEMS[name]
    module = import_module(f"{__name__}.{entry.module}")
    client: Client = module.CLIENT(place, entry.variant)
    return client


def choose(text: str) -> list[str]:
    """Names separated by commas, or the usual ones; ValueError if one is unknown."""
    if not text:
        return [*(name for name, entry in SYSTEMS.items() if entry.usual), *LEFT_OUT]
    return chosen(text, [*SYSTEMS, *LEFT_OUT])
