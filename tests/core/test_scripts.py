"""Protocol scripts: `scripts/*.txt` hold commands and the answers that a node must give.

A line that starts with `>` is a command; the lines under it are the whole answer. `Script` is the
list of commands. After a wanted change: `REWRITE_SCRIPTS=1 pytest tests/core/test_scripts.py`, and
read the difference before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.core.harness import Answer, Got, Node, read_settled

from penstock.core.lanes import LANE_SHIFT
from penstock.errors import PenstockError
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Flag, PopMode, PushExtra, Settle, SettleItem, Verb
from penstock.wire.holds import Policy

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
_STATES = ("ready", "leased", "delayed", "held", "dead", "messages")
_pack = msgspec.msgpack.encode


class Script:
    """One node, and commands for it. `word=value` are options, in any order."""

    def __init__(self) -> None:
        self.node = Node(4)
        self.streams: dict[str, int] = {}
        self.tokens: dict[str, Got] = {}  # by value: the last delivery
        self.readers: dict[int, Callable[[Answer], str]] = {}
        self.requests: dict[str, int] = {}
        self.connection = 1

    def run(self, line: str) -> list[str]:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        self.node.closed.clear()
        try:
            said = getattr(self, "do_" + name.replace("-", "_"))(*plain, **options)
        except PenstockError as error:
            return [f"{type(error).__name__}: {error.message}"]
        lines = [] if said is None else said.splitlines()
        lines += [self._read(answer) for answer in self.node.inbox]
        self.node.inbox.clear()
        return lines + [f"connection {number} is closed" for number in self.node.closed]

    def _read(self, answer: Answer) -> str:
        who = "" if answer.connection == 1 else f"to {answer.connection}: "
        if answer.flags & Flag.ERROR:
            error = frames.read_error(answer.body)
            return f"{who}{type(error).__name__}: {error.message}"
        if answer.verb in (Verb.POP, Verb.DELIVER):
            return who + self._messages(answer.messages)
        if answer.verb == Verb.FETCH and answer.fetched is not None:
            start, end, rows = answer.fetched
            found = " ".join(f"{offset}={value.decode()}" for offset, value in rows)
            return f"{who}{start} to {end}: {found}"
        if answer.verb == Verb.EVENT:
            event = msgspec.msgpack.decode(answer.body, type=m.Event)
            changes = " ".join(
                f"{e.key.decode()}@{e.version}={e.value.decode()}" for e in event.entries
            )
            return f"{who}event {changes}{' lost' if event.lost else ''}"
        return who + self.readers.get(answer.request, self._value)(answer)

    def _messages(self, messages: list[Got]) -> str:
        self.tokens |= {one.value.decode(): one for one in messages if one.grant}
        shown = [
            f"{one.value.decode()} ({_place(one.position)} of shard {one.shard}"
            + (f", lease {one.grant}, delivery {one.deliveries})" if one.grant else ")")
            for one in messages
        ]
        return "\n".join(shown) or "nothing"

    @staticmethod
    def _value(answer: Answer) -> str:
        value = answer.value() if answer.body else "ok"
        if isinstance(value, dict):
            return " ".join(f"{key}={item}" for key, item in value.items())
        return str(value)

    def _call(self, message: Any) -> None:
        self.node.send(Verb.CALL, _pack(message), connection=self.connection)

    # --- the shell -------------------------------------------------------------------------

    def do_connection(self, number: str) -> None:
        self.connection = int(number)
        if self.connection not in self.node.fabric.connections:
            self.node.connect(self.connection)

    def do_disconnect(self, number: str) -> None:
        self.node.fabric.disconnect(int(number))

    def do_wait(self, after_ms: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.node.tick(int(after_ms) * 1000)

    def do_keep_back(self) -> None:
        """Nothing is committed from now on, until `commit-all`."""
        self.node.lazy = True

    def do_commit_all(self) -> None:
        self.node.lazy = False
        self.node.commit()

    def do_crash(self) -> None:
        self.node = self.node.crash(self.node.snapshot())

    def do_raw(self, verb: str, body: str = "", connection: str = "1") -> None:
        self.node.send(int(verb), bytes.fromhex(body), connection=int(connection))

    # --- streams ---------------------------------------------------------------------------

    def do_open(self, kind: str, name: str, **options: str) -> str:
        settings = {key: int(value) if value.isdigit() else value for key, value in options.items()}
        self.streams[name] = self.node.open(kind, name, **settings)
        return f"stream {self.streams[name]}"

    def do_find(self, kind: str, name: str) -> str:
        return f"stream {self.node.call(m.Open(kind, name, create=False))['id']}"

    def do_configure(self, name: str, **options: str) -> str:
        settings = {key: int(value) if value.isdigit() else value for key, value in options.items()}
        info = self.node.call(m.Configure(self.streams[name], settings))
        return " ".join(f"{key}={info['options'][key]}" for key in options)

    def do_delete(self, kind: str, name: str) -> None:
        self._call(m.Delete(kind, name))

    def do_streams(self) -> str:
        found = self.node.call(m.Streams())
        return "\n".join(f"{info['id']} {info['kind']} {info['name']}" for info in found)

    def do_counts(self, name: str) -> str:
        figures = self.node.call(m.StreamStats(self.streams[name]))
        shown = [f"{figures[key]} {key}" for key in _STATES if figures.get(key)]
        return ", ".join(shown) or "empty"

    # --- queues ----------------------------------------------------------------------------

    def do_push(self, name: str, *values: str, **options: str) -> None:
        number = {key: int(value) for key, value in options.items() if value.lstrip("-").isdigit()}
        key = options.get("key")
        batch = encode_batch(
            [value.encode() for value in values], timestamp_us=0,
            keys=None if key is None else [key.encode()] * len(values),
            priority=number.get("priority", 0), due_us=-1000 * number.get("delay", 0),
            ttl_ms=number.get("ttl", 0), producer=number.get("producer", 0),
            sequence=number.get("sequence", 0), instance=number.get("instance", 0),
            generation=number.get("generation", 0),
        )  # fmt: skip
        extra, shard = None, number.get("shard", 0)
        if "id" in options:
            extra = PushExtra(options["id"].encode(), bool(number.get("hold", 0)))
            shard = self.node.fabric.kernel.shard_of(options["id"].encode()).id
        packed = b"" if extra is None else _pack(extra)
        packed = len(packed).to_bytes(4, "little") + packed if extra is not None else b""
        levels = {"written": 1, "synced": 2}
        head = frames.PUSH.pack(
            self.streams.get(name, 999), number.get("partition", 0), shard,
            levels.get(options.get("durability", ""), 0), len(packed),
        )  # fmt: skip
        request = self.node.send(Verb.PUSH, head + packed + batch, connection=self.connection)
        self.readers[request] = self._receipt

    @staticmethod
    def _receipt(answer: Answer) -> str:
        receipt = frames.Receipt(*frames.RECEIPT.unpack(answer.body))
        known = ", known already" if receipt.duplicate else ""
        level = Durability(receipt.durability).label
        return f"{receipt.count} at {_place(receipt.base)} of shard {receipt.shard}, {level}{known}"

    def do_pop(self, name: str, messages: str = "1", wait: str = "0", lease: str = "0") -> None:
        self.requests["pop"] = self._pop(name, messages, Verb.POP, wait=wait, lease=lease)

    def _pop(
        self, name: str, messages: str, verb: int, mode: int = 0, wait: str = "0", lease: str = "0"
    ) -> int:
        return self.node.pop(
            self.streams[name], int(messages), wait_ms=int(wait), lease_ms=int(lease), mode=mode,
            connection=self.connection, verb=verb,
        )  # fmt: skip

    def do_peek(self, name: str, messages: str = "1") -> None:
        self._pop(name, messages, Verb.POP, PopMode.PEEK)

    def do_peek_dead(self, name: str, messages: str = "1") -> None:
        self._pop(name, messages, Verb.POP, PopMode.PEEK_DEAD)

    def do_subscribe(self, name: str, credit: str) -> None:
        self.requests["subscribe"] = self._pop(name, credit, Verb.SUBSCRIBE)

    def do_credit(self, messages: str) -> None:
        request, body = self.requests["subscribe"], frames.CREDIT.pack(int(messages))
        self.node.send(Verb.CREDIT, body, request=request, connection=self.connection)

    def do_cancel(self, what: str) -> None:
        request = self.requests[what]
        self.node.send(Verb.CANCEL, request=request, connection=self.connection)

    def _settle(self, op: int, name: str, value: str, arg: str = "0") -> None:
        token = self.tokens[value]
        item = SettleItem(op, token.shard, 1, token.grant, token.position, int(arg))
        body = frames.pack_settle(self.streams[name], [item])
        request = self.node.send(Verb.SETTLE, body, connection=self.connection)
        self.readers[request] = self._settled

    @staticmethod
    def _settled(answer: Answer) -> str:
        settled = read_settled(answer.body)
        return f"refused with {settled.refused[0]}" if settled.refused else "accepted"

    def do_ack(self, name: str, value: str) -> None:
        self._settle(Settle.ACK, name, value)

    def do_nack(self, name: str, value: str, delay: str = "0") -> None:
        self._settle(Settle.NACK, name, value, delay)

    def do_return(self, name: str, value: str, delay: str = "0") -> None:
        self._settle(Settle.RETURN, name, value, delay)

    def do_extend(self, name: str, value: str, lease: str) -> None:
        self._settle(Settle.EXTEND, name, value, lease)

    def do_bury(self, name: str, value: str) -> None:
        self._settle(Settle.DEAD, name, value)

    def do_purge(self, name: str, dead: str = "0") -> None:
        self._call(m.Purge(self.streams[name], dead == "1"))

    def do_redrive(self, name: str, limit: str = "1000") -> None:
        self._call(m.Redrive(self.streams[name], int(limit)))

    def do_release(self, name: str, *ids: str) -> None:
        self._call(m.Release(self.streams[name], [key.encode() for key in ids]))

    def do_producer(self, stream: str, name: str, partition: str = "0") -> str:
        info = self.node.call(m.Producer(self.streams[stream], name, int(partition)))
        return f"instance {info['instance']}, {info['stored']} stored, shard {info['shard']}"

    # --- topics ----------------------------------------------------------------------------

    def do_fetch(self, name: str, partition: str, offset: str, wait: str = "0") -> None:
        self.node.fetch(self.streams[name], int(partition), int(offset), wait_ms=int(wait))

    def do_grow(self, name: str, partitions: str) -> str:
        info = self.node.call(m.Grow(self.streams[name], int(partitions)))
        return f"shards {info['placement']}, parents {info.get('growths', [])}"

    def do_family(self, name: str) -> str:
        found = self.node.call(m.Family(self.streams[name]))
        return "\n".join(
            f"{number} from {each['origin']}"
            + "".join(f", growth {growth} at {at}" for growth, at in each["splits"])
            for number, each in enumerate(found)
        )

    def do_offsets(self, name: str) -> None:
        self._call(m.Offsets(self.streams[name]))

    def do_offset_at(self, name: str, back_ms: str) -> None:
        self._call(m.OffsetAt(self.streams[name], self.node.now_us - int(back_ms) * 1000))

    def do_commit(
        self, name: str, group: str, partition: str, offset: str, token: str = "0",
        state: str | None = None, size: str = "1",
    ) -> None:  # fmt: skip
        """`size`: so many times the state."""
        place = (int(partition), int(offset), int(token))
        states = [] if state is None else [state.encode() * int(size)]
        self._call(m.Commit(self.streams[name], group, [place], states))

    def do_committed(self, name: str, group: str) -> None:
        self._call(m.Committed(self.streams[name], group))

    def do_claim(
        self, name: str, partition: str, group: str, owner: str, lease: str, token: str = "0"
    ) -> None:
        self._call(
            m.Claim(self.streams[name], int(partition), group, owner, int(lease), int(token))
        )

    def do_unclaim(
        self, name: str, partition: str, group: str, token: str, to: str = "", reserve: str = "0"
    ) -> None:
        self._call(
            m.Unclaim(self.streams[name], int(partition), group, int(token), to, int(reserve))
        )

    def do_renew(self, name: str, group: str, owner: str, *claims: str) -> None:
        """Claims: PARTITION:TOKEN."""
        pairs = [(int(part), int(token)) for part, token in (each.split(":") for each in claims)]
        self._call(m.Renew(self.streams[name], group, owner, pairs))

    def do_claims(self, name: str, group: str, *partitions: str, states: str = "1") -> None:
        chosen = list(map(int, partitions)) or None
        call = m.Claims(self.streams[name], group, chosen, states == "1")
        request = self.node.send(Verb.CALL, _pack(call), connection=self.connection)
        self.readers[request] = self._statuses

    @staticmethod
    def _statuses(answer: Answer) -> str:
        return "\n".join(_status(m.ClaimStatus(**each)) for each in answer.value())

    # --- tables ----------------------------------------------------------------------------

    def do_put(self, name: str, key: str, value: str, **options: str) -> None:
        number = {word: int(text) for word, text in options.items()}
        self._call(
            m.Put(
                self.streams[name], key.encode(), value.encode(), number.get("if_version"),
                number.get("ttl", 0), number.get("session", 0), bool(number.get("append", 0)),
                mark=number.get("mark", 0),
            )
        )  # fmt: skip

    def do_get(self, name: str, key: str) -> None:
        self._call(m.Get(self.streams[name], key.encode()))

    def do_remove(self, name: str, key: str, if_version: str | None = None) -> None:
        wanted = None if if_version is None else int(if_version)
        self._call(m.Remove(self.streams[name], key.encode(), wanted))

    def do_scan(self, name: str, prefix: str = "", after: str = "", limit: str = "100") -> str:
        found = self.node.call(
            m.Scan(self.streams[name], prefix.encode(), after.encode() or None, int(limit))
        )
        return " ".join(f"{e['key'].decode()}={e['value'].decode()}" for e in found) or "nothing"

    def do_watch(self, name: str, prefix: str = "") -> None:
        self._call(m.Watch(self.streams[name], prefix.encode()))

    def do_session(self, what: str, number: str) -> None:
        calls = {"open": m.SessionOpen, "keep": m.SessionKeep, "close": m.SessionClose}
        self._call(calls[what](int(number)))

    # --- transactions ----------------------------------------------------------------------

    def do_transact(self, *parts: str, sequence: str = "0", home: str = "0") -> None:
        """Parts: ack:QUEUE:VALUE, dead:QUEUE:VALUE, push:STREAM:VALUE,
        put:TABLE:KEY:VALUE[:VERSION], commit:TOPIC:GROUP:OFFSET[:TOKEN[:STATE]]."""
        call = m.Transact(99, int(sequence), int(home))
        for part in parts:
            kind, name, *rest = part.split(":")
            stream = self.streams[name]
            if kind in ("ack", "dead"):
                token, op = self.tokens[rest[0]], Settle[kind.upper()]
                call.acks.append(
                    m.TxnSettle(stream, token.shard, token.grant, token.position, 1, op)
                )
            elif kind == "push":
                batch = encode_batch([rest[0].encode()], timestamp_us=0)
                call.pushes.append(m.TxnPush(stream, 0, 1, bytes(batch)))
            elif kind == "put":
                version = int(rest[2]) if len(rest) > 2 else None
                call.writes.append(m.TxnWrite(stream, rest[0].encode(), rest[1].encode(), version))
            else:
                token_number = int(rest[2]) if len(rest) > 2 else 0
                state = rest[3].encode() if len(rest) > 3 else b""
                call.commits.append(
                    m.TxnCommit(stream, 0, rest[0], int(rest[1]), token_number, state)
                )
        self._call(call)


    def do_hold(
        self, name: str, value: str, *after: str, policy: str = "fail", ttl: str = "0",
        instead: str = "", sequence: str = "0",
    ) -> None:  # fmt: skip
        """The id is the value. What it waits for: TABLE:KEY; `instead`: TABLE:KEY:VALUE:MARK."""
        batch = bytes(encode_batch([value.encode()], timestamp_us=0, ttl_ms=int(ttl)))
        pairs = [each.split(":") for each in after]
        keys = [(self.streams[table], key.encode()) for table, key in pairs]
        writes: list[m.TxnWrite] = []
        if instead:
            table, key, text, mark = instead.split(":")
            stream = self.streams[table]
            writes.append(m.TxnWrite(stream, key.encode(), text.encode(), mark=int(mark)))
        chosen = Policy[policy.upper()]
        hold = m.TxnHold(self.streams[name], value.encode(), batch, keys, chosen, writes)
        self._call(m.Transact(98, int(sequence), 0, holds=[hold]))

    def do_held(self, name: str, key: str) -> str:
        found = self.node.call(m.Held(self.streams[name], key.encode()))
        if found is None:
            return "not held"
        left = ", ".join(f"{edge.decode()} of {table}" for table, edge in found["edges"])
        return f"waits for {left or 'release'}"


def _status(status: m.ClaimStatus) -> str:
    who = status.owner or "nobody"
    who += f" under {status.token}" if status.token else ""
    who += f" for {status.left_ms} ms" if status.left_ms else ""
    who += f", reserved for {status.reserved}" if status.reserved else ""
    state = f" with {status.state.decode()}" if status.state else ""
    return f"{who}; at {status.offset}{state}, lag {status.lag}, {status.age_ms} ms old"


def _place(position: int) -> str:
    """A position without its lane; the lane of priority 0 is not named."""
    lane, row = position >> LANE_SHIFT, position & ((1 << LANE_SHIFT) - 1)
    return str(row) if lane in (0, 15) else f"{row} with priority {15 - lane}"


def play(text: str) -> str:
    """The script with the answers that the node gives."""
    script = Script()
    lines: list[str] = []
    after_command = False
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *script.run(line[1:])]
            after_command = True
        elif not line or line.startswith("#"):
            lines.append(line)
            after_command = False
        elif not after_command:
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script(path: Path) -> None:
    text = path.read_text()
    played = play(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(played)
    assert played == text


def test_there_are_scripts() -> None:
    assert SCRIPTS
