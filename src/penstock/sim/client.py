"""A client process: the production protocol core under a shell of events.

Scripts are generators like the client's operations: they yield steps, and `Sleep`. An operation is
used with `yield from`, exactly as the other shells run it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from penstock.client.producer import Producer
from penstock.client.protocol import Protocol
from penstock.client.requests import Pending, Request, Resend, Subscription, listen, unlisten
from penstock.client.settle import Settler
from penstock.client.state import FabricState
from penstock.client.steps import Finish, FinishAny, Start, Step
from penstock.client.welcome import check_same, hello_frame, read_welcome
from penstock.errors import DeadlineError, PenstockError, ProtocolError, UnavailableError
from penstock.sim.network import Link, Listener, Network
from penstock.sim.world import Action, World
from penstock.wire.buffers import Buffer
from penstock.wire.frames import CREDIT, MERGED, PROTOCOL_VERSION, Verb, frame
from penstock.wire.messages import Hello, Welcome

TIMEOUT_US = 6_000_000
FLUSH_US = 40_000
FIRST_PAUSE_US = 50_000
LONGEST_PAUSE_US = 1_000_000
GREETING_US = 2_000_000

T = TypeVar("T")


class Sleep(NamedTuple):
    """A step: go on after a while."""

    us: int


class Hear(NamedTuple):
    """A step: go on when a subscription has something, or after a while."""

    subscription: Subscription
    us: int


Script: TypeAlias = Generator[Step | Sleep | Hear, Any, T]


class Fabric(FabricState):
    """What operations need to know of the client that runs them."""

    def __init__(self, producer: Producer) -> None:
        super().__init__("default", producer)
        self._run = _not_here


def _not_here(_: object) -> NoReturn:
    raise AssertionError("scripts run operations with `yield from`")


class Client:
    """One process with one connection. `broken` is set by what no fault explains."""

    def __init__(self, world: World, network: Network, node: Listener, name: str) -> None:
        self.world = world
        self.name = name
        self.broken: str | None = None
        self.fabric: Fabric | None = None
        self.alive = True
        self.scripts = 0  # that have begun and not ended
        self._network = network
        self._node = node
        self._protocol = Protocol()
        self._link: Link | None = None
        self._greeted = False
        origin = world.random.getrandbits(63) | 1
        self._hello = Hello(PROTOCOL_VERSION, name, [MERGED], origin=origin)
        self._welcome: Welcome | None = None
        self._strikes = 0
        self._waiting: list[Callable[[Client], Script[None]]] = []

    # --- life ------------------------------------------------------------------------------

    def start(self, *scripts: Callable[[Client], Script[None]]) -> None:
        """Connects; the scripts begin with the first greeting."""
        self._waiting += scripts
        self._dial()

    def kill(self) -> None:
        """The process dies: nothing of it is left but what it sent."""
        self.alive = False
        if self._link is not None:
            self._link.close()
            self._link = None

    def spawn(self, script: Script[None]) -> None:
        """Runs a script beside the others."""
        self.scripts += 1
        Task(self, script).go_on(None, None)

    def fail(self, text: str) -> None:
        """Something that must never happen, whatever the faults."""
        if self.broken is None:
            self.broken = f"{self.name}: {text}"
            self.world.note(f"{self.name} is broken: {text}")

    # --- connection ------------------------------------------------------------------------

    def _dial(self) -> None:
        if not self.alive or self._link is not None:
            return
        self._strikes += 1
        self._greeted = False
        self._link = link = self._network.dial(
            self._node, lambda data: self._arrived(link, data), lambda: self._lost(link)
        )
        link.send(bytearray(hello_frame(self._hello)))
        self.world.after(GREETING_US, lambda: None if self._greeted else self._give_up(link))

    def _give_up(self, link: Link) -> None:
        if self._link is link:
            link.close()
            self._lost(link)

    def _lost(self, link: Link) -> None:
        if self._link is not link or not self.alive:
            return
        self._link = None
        longest = min(FIRST_PAUSE_US * 2 ** min(self._strikes, 10), LONGEST_PAUSE_US)
        self.world.after(self.world.between(longest // 2, longest), self._dial)

    def _arrived(self, link: Link, data: bytearray) -> None:
        if self._link is not link or not self.alive:
            return
        try:
            if self._greeted:
                self._protocol.receive([data])
                self._strikes = 0
            else:
                self._install(read_welcome([data]))
        except UnavailableError:
            link.close()
            self._lost(link)
        except ProtocolError as error:
            self.fail(f"the node does not keep to the protocol: {error}")
            link.close()
            self._protocol.fail(error)

    def _install(self, welcome: Welcome) -> None:
        check_same(self._welcome, welcome)
        self._welcome = welcome
        self._greeted = True
        self._protocol.welcome(welcome)
        if self.fabric is None:
            chance = self.world.random
            producer = Producer(chance.getrandbits(63) | 1, welcome.shards, chance.getrandbits(64))
            self.fabric = Fabric(producer)
        for pending in self._protocol.resend():
            self._send(pending)
        scripts, self._waiting = self._waiting, []
        for script in scripts:
            self.spawn(script(self))

    def _send(self, pending: Pending) -> None:
        if self._link is not None and self._greeted:
            pending.sent = True
            self._send_parts(pending.parts)

    def _send_parts(self, parts: list[Buffer]) -> None:
        if self._link is not None and self._greeted:
            self._link.send(bytearray().join(parts))

    # --- what scripts do -------------------------------------------------------------------

    def begin(self, request: Request) -> Pending:
        """Sends a request, or keeps it until there is a connection."""
        pending = self._protocol.start(request, reserved=True)
        self._send(pending)
        return pending

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for it any more. Pushes and settlements stay in flight."""
        if not pending.done and pending.request.resend is Resend.ANEW:
            self._protocol.forget(pending)
            self._send_parts([self._protocol.cancel_frame(pending.id)])

    def subscribe(self, subscription: Subscription) -> Pending:
        """Starts a standing request."""
        pending = self._protocol.subscribe(subscription)
        self._send(pending)
        return pending

    def unsubscribe(self, subscription: Subscription) -> None:
        """Ends it; what still arrives is given back."""
        self._protocol.unsubscribe(subscription)
        self._send_parts([self._protocol.cancel_frame(subscription.id)])

    def credit(self, subscription: Subscription, messages: int) -> None:
        """Lets the node deliver so many more."""
        subscription.given += messages
        body = CREDIT.pack(messages)
        self._send_parts([frame(Verb.CREDIT, subscription.id, 0, body)])

    def attend(self, settler: Settler) -> None:
        """Connects the settlements of a queue to this client."""
        settler.send = self.begin
        settler.attend = self._flush_soon

    def _flush_soon(self, settler: Settler) -> None:
        settler.attended = True

        def flush() -> None:
            settler.attended = False
            if self.alive:
                settler.flush()

        self.world.after(FLUSH_US, flush)


class Task:
    """One script and what it waits for."""

    def __init__(self, client: Client, script: Script[None]) -> None:
        self._client = client
        self._world = client.world
        self._script = script
        self._turn = 0  # of waits: a late wake-up from an earlier one is ignored

    def go_on(self, outcome: object, error: BaseException | None) -> None:
        """Runs the script until it has to wait."""
        while self._client.alive:
            try:
                if error is not None:
                    step = self._script.throw(error)
                else:
                    step = self._script.send(outcome)
            except StopIteration:
                self._client.scripts -= 1
                return
            except PenstockError as unexpected:
                self._client.fail(f"a call ended with {unexpected!r}, which nothing explains")
                return
            outcome, error = None, None
            try:
                if not isinstance(step, Start):
                    self._wait_for(step)
                    return
                outcome = self._client.begin(step.request)
            except PenstockError as caught:
                error = caught

    def _wait_for(self, step: Step | Sleep | Hear) -> None:
        self._turn += 1
        turn = self._turn
        if isinstance(step, Sleep):
            self._world.after(step.us, lambda: self._wake(turn, None, None))
        elif isinstance(step, Hear):
            self._hear(step, turn)
        elif isinstance(step, FinishAny):
            self._finish_any(step, turn)
        elif isinstance(step, Finish):
            self._finish(step.pending, turn)
        else:
            assert isinstance(step, Request)
            self._finish(self._client.begin(step), turn)

    def _wake(self, turn: int, outcome: object, error: BaseException | None) -> None:
        if turn == self._turn:
            self._turn += 1
            self.go_on(outcome, error)

    def _finish(self, pending: Pending, turn: int) -> None:
        def late() -> None:
            if turn == self._turn and not pending.done:
                self._client.abandon(pending)
                self._wake(turn, None, DeadlineError("no answer in time"))

        timeout_us = TIMEOUT_US + int(pending.request.patience_s * 1e6)
        self._await([pending], turn, timeout_us, late, lambda: (pending.answer, pending.error))

    def _finish_any(self, step: FinishAny, turn: int) -> None:
        self._await_any(step.pending, turn, int(step.seconds * 1e6))

    def _hear(self, step: Hear, turn: int) -> None:
        self._await_any([step.subscription], turn, step.us)

    def _await_any(
        self, waited: Sequence[Pending | Subscription], turn: int, timeout_us: int
    ) -> None:
        nothing = (None, None)
        self._await(waited, turn, timeout_us, lambda: self._wake(turn, None, None), lambda: nothing)

    def _await(
        self,
        waited: Sequence[Pending | Subscription],
        turn: int,
        timeout_us: int,
        late: Action,
        outcome: Callable[[], tuple[object, BaseException | None]],
    ) -> None:
        """Wakes the script when one of them is done, but never from inside the protocol core,
        which may be in the middle of its frames."""

        def wake() -> None:
            self._world.after(0, arrived)

        def arrived() -> None:
            for each in waited:
                unlisten(each, wake)
            deadline.cancel()
            self._wake(turn, *outcome())

        def over() -> None:
            for each in waited:
                unlisten(each, wake)
            late()

        deadline = self._world.after(timeout_us, over)
        if any(each.done for each in waited):
            wake()
            return
        for each in waited:
            listen(each, wake)
