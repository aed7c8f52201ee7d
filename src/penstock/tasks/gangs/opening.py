"""A whole worker of gangs, from the settings of a worker."""

from __future__ import annotations

from penstock.client.aio import AsyncFabric
from penstock.tasks.blobs.carrier import CarriedAside, Carrier
from penstock.tasks.blobs.files import Directory
from penstock.tasks.blobs.pieces import PatientPieces, Pieces
from penstock.tasks.blobs.store import BlobStore
from penstock.tasks.codec import Codec
from penstock.tasks.declare import registry
from penstock.tasks.gangs.processes import ProcessMembers
from penstock.tasks.gangs.running import MemberRunner
from penstock.tasks.gangs.settling import Settling
from penstock.tasks.gangs.streams import open_gangs
from penstock.tasks.gangs.threads import ThreadMembers
from penstock.tasks.gangs.worker import SESSION_S, GangWorker, Members
from penstock.tasks.worker.loading import load
from penstock.tasks.worker.protocol import Setup
from penstock.tasks.worker.settings import WorkerSettings


async def open_gang_worker(
    fabric: AsyncFabric, settings: WorkerSettings, name: str, address: str = "",
    session_s: float = SESSION_S,
) -> GangWorker:  # fmt: skip
    """A worker that takes part in one gang at a time; `run` it. A host runs as many as it has room
    for, each under its own name; the same settings serve all. Streams are made if need be."""
    streams = await open_gangs(fabric, settings.task_set, settings.durability)
    pieces = Pieces(fabric, settings.task_set, settings.durability)
    directory = Directory(settings.directory) if settings.directory else None
    settling = Settling(fabric, streams.others, name, BlobStore(pieces, directory))
    members = _members(settings, name, PatientPieces(pieces))
    return GangWorker(fabric, streams, members, settling, name, address, session_s)


def _members(settings: WorkerSettings, name: str, pieces: PatientPieces) -> Members:
    modules, allowed = list(settings.modules), list(settings.allowed)
    if settings.kind == "process":
        setup = Setup(modules, allowed, name, settings.pickle_key, settings.directory)
        return ProcessMembers(setup, pieces)
    for module in modules:
        load(module)
    codec = Codec(registry.has_package, settings.pickle_key)
    directory = Directory(settings.directory) if settings.directory else None
    aside = CarriedAside(pieces)
    carrier = Carrier(aside.ask, aside.answer, directory)
    return ThreadMembers(MemberRunner(registry, codec, name, allowed, carrier))
