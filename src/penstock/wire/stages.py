"""Requests and answers about stages, and what is published of them."""

from __future__ import annotations

import msgspec

from penstock.wire.request import ColdRequest


class StagedPart(msgspec.Struct, array_like=True, frozen=True):
    """A stage in one shard: its id, and how many messages it must have there."""

    stage: bytes
    messages: int


class StagesOf(msgspec.Struct, array_like=True, frozen=True):
    """The stages that have something in a shard, in the order in which they are published."""

    shard: int
    stages: list[StagedPart]


class PublishStaged(ColdRequest):
    """Publish stages, once for a key and number; asked of the owner of the key's shard, which is
    that of its `publication_name`. Answer: Publication."""

    key: str
    number: int
    shards: list[StagesOf]
    namespace: str = "default"


class Publication(msgspec.Struct, frozen=True):
    """The last publication of a key. `outcome`: `published`, now or by an earlier try of the same
    stages, or `already`: another publication has this number or a higher one, and the stages that
    were given are dropped. `at_us`: when it was recorded."""

    key: str
    number: int
    outcome: str = "published"
    at_us: int = 0


def publication_name(namespace: str, key: str) -> str:
    """A key of publications among those of all namespaces."""
    return f"{namespace}\0{key}"


class DiscardStages(ColdRequest):
    """Drop stages that are not being published; asked of the owner of the shard. Answer: int, how
    many were dropped."""

    shard: int
    stages: list[bytes]


class Publications(ColdRequest):
    """The keys that this node remembers, in its shards. Answer: list[Publication]."""

    namespace: str = "default"


class ForgetPublication(ColdRequest):
    """Forget a key: its numbers may be used again. Answer: bool, whether it was known."""

    key: str
    namespace: str = "default"
