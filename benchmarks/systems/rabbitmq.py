"""RabbitMQ: a durable queue, persistent messages, confirms; the client is in rabbitmq_client."""

from __future__ import annotations

from pathlib import Path

from benchmarks.install import Needs, UnavailableError, debian_folder
from benchmarks.servers import Server, first_line, free_port, library_path
from benchmarks.system import System
from benchmarks.systems.rabbitmq_client import RabbitClient

_ERLANG = (
    "base", "asn1", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key",
    "runtime-tools", "ssl", "syntax-tools", "tools", "xmerl",
)  # fmt: skip
_ROOT = "ROOTDIR=/usr/lib/erlang"  # in Erlang's start script


class RabbitMq(System):
    """The variant is the type of the queue."""

    module = "rabbitmq"
    needs = Needs(
        debian=("rabbitmq-server", *(f"erlang-{name}" for name in _ERLANG)),
        python=("pika>=1.3,<2",),
    )
    library = "pika"
    max_queues = 1000
    counts_memory = True

    @property
    def durable(self) -> str:
        return "on disk: synced before it is confirmed"

    @property
    def settings(self) -> str:
        return f"durable {self.variant} queue, delivery_mode 2, publisher confirms, manual acks"

    def _found(self, pattern: str) -> Path:
        found = sorted(debian_folder(self.module).glob(pattern))
        if not found:
            raise UnavailableError(f"no {pattern} among what was unpacked")
        return found[-1]

    def _erlang(self) -> Path:
        """Where Erlang is; its script is told so, as it was made for another place."""
        script = self._found("usr/lib/erlang/bin/erl")
        home = script.parent.parent
        text = script.read_text()
        if _ROOT in text:
            script.write_text(text.replace(_ROOT, f"ROOTDIR={home}"))
        return home

    def start(self, fresh: bool = True) -> None:
        folder, port = self.place(fresh)
        mapper = free_port()
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("")
        env = self._environment(folder, port, mapper)
        # Started here, as the broker would leave it running for ever.
        epmd = Server(
            [self._found("usr/lib/erlang/erts-*/bin/epmd"), "-address", "127.0.0.1"],
            folder / "epmd.log", env,
        )  # fmt: skip
        self.servers.append(epmd)
        epmd.await_port(mapper)
        program = self._found("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
        server = Server([program], folder / "out.log", env)
        self.servers.append(server)
        self.endpoint = str(port)
        server.await_port(port)
        for path in folder.glob("mnesia/*.pid"):  # its script passes no signals on
            server.is_inside(int(path.read_text()))

    def _environment(self, folder: Path, port: int, mapper: int) -> dict[str, str]:
        return {
            **library_path(self.module),
            "PATH": f"{self._erlang()}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def version(self) -> str:
        home = self._found("usr/lib/rabbitmq/lib/rabbitmq_server-*")
        release = first_line(["cat", self._found("usr/lib/erlang/releases/*/OTP_VERSION")], "")
        return f"RabbitMQ {home.name.rpartition('-')[2]}, Erlang {release}"


SYSTEM = RabbitMq
CLIENT = RabbitClient
