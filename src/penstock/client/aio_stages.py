"""Stages of the asyncio shell."""

from __future__ import annotations

from penstock.client import ops_arrow, ops_push, ops_stage
from penstock.client.shells import awaitable
from penstock.client.stages import StageState


class AsyncQueueStage(StageState):
    """What is pushed here is seen by nobody until it is published; see `AsyncQueue.stage`."""

    push = awaitable(ops_push.push)
    push_many = awaitable(ops_push.push_many)
    push_arrow = awaitable(ops_arrow.push_arrow)
    discard = awaitable(ops_stage.discard)


class AsyncTopicStage(StageState):
    """What is published here is seen by nobody until the stage is; see `AsyncTopic.stage`."""

    publish = awaitable(ops_stage.publish)
    publish_many = awaitable(ops_stage.publish_many)
    publish_arrow = awaitable(ops_arrow.publish_arrow)
    discard = awaitable(ops_stage.discard)
