"""Values there and back: all types, all nestings; what an error says."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tests.tasks.shapes import Colour, Frozen, Level, Pair, Point, Record, Rights, Spot

from penstock.errors import PenstockError
from penstock.tasks.codec import Codec, Parent
from penstock.tasks.errors import SerialisationError

codec = Codec(lambda package: package == "tests")

zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-5, minutes=30)), ZoneInfo("UTC")])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
    st.binary().map(bytearray),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([Path("a/b"), Path("/"), PurePosixPath("x"), PureWindowsPath("c:/x")]),
    st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    st.sampled_from([*Colour, *Level, Rights.READ, Rights.READ | Rights.WRITE, Rights(0)]),
)
hashables = scalars.filter(lambda value: not isinstance(value, bytearray))


def nested(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(values, max_size=4),
        st.lists(values, max_size=4).map(tuple),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        st.dictionaries(st.text(max_size=3), values, max_size=3),
        st.dictionaries(st.one_of(hashables, st.tuples(hashables)), values, max_size=3),
        st.builds(Point, values, values),
        st.builds(Frozen, st.text(max_size=3), values),
        st.builds(Record, st.text(max_size=3), values),
        st.builds(Pair, values, values),
        st.builds(Spot, values, values),
    )


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@settings(deadline=None)
@given(st.recursive(scalars, nested, max_leaves=12))
def test_what_is_packed_comes_back_the_same(value: Any) -> None:
    assert same(codec.unpack(codec.pack(value)), value)


@settings(deadline=None)
@given(st.lists(scalars, max_size=3), st.dictionaries(st.text(max_size=4), scalars, max_size=3))
def test_arguments_come_back_the_same(args: list[Any], kwargs: dict[str, Any]) -> None:
    packed, parents = codec.pack_call(tuple(args), kwargs)
    assert parents == []
    got_args, got_kwargs = codec.unpack_call(packed)
    assert same(got_args, args)
    assert same(got_kwargs, kwargs)


plain_dtypes = st.one_of(
    st_numpy.boolean_dtypes(),
    st_numpy.integer_dtypes(),
    st_numpy.floating_dtypes(),
    st_numpy.complex_number_dtypes(),
    st_numpy.datetime64_dtypes(),
    st_numpy.timedelta64_dtypes(),
    st_numpy.byte_string_dtypes(),
    st_numpy.unicode_string_dtypes(),
)


@settings(deadline=None)
@given(
    st_numpy.arrays(plain_dtypes, st_numpy.array_shapes(min_dims=0, min_side=0, max_side=4)),
    st.booleans(),
)
def test_arrays_come_back_the_same(array: np.ndarray, turn: bool) -> None:
    sent = array.T if turn else array
    got = codec.unpack(codec.pack({"in": (sent,)}))["in"][0]
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    np.testing.assert_array_equal(got, sent)


def test_an_array_is_read_where_it_lies() -> None:
    packed = codec.pack(np.arange(1000))
    got = codec.unpack(packed)
    assert not got.flags.writeable
    assert not got.flags.owndata


@pytest.mark.parametrize("value", [np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("x")])
def test_scalars_of_numpy_keep_their_type(value: np.generic) -> None:
    assert same(codec.unpack(codec.pack(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        pa.table({"a": [1, 2], "b": ["x", None]}),
        pa.table({"a": pa.array([], pa.int8())}),
        pa.record_batch({"a": [1.5]}),
        pa.record_batch({"a": pa.array([], pa.string())}),
        pa.array([1, None, 3]),
        pa.chunked_array([[1], [2, 3]]),
    ],
)
def test_arrow_comes_back_the_same(value: Any) -> None:
    got = codec.unpack(codec.pack([value]))[0]
    assert type(got) is type(value)
    assert got.equals(value)


class Future(Parent):
    def __init__(self, task: bytes) -> None:
        self.id = task


def test_results_of_parents_take_their_places() -> None:
    one, two = Future(b"1" * 16), Future(b"2" * 16)
    packed, parents = codec.pack_call(([one, {"deep": (two, one)}],), {"also": two})
    assert parents == [one.id, two.id]
    args, kwargs = codec.unpack_call(packed, ["first", "second"])
    assert args == [["first", {"deep": ("second", "first")}]]
    assert kwargs == {"also": "second"}
    with pytest.raises(SerialisationError, match="parent 0 is not at hand"):
        codec.unpack_call(packed)


# --- what cannot be sent -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "arguments[0]: an object"),
        ([1, {"x": object()}], "arguments[0][1]['x']: an object"),
        (Point(1, Record("k", [object()])), "arguments[0].y.value[0]: an object"),
        ((1, {frozenset(): object()}), "arguments[0][1][1]: an object"),
        (np.array([object()]), "arguments[0]: an array of object"),
        (np.zeros(2, [("a", "i4")]), "arguments[0]: an array of"),
        (ValueError("x"), "arguments[0]: a ValueError"),
        (datetime.now, "arguments[0]: a builtin"),
    ],
)
def test_an_error_says_where_it_is(value: object, path: str) -> None:
    with pytest.raises(SerialisationError) as caught:
        codec.pack_call((value,), {})
    assert str(caught.value).startswith(path)


def test_an_error_of_a_named_argument_and_of_a_result_says_so() -> None:
    with pytest.raises(SerialisationError, match=r"^arguments\['x'\]"):
        codec.pack_call((), {"x": object()})
    with pytest.raises(SerialisationError, match=r"^result\[0\]: .*pickle_key"):
        codec.pack([object()])


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = [(1,)]
    value.append(value)
    with pytest.raises(SerialisationError, match="in itself"):
        codec.pack(value)


def test_a_class_that_others_cannot_find_is_refused() -> None:
    local = msgspec.defstruct("Local", ["x"])
    with pytest.raises(PenstockError, match="another class, or none"):
        codec.pack(local(1))


def test_known_values_keep_their_bytes() -> None:
    """What is stored today is read by every later release."""
    assert codec.pack((1, "x")).hex() == "d6019201a178"
    assert codec.pack(date(2024, 2, 29)).hex() == "c70a08323032342d30322d3239"
    assert codec.pack(UUID(int=1)).hex() == "d80c" + "00" * 15 + "01"
    assert codec.pack(Decimal("1.5")).hex() == "c7030b312e35"
    assert codec.pack(time(1, 2)).hex() == "c70c0993a830313a30323a303000c0"
