"""Clients of a simulated cluster: they want something done and ask until it is.

A request travels over the network to a node, which may not be the leader, may be dead, or may answer too
late. The client asks again, elsewhere or at the same place, with the same stamp; so each request ends as
done, and what it was told must be true: of the committed log, and in the order of real time. What clients say
to nodes is here; what they want is in `hawser.testing.workload`.
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

# Whose request, the how-manieth, and which part of it.
Tag = tuple[str, int, int]


class Lock(msgspec.Struct, frozen=True):
    """Accept these messages in a transaction, under this label."""

    session: str
    tokens: tuple[Token, ...]
    label: bytes


class Inquiry(msgspec.Struct, frozen=True):
    """What became of this transaction, which is to be asked of its home; without one, what is prepared
    there."""

    transaction: TransactionId | None = None


class Errand(msgspec.Struct, frozen=True):
    """What a consumer wants of a shelf of the queue, or somebody of home."""

    subqueue: int
    wanted: Get | Settlement | Lock | Inquiry


class Request(msgspec.Struct, frozen=True):
    """What goes to a node: commands for the log, or without any a read of the newest values. With an offset
    it is a read from there on of what this very node has, whether it leads or not; with an errand, something
    about the queue or about transactions."""

    tag: Tag
    commands: tuple[Command, ...] = ()
    most_values: int = 0
    offset: int = 0
    errand: Errand | None = None


class Failure(msgspec.Struct, frozen=True):
    """The node did not do it, or it may have."""

    reason: Reason


class View(msgspec.Struct, frozen=True):
    """What a read saw: the first offset, the one behind the last, and the newest values in their order."""

    start: int
    end: int
    values: tuple[bytes, ...]


class Excerpt(msgspec.Struct, frozen=True):
    """What one node had from `offset` on, when it had applied everything through `applied`; no values if
    `offset` is not between `start` and `end`."""

    applied: int
    offset: int
    start: int
    end: int
    values: tuple[bytes, ...]


class Deliveries(msgspec.Struct, frozen=True):
    """What a session was lent."""

    deliveries: tuple[Delivery, ...]


class Verdict(msgspec.Struct, frozen=True):
    """What home knows: how the transaction ended, if that is decided, and whether it knows it at all; or
    which are prepared."""

    outcome: Ending | None
    prepared: tuple[TransactionId, ...] = ()
    is_known: bool = True


Answer = Result | View | Excerpt | Deliveries | SettlementRefusal | Verdict
Outcome = Answer | Failure


class Reply(msgspec.Struct, frozen=True):
    """What comes back about one part of a request."""

    tag: Tag
    outcome: Outcome


class Client(ABC):
    """Has one request at a time, of one or more parts; `idle` when it has none."""

    most_values = 0
    # Where to read at a node that need not lead; 0 to read what is certainly the newest.
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
        """What it waits for."""
        return f"request {self._number}, attempt {self._attempt}, open {list(self._open.values())}"

    def begin(self) -> None:
        """Ask for something new, unless there is a request already or nothing more is wanted."""
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
        """Hold the cluster to what it said; False if it has to be asked again."""

    def _ask(self) -> None:
        self._attempt += 1
        cluster = self.cluster
        commands = tuple(command for command in self._open.values() if command is not None)
        request = Request((self.name, self._number, 0), commands, self.most_values, self.offset, self.errand)
        cluster.network.send(self.name, self._whom_to_ask(), request)
        cluster.clock.after(self.patience, self._ask_again, self._number, self._attempt)

    def _whom_to_ask(self) -> str:
        """Most often the leader in the map, sometimes whoever."""
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
        """Whether it does not wait for the end of its request but goes on to the next."""
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
        """For how long it does nothing between two requests."""
        return 1 + int(self.random.random() * self.pace)
