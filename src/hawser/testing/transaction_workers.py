"""The work in a transaction over the shards of a simulation: messages moved between queues, records in
topics, positions of groups. Unanswered requests are retried, and each answer is checked."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.queue.claims import NO_TOKEN, Token
from hawser.log.queue.dispatcher import Delivery, Get
from hawser.log.state.commands import GroupCommit, GroupJoin, encode_command
from hawser.log.state.queue import MESSAGES
from hawser.log.state.results import Joined, Outcome, Reason, Result
from hawser.record.record import NO_STAMP
from hawser.testing.checks import Violation
from hawser.testing.clients import Deliveries, Errand, Failure, Lock, Reply, Request
from hawser.testing.clients import Outcome as Heard
from hawser.testing.workload import batch_command
from hawser.transaction.client import Progress, Transaction
from hawser.transaction.client import Request as Wanted
from hawser.transaction.identity import TransactionId, owner_of

if TYPE_CHECKING:
    from hawser.testing.transaction_ring import Ring

__all__ = ["Worker"]

# Permitted refusals of an operation: another client holds the message, or the transaction timed out.
_PLAUSIBLE: Final = (
    *(Reason.LOCKED, Reason.NOT_HELD, Reason.TRANSACTION_OVER),
    *(Reason.TRANSACTION_CLOSED, Reason.OLD_INCARNATION, Reason.TOO_MANY_TRANSACTIONS),
)


class _Group:
    """A group with one member, and its next position."""

    def __init__(self, joined: Joined) -> None:
        self.generation = joined.generation
        self.position = joined.position


class Worker:
    """A client with at most one transaction at a time."""

    def __init__(self, ring: "Ring", name: str, random: Random) -> None:
        self.ring = ring
        self.name = name
        self.random = random
        self.done = 0
        self._number = 0
        self._answers: dict[int, Callable[[Heard], None]] = {}
        self._sessions = 0
        for cluster in ring.clusters.values():
            cluster.network.attach(name, self._receive)
        self.begin_session()

    def begin_session(self) -> None:
        """Restart as a new process without state."""
        self._sessions += 1
        self.session = f"{self.name}/{self._sessions}"
        self._answers.clear()
        self._requests: Counter[str] = Counter()
        self._received: dict[str, Token] = {}
        self._groups: dict[str, _Group] = {}
        self.transaction: Transaction | None = None

    def begin(self, transaction: TransactionId, worker: int = 0) -> Transaction:
        seconds = self.random.choice((2, 5))
        self.transaction = Transaction(transaction, owner_of(self.session), seconds, worker)
        self._fetching: tuple[str, Get, int] | None = None
        self._locks: dict[tuple[str, int], Lock] = {}
        self._taken: list[tuple[str, Delivery]] = []
        self._moves: dict[str, int] = {}
        self._lines = 0
        return self.transaction

    # Requests.

    def ask(
        self,
        shard: str,
        answer: Callable[[Heard], None],
        command: Command | None = None,
        errand: Errand | None = None,
    ) -> None:
        """Send a request once; `answer` gets the first answer, if there is one."""
        self._number += 1
        self._answers[self._number] = answer
        tag = (self.name, self._number, 0)
        commands = (msgspec.structs.replace(command, tag=tag),) if command is not None else ()
        self.ring.send(shard, self.name, Request(tag, commands, errand=errand), self.random)

    def _receive(self, sender: str, to: str, payload: object) -> None:
        assert isinstance(payload, Reply)
        answer = self._answers.pop(payload.tag[1], None)
        if answer is not None and not isinstance(payload.outcome, Failure):
            answer(payload.outcome)
            self.heard()

    def heard(self) -> None:
        """Handle an answer."""

    def send(self, wanted: list[Wanted]) -> None:
        """The pending requests of the transaction."""
        transaction = self.transaction
        assert transaction is not None
        for each in wanted:

            def answer(outcome: Heard, each: Wanted = each) -> None:
                assert isinstance(outcome, Result), outcome
                following = transaction.hear(each, outcome)
                if transaction is self.transaction and following:
                    self.send(following)

            lock = self._locks.get((each.shard, each.number))
            if lock is not None and each.number:
                self.ask(each.shard, answer, errand=Errand(MESSAGES, lock))
            else:
                self.ask(each.shard, answer, Command(each.kind, each.payload, transaction=each.label))

    def nudge(self) -> None:
        """Retry requests that may be lost."""
        assert self.transaction is not None
        for shard in dict.fromkeys((*self.transaction.shards, self.transaction.coordinator)):
            self.send(self.transaction.again(shard))

    # Work.

    def work(self, shards: list[str]) -> None:
        """Do one step of work on these shards."""
        drawn = self.random.random()
        if self._fetching is not None:
            self._fetch()
        elif drawn < 0.3:
            self.publish(self.random.choice(shards))
        elif drawn < 0.3 + self.ring.swarm.positions_share:
            self._move(self.random.choice(shards))
        else:
            shard = self.random.choice(shards)
            self._requests[shard] += 1
            get = Get(self.session, self._requests[shard], self._received.get(shard, NO_TOKEN), 1)
            self._target = self.random.choice(shards)
            self._fetching = shard, get, self.ring.main.clock.now
            self._fetch()

    def publish(self, shard: str) -> None:
        assert self.transaction is not None
        self._lines += 1
        value = f"{self.transaction.id}/{self._lines}".encode()
        self._stage(shard, batch_command(NO_STAMP, [value]))

    def last_line(self, shard: str) -> Wanted:
        """A publish that is not sent yet."""
        assert self.transaction is not None
        self._lines += 1
        command = batch_command(NO_STAMP, [f"{self.transaction.id}/{self._lines}".encode()])
        return self.transaction.operation(shard, command.kind, command.payload)

    def _stage(self, shard: str, command: Command) -> None:
        assert self.transaction is not None
        self.send([self.transaction.operation(shard, command.kind, command.payload)])

    def _fetch(self) -> None:
        assert self._fetching is not None
        transaction, fetching = self.transaction, self._fetching
        shard, get, asked = fetching

        def got(outcome: Heard) -> None:
            if self._fetching is fetching and isinstance(outcome, Deliveries):
                self._fetching = None
                for delivery in outcome.deliveries:
                    self._received[shard] = delivery.token
                    queue = self.ring.shards[shard].truth.queue
                    queue.give(MESSAGES, delivery, asked, self.ring.main.clock.now)
                    if transaction is self.transaction:
                        self._carry(shard, delivery)

        self.ask(shard, got, errand=Errand(MESSAGES, get))

    def _carry(self, source: str, delivery: Delivery) -> None:
        """Accept a message here and put it there, atomically."""
        transaction = self.transaction
        if transaction is None or transaction.progress is not Progress.OPEN:
            return
        accept = transaction.operation(source, Kind.QUEUE_SETTLE, b"")
        self._locks[source, accept.number] = Lock(self.session, (delivery.token,), accept.label)
        self._taken.append((source, delivery))
        self.send([accept])
        self._stage(self._target, batch_command(NO_STAMP, [delivery.record.value], Kind.QUEUE_PUT))

    def _move(self, shard: str) -> None:
        """Move the position of a group to the end that clients know."""
        group = self._groups.get(shard)
        if group is None:
            self._join(shard)
            return
        before = self._moves.get(shard, group.position)
        after = max(before, self.ring.shards[shard].truth.told[1])
        command = GroupCommit(self.session, self.session, group.generation, before, after)
        self._moves[shard] = after
        self._stage(shard, Command(Kind.GROUP_COMMIT, encode_command(command)))

    def _join(self, shard: str) -> None:
        session = self.session

        def joined(outcome: Heard) -> None:
            assert isinstance(outcome, Joined), outcome
            if session == self.session and shard not in self._groups:
                self._groups[shard] = _Group(outcome)

        join = encode_command(GroupJoin(session, session))
        self.ask(shard, joined, Command(Kind.GROUP_JOIN, join))

    # The end.

    def stop_working(self) -> None:
        """Ignore later answers to this transaction."""

        self._fetching = None

    def judge_refusal(self) -> None:
        """Whether there is a reason for it."""
        assert self.transaction is not None
        refused = self.transaction.refused
        if refused is None:
            return
        is_over = refused.reason is Reason.TRANSACTION_OVER and refused.current == Outcome.COMMITTED
        if refused.reason not in _PLAUSIBLE or is_over:
            raise Violation(0, f"{self.transaction.id} of {self.name} was refused: {refused}")
        self.ring.probes.count("operation refused")

    def finish(self, committed: bool | None) -> None:
        """It is known how it ended, or that nobody will ever know."""
        transaction = self.transaction
        assert transaction is not None
        self.transaction = None
        if committed is None:
            return
        self.done += 1
        self.ring.book.tell(transaction.id, committed, self.name)
        if not committed:
            return
        for shard, after in self._moves.items():
            self._groups[shard].position = after
        if transaction.progress is Progress.OVER:
            self._check_taken()

    def _check_taken(self) -> None:
        """Whoever asks from here on is not given what was accepted."""
        now = self.ring.main.clock.now
        for shard, delivery in self._taken:
            truth = self.ring.shards[shard].truth
            if truth.queue.subqueues[MESSAGES][delivery.offset - 1].done:
                truth.queue.accepted(MESSAGES, delivery.offset, delivery.token, now)
