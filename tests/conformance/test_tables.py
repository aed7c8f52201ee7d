"""Tables: the same scripts everywhere. Sessions are tested where they live."""

from __future__ import annotations

import pytest
from tests.conformance.conftest import refuses
from tests.node.test_cluster import wait_for

from penstock.errors import ConflictError, NotFoundError, TooLargeError

KEYS = [b"k%03d" % each for each in range(30)]


def test_entries_have_versions(fabric):
    table = fabric.table("t")
    for key in KEYS:
        assert table.get(key) is None
        version = table.put(key, b"1")
        assert table.entry(key).version == version
        second = table.put(key, b"2", if_version=version)
        assert second > version
        with pytest.raises(ConflictError):
            table.put(key, b"3", if_version=version)
        with pytest.raises(ConflictError):
            table.put(key, b"3", if_version=0)
        with pytest.raises(ConflictError):
            table.delete(key, version)
        assert table.get(key) == b"2"
    assert table.delete(KEYS[0], table.entry(KEYS[0]).version)
    assert not table.delete(KEYS[0])
    assert table.entry(KEYS[0]) is None
    with pytest.raises(TooLargeError):
        table.put("large", bytes((1 << 20) + 1))


def test_appending(fabric):
    table = fabric.table("t")
    for part in (b"a", b"b", b"c"):
        table.append("k", part)
    assert table.get("k") == b"abc"


def test_all_entries_in_order(fabric):
    table = fabric.table("t")
    for key in reversed(KEYS):
        table.put(key, key * 2)
    assert list(table.items()) == [(key, key * 2) for key in KEYS]
    assert list(table.keys()) == KEYS
    assert list(table.keys("k01")) == KEYS[10:20]
    assert list(table.items(b"none")) == []


def test_more_entries_than_a_page(fabric, monkeypatch):
    monkeypatch.setattr("penstock.client.ops_table.PAGE", 7)
    table = fabric.table("t", durability="written")
    for key in KEYS:
        table.put(key, b"")
    assert list(table.keys()) == KEYS
    assert list(table.keys("k01")) == KEYS[10:20]


def test_entries_that_do_not_last(fabric):
    table = fabric.table("t")
    table.put("short", b"x", ttl=0.2)
    table.put("long", b"x", ttl=60.0)
    wait_for(lambda: table.get("short") is None)
    assert list(table.keys()) == [b"long"]


def test_a_watch_sees_every_change(fabric):
    table = fabric.table("t")
    table.put("k-before", b"x")
    with table.watch("k") as watcher:
        table.put("other", b"x")
        version = table.put("k1", b"1")
        found = next(watcher)
        assert (found.key, found.value, found.version) == (b"k1", b"1", version)
        for key in KEYS[:20]:
            table.put(key, key)
        seen = [next(watcher) for _ in range(20)]
        assert sorted((each.key, each.value) for each in seen) == [(key, key) for key in KEYS[:20]]
        table.delete("k1")
        gone = next(watcher)
        assert (gone.key, gone.version) == (b"k1", 0)


def test_figures_of_a_table(fabric):
    table = fabric.table("t")
    for key in KEYS:
        table.put(key, b"12345")
    table.delete(KEYS[0])
    figures = table.stats()
    assert (figures["name"], figures["kind"], figures["entries"]) == ("t", "table", 29)
    assert figures["bytes"] >= 29 * 9
    for key in KEYS[1:]:
        table.delete(key)
    assert (table.stats()["entries"], table.stats()["bytes"]) == (0, 0)


def test_a_table_comes_and_goes(fabric):
    with pytest.raises(NotFoundError):
        fabric.table("t", create=False)
    table = fabric.table("t")
    table.configure(max_bytes=1 << 20)
    assert (table.name, table.options.max_bytes) == ("t", 1 << 20)
    table.put("k", b"v")
    assert table.drop()
    assert not table.drop()
    refuses(lambda: table.get("k"))
    assert fabric.table("t").get("k") is None
