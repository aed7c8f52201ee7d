"""What members return is one result: as it was packed, large values by reference."""

from __future__ import annotations

from penstock.tasks.blobs.blob import new_blob
from penstock.tasks.codec import Codec, pack_blob
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.gangs.settling import _together

CODEC = Codec(lambda _: False)


def test_small_and_large_results_come_back_by_rank() -> None:
    values = [7, (1, 2), "x", {"deep": [3.5]}]
    large = {1, 3}
    members: list[TaskOutcome] = []
    for rank, value in enumerate(values):
        packed = CODEC.pack(value)
        if rank in large:
            blob = new_blob(bytes([rank] * 16), len(packed), 0.0, False, "x")
            members.append(TaskOutcome(0, pack_blob(0), blobs=[blob]))
        else:
            members.append(TaskOutcome(0, packed))
    result, blobs = _together(members)
    assert [blob.task[0] for blob in blobs] == [1, 3]
    stored = [CODEC.pack(values[blob.task[0]]) for blob in blobs]
    assert CODEC.unpack(result, stored) == values
