"""What the parts of the transaction service share: the shard, the services of the node, and the answer to a
request."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from hawser.cluster import wire
from hawser.cluster.node.clock_quorum import ClockQuorum
from hawser.cluster.node.transaction.client_registry import ClientRegistry
from hawser.cluster.node.transaction.observers import ObserverRegistry
from hawser.cluster.node.transaction.peer_client import PeerClient
from hawser.log.replica import Replica
from hawser.log.state.results import Result, encode_result
from hawser.transaction.commands import BranchLimit

__all__ = ["DEPOSED", "Answer", "AnswerCollector", "Host", "NodeServices", "OnResult", "Slot"]

DEPOSED: Final = wire.Failed(wire.Code.UNKNOWN, "this node no longer leads the shard", True, "unknown")

Answer = Callable[[wire.Answer], None]
OnResult = Callable[["Slot", Any], bool]


class Host(Protocol):
    """The shard."""

    name: str
    replica: Replica

    def propose(self, kind: int, payload: bytes, tag: Any = None, label: bytes = b"") -> None: ...


class NodeServices(NamedTuple):
    """The services that all shards of one node share."""

    clients: ClientRegistry
    observers: ObserverRegistry
    peers: PeerClient
    clocks: ClockQuorum
    limit: BranchLimit


class AnswerCollector:
    """The answer to a request: complete when every entry has a result, or as soon as one entry fails for
    good."""

    __slots__ = ("_answer", "_left", "_results")

    def __init__(self, count: int, answer: Answer) -> None:
        self._answer: Answer | None = answer
        self._results = [b""] * count
        self._left = count

    def put(self, place: int, result: Result | wire.Failed) -> None:
        if self._answer is None:
            return
        if isinstance(result, wire.Failed):
            answer, self._answer = self._answer, None
            answer(result)
            return
        self._results[place] = encode_result(result)
        self._left -= 1
        if not self._left:
            self._answer(wire.Transacted(tuple(self._results)))


class Slot:
    """The tag of one entry: its place in the answer."""

    __slots__ = ("_collector", "_place", "on_result")

    def __init__(self, collector: AnswerCollector, place: int) -> None:
        self._collector = collector
        self._place = place
        # Called with the result first; returns False to hold the result back.
        self.on_result: OnResult | None = None

    def done(self) -> bool:
        """Always False: `on_result` has to run even after the client is gone."""
        return False

    def set_result(self, result: Any) -> None:
        if self.on_result is None or self.on_result(self, result):
            self.tell(result)

    def tell(self, result: Result | wire.Failed) -> None:
        self._collector.put(self._place, result)
