"""Clients of a simulated cluster: they retry each request until it is done.

A request goes over the network to a node, which may not be the leader, may be dead, or may answer late. The
client retries with the same stamp, at the same or another node, so each request is done at last. The answer
must agree with the committed log and with real-time order. This module has the protocol of clients;
`hawser.testing.workload` has their requests.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.protocol.events import Command, Reason
from hawser.log.queue.claims import Token
from hawser.log.queue.dispatcher import Delivery, Get, Settlement, SettlementRefusal
from hawser.log.state.results import Outcome as Ending
from hawser.log.state.results import Result
from hawser.testing.network import host_of
from hawser.transaction.identity import TransactionId

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = [
    "Answer",
    "Client",
    "Deliveries",
    "Errand",
    "Excerpt",
    "Failure",
    "Inquiry",
    "Lock",
    "Outcome",
    "Reply",
    "Request",
    "Tag",
    "Verdict",
    "View",
]

PATIENCES: Final = (3_000, 20_000)
ALL_VALUES: Final = 1 << 60

# The client, the number of its request, and the part of the request.
Tag = tuple[str, int, int]


class Lock(msgspec.Struct, frozen=True):
    """Accept these messages in a transaction, under this label."""

    session: str
    tokens: tuple[Token, ...]
    label: bytes


class Inquiry(msgspec.Struct, frozen=True):
    """Asks the coordinator shard for the outcome of a transaction, or without one for the prepared ones."""

    transaction: TransactionId | None = None


class Errand(msgspec.Struct, frozen=True):
    """What a consumer wants of a subqueue, or of the coordinator."""

    subqueue: int
    wanted: Get | Settlement | Lock | Inquiry


class Request(msgspec.Struct, frozen=True):
    """A request to a node: commands for the log, or without commands a linearizable read. With an offset it
    reads the records of this node from there on, whether it leads or not. An errand is about the queue or
    transactions."""

    tag: Tag
    commands: tuple[Command, ...] = ()
    most_values: int = 0
    offset: int = 0
    errand: Errand | None = None


class Failure(msgspec.Struct, frozen=True):
    """The request failed, or its outcome is unknown."""

    reason: Reason


class View(msgspec.Struct, frozen=True):
    """The result of a read: the first offset, the offset after the last, and the newest values in order."""

    start: int
    end: int
    values: tuple[bytes, ...]


class Excerpt(msgspec.Struct, frozen=True):
    """The records of one node from `offset` on, when it had applied entries up to `applied`; no values if
    `offset` is not between `start` and `end`."""

    applied: int
    offset: int
    start: int
    end: int
    values: tuple[bytes, ...]


class Deliveries(msgspec.Struct, frozen=True):
    """The messages delivered to a session."""

    deliveries: tuple[Delivery, ...]


class Verdict(msgspec.Struct, frozen=True):
    """What the coordinator knows: how the transaction ended, if that is decided, and whether it knows it at
    all; or which are prepared."""

    outcome: Ending | None
    prepared: tuple[TransactionId, ...] = ()
    is_known: bool = True


Answer = Result | View | Excerpt | Deliveries | SettlementRefusal | Verdict
Outcome = Answer | Failure


class Reply(msgspec.Struct, frozen=True):
    """The answer to one part of a request."""

    tag: Tag
    outcome: Outcome


class Client(ABC):
    """A client with one request at a time, of one or more parts; `idle` without a request."""

    most_values = 0
    # The offset of a read at any node; 0 for a linearizable read.
    offset = 0
    errand: Errand | None = None

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random
        self.stopped = False
        self.done = self.retries = 0
        self.patience = random.choice(PATIENCES)
        self.pace = cluster.swarm.pace
        self._number = 0
        self._attempt = 0
        self._open: dict[int, Command | None] = {}
        cluster.network.attach(name, self._receive)
        cluster.clients.append(self)

    @property
    def idle(self) -> bool:
        return not self._open

    def describe(self) -> str:
        """The pending request, as text."""
        return f"request {self._number}, attempt {self._attempt}, open {list(self._open.values())}"

    def begin(self) -> None:
        """Begin a new request, unless one is pending or the workload is done."""
        if self._open or self.stopped:
            return
        self._number += 1
        commands = self.compose()
        self._open = {
            place: msgspec.structs.replace(command, tag=(self.name, self._number, place))
            for place, command in enumerate(commands)
        }
        if not commands:
            self._open = {0: None}
        self._ask()

    @abstractmethod
    def compose(self) -> Sequence[Command]:
        """The commands of the next request; none for a read."""

    @abstractmethod
    def judge(self, place: int, outcome: Answer) -> bool:
        """Check the answer; False if the request must be sent again."""

    def _ask(self) -> None:
        self._attempt += 1
        cluster = self.cluster
        commands = tuple(command for command in self._open.values() if command is not None)
        request = Request((self.name, self._number, 0), commands, self.most_values, self.offset, self.errand)
        cluster.network.send(self.name, self._whom_to_ask(), request)
        cluster.clock.after(self.patience, self._ask_again, self._number, self._attempt)

    def _whom_to_ask(self) -> str:
        """The node to send to: usually the leader in the map, sometimes any node."""
        leader = self.cluster.store.metadata.leader
        if leader is not None and self.random.random() < 0.8:
            return host_of(leader)
        return self.random.choice(self.cluster.node_names)

    def _ask_again(self, number: int, attempt: int) -> None:
        if number != self._number or attempt != self._attempt or not self._open:
            return
        if not self.stopped and self.gives_up():
            self._open = {}
            self.begin()
        else:
            self.retries += 1
            self._ask()

    def gives_up(self) -> bool:
        """Whether it abandons its request and begins the next one."""
        return False

    def _receive(self, sender: str, to: str, payload: object) -> None:
        assert isinstance(payload, Reply)
        _, number, place = payload.tag
        if number != self._number or place not in self._open:
            return
        outcome = payload.outcome
        if isinstance(outcome, Failure) or not self.judge(place, outcome):
            wait = 1 + int(self.random.random() * 4_000)
            self.cluster.clock.after(wait, self._ask_again, number, self._attempt)
            return
        del self._open[place]
        self.done += 1
        if not self._open:
            self.cluster.clock.after(self.rest(), self.begin)

    def rest(self) -> int:
        """The pause between two requests."""

        return 1 + int(self.random.random() * self.pace)
