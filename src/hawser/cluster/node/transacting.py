"""The office of a shard: what its leader does about transactions, as long as it leads.

Opened once this member leads and has applied all that came before, and closed with that. On a home it drives
the coordinator (`deciding.py`), on any other shard the keeper of the branches (`keeping.py`): what these want
is carried out at once, and they hear of it when it is done. Everything they know is in the log, or can be
asked again; so nothing is lost with an office.

A request is proposed as a whole, in order, and answered when every entry of it has a result. What is known to
change nothing is answered without being written. Two kinds of entries have to wait:

- a question for a vote, while operations that it counts are still on their way from the client: not for long;
- what home was asked to do, until the shards that can be reached have done it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from hawser.cluster import wire
from hawser.cluster.node.admission import Admitted
from hawser.cluster.node.lending import Lender
from hawser.cluster.node.observing import Observing
from hawser.cluster.node.presence import Presence
from hawser.cluster.node.telling import Teller
from hawser.log.replica import Replica
from hawser.log.state.results import Result, encode_result

__all__ = ["DEPOSED", "Collected", "Host", "Office", "Slot", "Surroundings"]

DEPOSED: Final = wire.Failed(wire.Code.NOT_LEADER, "this node does not lead the shard", True)

_Answer = Callable[[wire.Answer], None]


class Host(Protocol):
    """The shard."""

    name: str
    replica: Replica

    def propose(self, kind: int, payload: bytes, tag: Any = None, label: bytes = b"") -> None: ...


class Surroundings(NamedTuple):
    """What the offices of one node share."""

    presence: Presence
    observing: Observing
    teller: Teller


class Collected:
    """The answer to a request, when every entry of it has a result, or one will never have any."""

    __slots__ = ("_answer", "_left", "_results")

    def __init__(self, count: int, answer: _Answer) -> None:
        self._answer: _Answer | None = answer
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
    """The tag of an entry: its place in the answer."""

    __slots__ = ("_collected", "_place", "before")

    def __init__(self, collected: Collected, place: int) -> None:
        self._collected = collected
        self._place = place
        # What is to be done first with the result; False if it is not to be told yet.
        self.before: Callable[[Slot, Any], bool] | None = None

    def done(self) -> bool:
        """Also when nobody waits any more something may have to be done."""
        return False

    def set_result(self, result: Any) -> None:
        if self.before is None or self.before(self, result):
            self.tell(result)

    def tell(self, result: Result | wire.Failed) -> None:
        self._collected.put(self._place, result)


_Proposal = tuple[int, bytes, Slot, bytes]


class Office(ABC):
    """Of one shard and one time of leading it, which began in `epoch`."""

    def __init__(self, host: Host, epoch: int, around: Surroundings) -> None:
        self.epoch = epoch
        self._host = host
        self._machine = host.replica.machine
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @property
    def _now(self) -> float:
        return self._loop.time()

    def transact(self, entries: Sequence[Admitted], lender: Lender | None, answer: _Answer) -> None:
        """`answer` is called once, now or later. `lender` is that of the queue here, if there is one."""
        collected = Collected(len(entries), answer)
        proposals: list[_Proposal] = []
        for place, each in enumerate(entries):
            slot = Slot(collected, place)
            found = self._begin(each, slot, lender)
            if isinstance(found, wire.Failed):
                slot.tell(found)
                # Nothing of it was proposed: messages that were to be locked are held as before.
                for _, _, other, _ in proposals:
                    other.set_result(found)
                return
            if found is not None:
                proposals.append((each.kind, found, slot, each.encoded_label))
        for kind, payload, slot, label in proposals:
            self._host.propose(kind, payload, slot, label)

    @abstractmethod
    def _begin(self, each: Admitted, slot: Slot, lender: Lender | None) -> bytes | wire.Failed | None:
        """The payload to be proposed; None if the slot gets its result without, or later."""

    @abstractmethod
    def applied(self) -> None:
        """Entries were applied."""

    @abstractmethod
    def tick(self) -> None:
        """Time has passed."""

    @abstractmethod
    def look(self, request: wire.TransactionLook) -> wire.TransactionsSeen:
        """After a read of the newest state."""

    def close(self) -> None:
        """This node leads no more; whoever waits is told so."""
        self._closed = True
