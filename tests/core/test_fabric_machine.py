"""Topics, tables and transactions of a whole Fabric against dicts, with crashes at any record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.core.canonical import state_of
from tests.core.harness import Node, Snapshot

from penstock.errors import ConflictError, FencedError, InvalidError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch

PARTITIONS = 3
RETENTION_MS = 60_000
KEYS = st.sampled_from([b"a", b"ab", b"b", b"c"])
NUMBERS = st.integers(0, PARTITIONS - 1)
GROUPS = st.sampled_from(["g", "h"])
OWNERS = st.sampled_from(["ann", "bob"])


class FabricMachine(RuleBasedStateMachine):
    """Everything is committed at once; what a crash may lose is the business of other tests."""

    @initialize()
    def start(self) -> None:
        self.node = Node(3)
        self.topic = self.node.open(
            "topic", "t", partitions=PARTITIONS, retention_ms=RETENTION_MS, durability="written"
        )
        self.table = self.node.open("table", "c")
        self.rows: list[list[tuple[int, bytes, int]]] = [[] for _ in range(PARTITIONS)]
        self.ends = [0] * PARTITIONS
        self.commits: dict[tuple[str, int], int] = {}
        self.states: dict[tuple[str, int], bytes] = {}
        self.reserved: dict[tuple[str, int], str] = {}
        self.claims: dict[tuple[str, int], tuple[str, int, int]] = {}
        self.cells: dict[bytes, tuple[bytes, int, int, int]] = {}
        self.sessions: dict[int, int] = {}
        self.events: dict[bytes, bytes] = {}
        self.sequence = 0
        self.last_txn: m.Transact | None = None
        self.snapshot: Snapshot = {}
        self._watch()

    def _watch(self) -> None:
        self.node.call(m.Watch(self.table))
        self.events = {key: cell[0] for key, cell in self.cells.items()}

    # --- topics ----------------------------------------------------------------------------

    @rule(partition=NUMBERS, values=st.lists(st.binary(max_size=5), min_size=1, max_size=5))
    def publish(self, partition: int, values: list[bytes]) -> None:
        receipt = self.node.receipt(self.node.push(self.topic, values, partition=partition))
        assert receipt.base == self.ends[partition]
        self._published(partition, values)

    def _published(self, partition: int, values: list[bytes]) -> None:
        base, now_us = self.ends[partition], self.node.now_us
        self.rows[partition] += [(base + n, value, now_us) for n, value in enumerate(values)]
        self.ends[partition] += len(values)

    @rule(partition=NUMBERS, offset=st.integers(0, 30), max_bytes=st.sampled_from([1, 1 << 20]))
    def fetch(self, partition: int, offset: int, max_bytes: int) -> None:
        start = self.node.call(m.Offsets(self.topic))[partition][0]
        request = self.node.fetch(self.topic, partition, offset, max_bytes=max_bytes)
        answer = self.node.answer(request)
        if offset > self.ends[partition]:
            with pytest.raises(InvalidError):
                answer.value()
        elif offset < start:
            with pytest.raises(NotFoundError):
                answer.value()
        else:
            assert answer.fetched is not None
            found = [row for row in answer.fetched[2] if row[0] >= offset]
            wanted = [row[:2] for row in self.rows[partition] if row[0] >= offset]
            assert found == wanted[: len(found)]
            assert answer.fetched[:2] == (start, self.ends[partition])
            assert bool(found) == bool(wanted)
            assert max_bytes == 1 or found == wanted

    @rule(
        partition=NUMBERS, group=GROUPS, offset=st.integers(-1, 20), token=st.integers(0, 3),
        state=st.binary(max_size=3),
    )  # fmt: skip
    def commit_offset(
        self, partition: int, group: str, offset: int, token: int, state: bytes
    ) -> None:
        call = m.Commit(self.topic, group, [(partition, offset, token)], [state] if state else [])
        if not 0 <= offset <= self.ends[partition]:
            with pytest.raises(InvalidError):
                self.node.call(call)
        elif self._is_fenced(group, partition, token):
            with pytest.raises(FencedError):
                self.node.call(call)
        else:
            self.node.call(call)
            self.commits[group, partition] = offset
            self.states[group, partition] = state

    def _is_fenced(self, group: str, partition: int, token: int) -> bool:
        owner, current, deadline_us = self.claims.get((group, partition), ("", token, 0))
        if token:
            return token != current
        return bool(owner) and deadline_us > self.node.now_us and current != token

    @rule(partition=NUMBERS, group=GROUPS, owner=OWNERS, token=st.integers(0, 3))
    def claim(self, partition: int, group: str, owner: str, token: int) -> None:
        holder, current, deadline_us = self.claims.get((group, partition), ("", 0, 0))
        call = m.Claim(self.topic, partition, group, owner, 5000, token if current else 0)
        if current and token and (token, owner) != (current, holder):
            with pytest.raises(ConflictError):
                self.node.call(call)
            return
        info = self.node.call(call)
        lasts = deadline_us > self.node.now_us
        reserved = self.reserved.get((group, partition), "")
        if not (current and token) and lasts and owner not in (holder, "" if holder else reserved):
            assert info == {"owner": holder or reserved, "token": 0}
            return
        wanted = current if current and (token or (lasts and holder)) else current + 1
        self.reserved[group, partition] = ""
        assert info == {"owner": owner, "token": wanted}
        self.claims[group, partition] = (owner, wanted, self.node.now_us + 5_000_000)

    @rule(partition=NUMBERS, group=GROUPS, token=st.integers(1, 3), to=st.just("") | OWNERS)
    def unclaim(self, partition: int, group: str, token: int, to: str) -> None:
        holder, current, _ = self.claims.get((group, partition), ("", 0, 0))
        held = bool(holder) and token == current
        call = m.Unclaim(self.topic, partition, group, token, to, 2000 if to else 0)
        assert self.node.call(call) == held
        if held:
            until_us = self.node.now_us + 2_000_000 if to else 0
            self.claims[group, partition] = ("", current, until_us)
            self.reserved[group, partition] = to

    @rule(group=GROUPS, owner=OWNERS, token=st.integers(1, 3))
    def renew(self, group: str, owner: str, token: int) -> None:
        numbers = range(len(self.ends))
        told = self.node.call(m.Renew(self.topic, group, owner, [(n, token) for n in numbers]))
        for partition, renewed in enumerate(told):
            held = self.claims.get((group, partition), ("", 0, 0))[:2] == (owner, token)
            assert renewed == held
            if held:
                self.claims[group, partition] = (owner, token, self.node.now_us + 5_000_000)

    @rule(group=GROUPS)
    def look_at_claims(self, group: str) -> None:
        for partition, told in enumerate(self.node.call(m.Claims(self.topic, group, None, True))):
            holder, current, deadline_us = self.claims.get((group, partition), ("", 0, 0))
            assert (told["owner"], told["token"]) == (holder, current)
            assert told["left_ms"] == max(0, -(-(deadline_us - self.node.now_us) // 1000))
            assert told["offset"] == self.commits.get((group, partition))
            assert told["state"] == self.states.get((group, partition), b"")
            assert told["reserved"] == self.reserved.get((group, partition), "")

    # --- tables ----------------------------------------------------------------------------

    def _live(self, key: bytes) -> tuple[bytes, int, int, int] | None:
        cell = self.cells.get(key)
        gone = cell is not None and cell[2] and cell[2] <= self.node.now_us
        return None if gone else cell

    @rule(
        key=KEYS, value=st.binary(max_size=4), if_version=st.none() | st.integers(0, 6),
        ttl_ms=st.sampled_from([0, 0, 3000]), append=st.booleans(), session=st.integers(0, 3),
    )  # fmt: skip
    def put(
        self, key: bytes, value: bytes, if_version: int | None, ttl_ms: int, append: bool,
        session: int,
    ) -> None:  # fmt: skip
        cell = self._live(key)
        call = m.Put(self.table, key, value, if_version, ttl_ms, session, append)
        if if_version is not None and if_version != (cell[1] if cell else 0):
            with pytest.raises(ConflictError):
                self.node.call(call)
        elif session and session not in self.sessions:
            with pytest.raises(NotFoundError):
                self.node.call(call)
        else:
            version = self.node.call(call)
            assert cell is None or version > cell[1], "versions grow"
            whole = cell[0] + value if append and cell else value
            expires_us = self.node.now_us + ttl_ms * 1000 if ttl_ms else 0
            self.cells[key] = (whole, version, expires_us, session)

    @rule(key=KEYS, if_version=st.none() | st.integers(0, 6))
    def remove(self, key: bytes, if_version: int | None) -> None:
        cell = self._live(key)
        call = m.Remove(self.table, key, if_version)
        if if_version is not None and if_version != (cell[1] if cell else 0):
            with pytest.raises(ConflictError):
                self.node.call(call)
            return
        assert self.node.call(call) == (cell is not None)
        if cell is not None:
            del self.cells[key]

    @rule(prefix=st.sampled_from([b"", b"a", b"z"]), after=st.none() | KEYS)
    def scan(self, prefix: bytes, after: bytes | None) -> None:
        found = self.node.call(m.Scan(self.table, prefix, after, 3))
        wanted = [
            {"key": key, "value": cell[0], "version": cell[1]}
            for key in sorted(self.cells)
            if key.startswith(prefix) and (after is None or key > after)
            if (cell := self._live(key)) is not None
        ]
        assert found == wanted[:3]

    @rule()
    def open_session(self) -> None:
        number = self.node.call(m.SessionOpen(4000))
        assert number not in self.sessions
        self.sessions[number] = self.node.now_us + 4_000_000

    @rule(number=st.integers(1, 3), close=st.booleans())
    def keep_or_close_session(self, number: int, close: bool) -> None:
        call = m.SessionClose(number) if close else m.SessionKeep(number)
        assert self.node.call(call) == (number in self.sessions)
        if number in self.sessions:
            if close:
                self._end(number)
            else:
                self.sessions[number] = self.node.now_us + 4_000_000

    def _end(self, number: int) -> None:
        del self.sessions[number]
        self.cells = {key: cell for key, cell in self.cells.items() if cell[3] != number}

    # --- transactions ----------------------------------------------------------------------

    @rule(
        key=KEYS, if_version=st.none() | st.integers(0, 3), partition=NUMBERS, group=GROUPS,
        offset=st.integers(0, 9), token=st.integers(0, 2), home=st.integers(0, 2), data=st.data(),
    )  # fmt: skip
    def transact(
        self, key: bytes, if_version: int | None, partition: int, group: str, offset: int,
        token: int, home: int, data: Any,
    ) -> None:  # fmt: skip
        batch = bytes(encode_batch([b"txn", key], timestamp_us=0))
        producer = 50 + home
        call = m.Transact(producer, self._next(producer), home)
        call.writes.append(m.TxnWrite(self.table, key, b"txn", if_version))
        call.commits.append(m.TxnCommit(self.topic, partition, group, offset, token, b"txn"))
        call.pushes.append(m.TxnPush(self.topic, partition, 0, batch))
        cell = self._live(key)
        refused = (
            (if_version is not None and if_version != (cell[1] if cell else 0))
            or offset > self.ends[partition]
            or self._is_fenced(group, partition, token)
        )
        if refused:
            before = state_of(self.node.fabric)
            with pytest.raises((ConflictError, InvalidError)):
                self.node.call(call)
            assert state_of(self.node.fabric) == before, "nothing was changed"
            return
        records = len(self.node.journal)
        receipt = self.node.call(call)
        self._check_all_or_nothing(records, data)
        assert (receipt["home"], receipt["duplicate"]) == (home, False)
        version = self.node.call(m.Get(self.table, key))["version"]
        self.cells[key] = (b"txn", version, 0, 0)
        self.commits[group, partition] = offset
        self.states[group, partition] = b"txn"
        self._published(partition, [b"txn", key])
        self.last_txn = call

    def _next(self, producer: int) -> int:
        windows = [
            shard.producers.windows.get(producer) for shard in self.node.fabric.kernel.shards
        ]
        return next((window.next_sequence for window in windows if window is not None), 0)

    def _check_all_or_nothing(self, records: int, data: Any) -> None:
        """A crash after any of the records that the transaction wrote."""
        count = len(self.node.journal) - records
        kept = data.draw(st.integers(1, count), label="records kept")
        whole, cut = self.node.crash(), self.node.crash(keep=records + kept)
        assert _contents(cut) == _contents(whole)

    @precondition(lambda self: self.last_txn is not None)
    @rule()
    def resend_transaction(self) -> None:
        before = state_of(self.node.fabric)
        assert self.node.call(self.last_txn)["duplicate"]
        assert state_of(self.node.fabric) == before

    # --- time and crashes ------------------------------------------------------------------

    @rule(after_ms=st.sampled_from([1, 1000, 3500, 70_000]))
    def wait(self, after_ms: int) -> None:
        self.node.tick(after_ms * 1000)
        for _ in range(11 if after_ms == 70_000 else 0):  # retention goes round in ten turns
            self.node.tick(1_000_000)
        now_us = self.node.now_us
        for number in [n for n, deadline_us in self.sessions.items() if deadline_us <= now_us]:
            self._end(number)
        self.cells = {key: cell for key, cell in self.cells.items() if self._live(key)}
        for partition, rows in enumerate(self.rows):
            start = self.node.call(m.Offsets(self.topic))[partition][0]
            for offset, _, arrived_us in rows:
                too_old = arrived_us + RETENTION_MS * 1000 <= now_us
                assert offset >= start or too_old, "nothing is forgotten too early"
                assert offset < start or not too_old or after_ms != 70_000
            self.rows[partition] = [row for row in rows if row[0] >= start]

    @rule(shards=st.sets(st.integers(0, 2)))
    def take_snapshot(self, shards: set[int]) -> None:
        self.snapshot = self.node.snapshot(sorted(shards))

    @rule()
    def crash(self) -> None:
        before = state_of(self.node.fabric)
        self.node = self.node.crash(self.snapshot)
        assert state_of(self.node.fabric) == before
        self.snapshot = {}
        now_us = self.node.now_us
        self.sessions = dict.fromkeys(self.sessions, now_us + 4_000_000)
        for name, (owner, token, _) in self.claims.items():
            lease_us = 5_000_000 if owner else 2_000_000 if self.reserved.get(name) else -now_us
            self.claims[name] = (owner, token, now_us + lease_us)
        self._watch()

    @invariant()
    def contents_are_equal(self) -> None:
        if not hasattr(self, "node"):
            return
        offsets = self.node.call(m.Offsets(self.topic))
        assert [end for _, end in offsets] == self.ends
        for group in ("g", "h"):
            wanted = [self.commits.get((group, number)) for number in range(PARTITIONS)]
            assert self.node.call(m.Committed(self.topic, group)) == wanted
        for key in (b"a", b"ab", b"b", b"c"):
            cell, found = self._live(key), self.node.call(m.Get(self.table, key))
            assert (found and (found["value"], found["version"])) == (cell and cell[:2])
        self.node.check()

    @invariant()
    def watchers_hear_everything(self) -> None:
        if not hasattr(self, "node"):
            return
        for answer in self.node.inbox:
            for entry in answer.value()["entries"]:
                if entry["version"]:
                    self.events[entry["key"]] = entry["value"]
                else:
                    self.events.pop(entry["key"], None)
        self.node.inbox.clear()
        late = {key for key in self.events if key in self.cells and not self._live(key)}
        assert {k: v for k, v in self.events.items() if k not in late} == {
            key: cell[0] for key, cell in self.cells.items() if self._live(key)
        }


def _contents(node: Node) -> Any:
    """All that a client can see; numbers of records may differ after a cut."""
    state = state_of(node.fabric)
    for shard in state["shards"]:
        del shard["last"]
        for cells in shard["tables"].values():
            for cell in cells.values():
                cell.version = 0
        for key, partition in shard["partitions"].items():
            rows = [row._replace(location=0, arrived_us=0) for row in partition[-1]]
            shard["partitions"][key] = (*partition[:-1], rows)
    return state


def test_topics_tables_and_transactions() -> None:
    run_state_machine_as_test(
        FabricMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
