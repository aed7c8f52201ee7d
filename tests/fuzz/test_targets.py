"""Every target with its own examples, and with many that are changed at random."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.targets import TARGETS, Target

BY_NAME = {target.name: target for target in TARGETS}
Edits = list[tuple[int, int, bytes]]


@pytest.mark.parametrize("name", BY_NAME)
def test_examples(name: str) -> None:
    for example in BY_NAME[name].examples():
        BY_NAME[name].run(example)


@pytest.mark.parametrize("name", BY_NAME)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_anything(name: str, data: st.DataObject) -> None:
    target: Target = BY_NAME[name]
    example = bytearray(data.draw(st.sampled_from(target.examples())))
    edits: Edits = data.draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4), st.binary(max_size=4)))
    )
    for at, dropped, inserted in edits:
        at %= len(example) + 1
        example[at : at + dropped] = inserted
    target.run(bytes(example))
