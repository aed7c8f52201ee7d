"""A table of PostgreSQL as a queue: DELETE of rows that SKIP LOCKED found, NOTIFY to wake."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from pwd import getpwall
from typing import Any

from benchmarks.install import Needs, UnavailableError, debian_folder
from benchmarks.servers import Server, first_line, library_path, socket_folder
from benchmarks.system import Body, Client, Sink, System, chunks

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "fsync": "on", "jit": "off"}
IDLE_SECONDS = 0.05
COPIED, DELETED = 10_000, 2000  # rows of one transaction
TABLE = """
DROP TABLE IF EXISTS q;
CREATE TABLE q (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL);
ALTER TABLE q ALTER COLUMN body SET STORAGE EXTERNAL;
"""
PUSH_MANY = "COPY q (body) FROM STDIN (FORMAT BINARY)"
COPY_HEAD, COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
COPY_ROW = struct.Struct(">hi")  # one column, and its length
PUSH_ONE = "WITH i AS (INSERT INTO q (body) VALUES (%b)) SELECT pg_notify('q', '')"
POP = """DELETE FROM q WHERE id IN (
  SELECT id FROM q ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %b) RETURNING body"""

_DURABLE = {
    "on": "on disk: synced before it is confirmed",
    "off": "in memory of the server, synced within a second",
}


class Postgres(System):
    """The variant is synchronous_commit. It does not run as root: another user is taken then."""

    module = "postgres"
    needs = Needs(debian=("postgresql-15", "libpq5"), python=("psycopg[binary]>=3.2,<4",))
    library = "psycopg"

    @property
    def durable(self) -> str:
        return _DURABLE[self.variant]

    @property
    def settings(self) -> str:
        words = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
        return f"synchronous_commit {self.variant}, {words}, Unix socket"

    def _binary(self, name: str) -> Path:
        found = sorted(debian_folder(self.module).glob(f"usr/lib/postgresql/*/bin/{name}"))
        if not found:
            raise UnavailableError(f"no {name} among what was unpacked")
        return found[-1]

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        user, sockets = _other_user(), socket_folder(self.name)
        if user:
            shutil.chown(sockets, user)
        if fresh:
            if user:
                shutil.chown(folder, user)
            create: list[str | Path] = [self._binary("initdb"), "-D", folder / "data"]
            create += ["-A", "trust", "-U", "bench"]
            env = {**os.environ, **library_path(self.module)}
            subprocess.run(create, user=user, check=True, capture_output=True, cwd=folder, env=env)
        options = {
            **SETTINGS, "synchronous_commit": self.variant, "port": str(port),
            "listen_addresses": "127.0.0.1", "unix_socket_directories": str(sockets),
        }  # fmt: skip
        argv: list[str | Path] = [self._binary("postgres"), "-D", folder / "data"]
        given = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        server = Server(
            [*argv, *given], folder.with_suffix(".log"), library_path(self.module), user,
            ask_to_end=signal.SIGINT,
        )  # fmt: skip
        self.servers.append(server)
        self.endpoint = f"host={sockets} port={port} user=bench dbname=postgres"
        server.await_port(port)

    def version(self) -> str:
        return first_line([self._binary("postgres"), "--version"], self.module)


def _other_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise UnavailableError("PostgreSQL does not run as root, and there is no other user")


class PostgresClient(Client):
    """Many rows in one statement, one transaction each."""

    _connection: Any = None

    async def open(self) -> None:
        import psycopg

        self._connection = psycopg.connect(self.place.endpoint, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def reset(self) -> None:
        self._connection.execute(TABLE)
        self._connection.execute("CHECKPOINT")

    async def push_all(self, bodies: Iterable[bytes]) -> int:
        count = 0
        for chunk in chunks(bodies, self.window(COPIED)):
            with self._connection.transaction():
                with self._cursor.copy(PUSH_MANY) as copy:
                    copy.write(_copied(chunk))
                self._cursor.execute("NOTIFY q")
            count += len(chunk)
        return count

    async def push_one(self, body: bytes) -> None:
        self._cursor.execute(PUSH_ONE, (body,))

    def _pop(self, most: int) -> list[bytes]:
        return [row[0] for row in self._cursor.execute(POP, (most,)).fetchall()]

    async def pop_one(self) -> Body:
        with self._connection.transaction():  # the commit, after the row is here, is the ack
            [body] = self._pop(1)
        return body

    async def consume(self, sink: Sink) -> None:
        self._connection.execute("LISTEN q")
        most = self.window(DELETED)
        acked, wanted = "SELECT 1", True
        while wanted:
            with self._connection.pipeline():  # one round trip
                self._connection.execute(acked)
                self._connection.execute("BEGIN")
                self._cursor.execute(POP, (most,))
            found = [row[0] for row in self._cursor.fetchall()]
            acked = "COMMIT"  # once the rows are here: it is the ack
            wanted = sink(found)
            if not found or not wanted:
                self._connection.execute(acked)
                acked = "SELECT 1"
            if not found and wanted:
                for _ in self._connection.notifies(timeout=IDLE_SECONDS, stop_after=1):
                    pass


def _copied(bodies: Sequence[bytes]) -> bytes:
    """Rows as the binary form of COPY has them, which is quicker to make than one by one."""
    rows = [part for body in bodies for part in (COPY_ROW.pack(1, len(body)), body)]
    return b"".join([COPY_HEAD, *rows, COPY_END])


SYSTEM = Postgres
CLIENT = PostgresClient
