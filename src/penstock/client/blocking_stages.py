"""Stages of the blocking shell."""

from __future__ import annotations

from penstock.client import ops_arrow, ops_push, ops_stage
from penstock.client.shells import blocking
from penstock.client.stages import StageState


class QueueStage(StageState):
    """What is pushed here is seen by nobody until it is published; see `Queue.stage`."""

    push = blocking(ops_push.push)
    push_many = blocking(ops_push.push_many)
    push_arrow = blocking(ops_arrow.push_arrow)
    discard = blocking(ops_stage.discard)


class TopicStage(StageState):
    """What is published here is seen by nobody until the stage is; see `Topic.stage`."""

    publish = blocking(ops_stage.publish)
    publish_many = blocking(ops_stage.publish_many)
    publish_arrow = blocking(ops_arrow.publish_arrow)
    discard = blocking(ops_stage.discard)
