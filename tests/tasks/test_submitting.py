"""What a submission becomes, before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.tasks import functions

from penstock.tasks.calls import KEEP_S, Caller, CallOptions
from penstock.tasks.codec import Codec
from penstock.tasks.envelope import read_call
from penstock.tasks.futures import TaskHandle
from penstock.tasks.submitting import Submitting
from penstock.wire.messages import QueueOptions


@dataclass
class Future(TaskHandle):
    id: bytes
    codec: Codec
    function: str
    kept: bool


@pytest.mark.parametrize("keep", [None, 0, 1, 2 * KEEP_S])
def test_the_outcome_of_a_name_is_kept_as_long_as_the_name_is_known(keep: float | None) -> None:
    """Who submits it again in that time is told nothing else."""
    submitting = Submitting(Caller.new(None, ()), Future)
    options = CallOptions(task_id="nightly", keep=keep)
    _, parcel = submitting.waited((functions.square, [3], {}), options)
    assert read_call(parcel.values[0]).keep_ms == max(keep or 0, KEEP_S) * 1000
    assert QueueOptions().id_window_ms <= KEEP_S * 1000


def test_others_are_kept_as_long_as_is_said() -> None:
    submitting = Submitting(Caller.new(None, ()), Future)
    _, parcel = submitting.waited((functions.square, [3], {}), CallOptions(keep=1))
    assert read_call(parcel.values[0]).keep_ms == 1000
