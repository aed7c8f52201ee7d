"""DataFrames and named tuples, there and back."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.tasks import shapes
from tests.tasks.shapes import Pair, Spot

from penstock.errors import PenstockError
from penstock.tasks.codec import Codec
from penstock.tasks.errors import SerialisationError

codec = Codec(lambda package: package == "tests")


def back(value: Any) -> Any:
    return codec.unpack(codec.pack(value))


FRAMES = [
    pd.DataFrame(),
    pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, np.nan], "d": [True, False]}),
    pd.DataFrame({"when": pd.date_range("2026-01-01", periods=3, tz="Europe/Vienna")}),
    pd.DataFrame({"kind": pd.Categorical(["a", "b", "a"]), "big": pd.array([1, None, 3], "Int64")}),
    pd.DataFrame({"a": [1, 2]}, index=pd.Index(["x", "y"], name="key")),
    pd.DataFrame({0: [1], 1: [2]}),
    pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)])),
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_frames_of_pandas_keep_their_types_and_index(frame: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(back(frame), frame)


def test_frames_lie_in_other_values_and_may_be_changed() -> None:
    found = back({"frames": [pd.DataFrame({"a": [1, 2]})]})["frames"][0]
    found.loc[0, "a"] = 5
    assert found["a"].tolist() == [5, 2]


def test_frames_of_polars() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2], "b": ["x", None], "c": [[1], [2, 3]]})
    assert back(frame).equals(frame)
    assert type(back(frame)) is polars.DataFrame
    with pytest.raises(SerialisationError, match="collect"):
        codec.pack(frame.lazy())


@pytest.mark.parametrize("missing", ["pyarrow", "pandas"])
def test_what_is_not_installed_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"a": [1]})
    packed = codec.pack(frame)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SerialisationError, match=missing):
        codec.unpack(packed)
    if missing == "pyarrow":
        with pytest.raises(SerialisationError, match=r"pip install 'penstock\[arrow\]'"):
            codec.pack(frame)


@pytest.mark.parametrize("value", [Pair(1), Pair(Spot(1, 2), [Pair((1, 2), None)]), Spot({}, 1)])
def test_named_tuples(value: Any) -> None:
    found = back(value)
    assert found == value
    assert (type(found), type(found[0])) == (type(value), type(value[0]))


def test_a_field_that_the_sender_does_not_know_gets_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = codec.pack(Spot(1, 2))
    more = namedtuple("more", ["x", "y", "z"], defaults=[3])
    monkeypatch.setattr(shapes, "Spot", more)
    assert codec.unpack(packed) == more(1, 2, 3)
    needs = namedtuple("needs", ["x", "y", "z"])
    monkeypatch.setattr(shapes, "Spot", needs)
    with pytest.raises(SerialisationError, match="without its field 'z'"):
        codec.unpack(packed)
    fewer = namedtuple("fewer", ["x"])
    monkeypatch.setattr(shapes, "Spot", fewer)
    with pytest.raises(SerialisationError, match="no field 'y'"):
        codec.unpack(packed)


def test_a_named_tuple_is_made_only_of_trusted_classes_that_are_some() -> None:
    with pytest.raises(SerialisationError, match="trusted"):
        Codec(lambda _: False).unpack(codec.pack(Pair(1)))
    for path in ("tests.tasks.shapes:Exploding", "tests.tasks.shapes:Point"):
        packed = codec.pack(Pair(1)).replace(b"tests.tasks.shapes:Pair", path.encode())
        with pytest.raises(PenstockError):
            codec.unpack(packed)
    assert shapes.Exploding.made == 0
    local = namedtuple("local", "x")
    with pytest.raises(SerialisationError, match="another class, or none"):
        codec.pack(local(1))
