"""Clients of the queue of a simulated cluster: producers and consumers, some of them faulty.

A consumer dies with held messages, hangs until its session has expired and then continues, does not wait for
an answer, or uses tokens that it did not get. The answers must be correct nevertheless.
"""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.queue.claims import NO_TOKEN, Token
from hawser.log.queue.dispatcher import Delivery, Get, RefusalReason, Settlement, SettlementRefusal, shown_as
from hawser.log.state.commands import QueueLimit, encode_command
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES
from hawser.log.state.results import Accepted, Limited, Reason, Rejected, Repeated, Settled
from hawser.record.record import NO_STAMP, Stamp
from hawser.testing.checks import Violation
from hawser.testing.clients import Answer, Client, Deliveries, Errand, Reply
from hawser.testing.workload import Producer, batch_command

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["Consumer", "Drain", "Putter"]


# The relative frequencies of accept, release and reject; a dead letter is moved back half of the time.
_VERDICTS: Final = {MESSAGES: (0, 0, 0, 0, 0, 1, 1, 2), DEAD_LETTERS: (0, 1, 2, 2)}


class Putter(Producer):
    """Puts batches, and retries when the queue is full. Its first request also sets the capacity of the queue
    and is retried to the end, so that every run has a message."""

    # With its first request it has as many commands as a producer.
    most_batches = Producer.most_batches - 1

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self.pace = cluster.swarm.putting_pace
        self._has_limited = False

    def compose(self) -> Sequence[Command]:
        puts = super().compose()
        if self._has_limited:
            return puts
        self._has_limited = True
        self._stamps.insert(0, NO_STAMP)
        limit = QueueLimit(self.cluster.swarm.capacity_bytes)
        return (Command(Kind.QUEUE_LIMIT, encode_command(limit)), *puts)

    def make_command(self, stamp: Stamp) -> Command:
        return batch_command(stamp, self._values(stamp), Kind.QUEUE_PUT)

    def judge(self, place: int, outcome: Answer) -> bool:
        if isinstance(outcome, Limited):
            return True
        if isinstance(outcome, Rejected) and outcome.retryable:
            self.cluster.probes.count("queue full", outcome.reason is Reason.QUEUE_FULL)
            return False
        stamp = self._stamps[place]
        if isinstance(outcome, Rejected) and outcome.reason is Reason.UNKNOWN_PRODUCER:
            return False  # the first one had no room
        if not isinstance(outcome, Accepted | Repeated):
            raise Violation(0, f"{self.name} put {stamp} and was told {outcome}")
        self.cluster.truth.queue.acknowledge(stamp, outcome)
        return True


class Consumer(Client):
    """A consumer that gets and settles messages, with one request at a time."""

    dying_share = 0.03
    hanging_share = 0.05
    lying_share = 0.04
    leaving_share = 0.1
    moving_share = 0.3
    dead_letters_share = 0.25

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self.pace = cluster.swarm.getting_pace
        self._lives = 0
        self._giver: str | None = None
        self._begin_life()

    def _whom_to_ask(self) -> str:
        """The node to send to: half of the time the node of the last delivery, which may be a deposed
        leader."""
        if self._giver is not None and self.random.random() < 0.5:
            return self._giver
        return super()._whom_to_ask()

    def _receive(self, sender: str, to: str, payload: object) -> None:
        if isinstance(payload, Reply) and isinstance(payload.outcome, Deliveries):
            self._giver = sender
        super()._receive(sender, to, payload)

    def _begin_life(self) -> None:
        """Restart as a new process without state."""
        self._lives += 1
        self._session = f"{self.name}/{self._lives}"
        here = not self.cluster.swarm.forwards
        self._subqueue = DEAD_LETTERS if here and self.random.random() < self.dead_letters_share else MESSAGES
        self._received = NO_TOKEN
        self._requests = 0
        self._incarnation, self._sequence = 1, 1
        self._held: dict[Token, Delivery] = {}
        self._asked = 0
        self._is_lying = False
        self._found_nothing = False

    def compose(self) -> Sequence[Command]:
        if self._found_nothing and not self._held and self.random.random() < self.moving_share:
            self._begin_life()  # perhaps at the other subqueue
        elif self.random.random() < self.dying_share:
            self.cluster.probes.count("consumer died with messages", bool(self._held))
            self._begin_life()
        self._asked = self.cluster.clock.now
        self._is_lying = self.random.random() < self.lying_share
        if self._is_lying:
            wanted: Get | Settlement = self._lie()
        elif self._held and self.random.random() < 0.7:
            wanted = self._settlement()
        else:
            self._requests += 1
            most = self.random.choice((0, 1, 1, 3, 8))
            wanted = Get(self._session, self._requests, self._received, most)
        self.errand = Errand(self._subqueue, wanted)
        return ()

    def gives_up(self) -> bool:
        """Messages may have been delivered to it without arriving."""
        errand = self.errand
        asks = errand is not None and isinstance(errand.wanted, Get)
        return asks and self.random.random() < self.leaving_share

    def rest(self) -> int:
        """The duration of a pause: usually short, sometimes longer than the session's timeout."""
        if self.random.random() < self.hanging_share:
            return 2 * self.cluster.swarm.policy.session_duration
        return super().rest()

    def _settlement(self) -> Settlement:
        """Settle some of the held messages, mostly by accept."""
        verdicts: tuple[list[Token], list[Token], list[Token]] = ([], [], [])
        for token in list(self._held)[: self.random.randint(1, len(self._held))]:
            verdicts[self.random.choice(_VERDICTS[self._subqueue])].append(token)
        accepted, released, rejected = map(tuple, verdicts)
        return Settlement(self._session, self._incarnation, self._sequence, accepted, released, rejected)

    def _lie(self) -> Settlement:
        """Accept what somebody else has, or nobody; under a number of its own, so as to spoil nothing, or as
        the one who has it, by all that others know of him."""
        epoch = max(0, self.cluster.store.metadata.epoch + self.random.randint(-2, 1))
        token = Token(epoch, self.random.randint(1, 40))
        others = [each for each in self.cluster.clients if isinstance(each, Consumer) and each is not self]
        theirs = [(token, other) for other in others for token in other._held]
        holder = None
        if theirs and self.random.random() < 0.7:
            token, holder = self.random.choice(theirs)
        while token in self._held:
            token = Token(token.epoch, token.number + 1)
        true = tuple(list(self._held)[: self.random.randint(0, 2)])
        if holder is not None and token.number % 2:
            return Settlement(shown_as(holder._session), holder._incarnation + 1, 1, (token,))
        return Settlement(self._session, self._incarnation, self._sequence, (*true, token))

    def judge(self, place: int, outcome: Answer) -> bool:
        errand = self.errand
        assert errand is not None
        if isinstance(outcome, Deliveries):
            self._take(outcome)
            return True
        wanted = errand.wanted
        assert isinstance(wanted, Settlement), (wanted, outcome)
        if isinstance(outcome, SettlementRefusal):
            return self._turned(wanted, outcome)
        if isinstance(outcome, Rejected) and outcome.retryable:
            return False
        if self._is_lying and self._is_true(wanted):
            self._begin_life()
            return True
        if self._is_lying or not isinstance(outcome, Settled | Repeated):
            raise Violation(0, f"{self.name} asked for {wanted} and was told {outcome}")
        probes = self.cluster.probes
        probes.count("settlement repeated", isinstance(outcome, Repeated))
        probes.count(
            "dead letter", self._subqueue == MESSAGES and isinstance(outcome, Settled) and outcome.moved > 0
        )
        probes.count("dead letter moved back", self._subqueue == DEAD_LETTERS and bool(wanted.rejected))
        offsets = {token: delivery.offset for token, delivery in self._held.items()}
        self.cluster.truth.queue.settled(self._subqueue, wanted, offsets, self.cluster.clock.now)
        self._sequence += 1
        for token in (*wanted.accepted, *wanted.released, *wanted.rejected):
            del self._held[token]
        return True

    def _is_true(self, lie: Settlement) -> bool:
        """Whether it has guessed a token that was delivered to it and did not arrive."""
        return self.cluster.truth.queue.delivered.issuperset((self._session, token) for token in lie.accepted)

    def _take(self, outcome: Deliveries) -> None:
        now = self.cluster.clock.now
        self._found_nothing = not outcome.deliveries
        for delivery in outcome.deliveries:
            self.cluster.truth.queue.give(self._subqueue, delivery, self._asked, now)
            self._held[delivery.token] = delivery
            self._received = delivery.token

    def _turned(self, wanted: Settlement, outcome: SettlementRefusal) -> bool:
        """Whether it is done."""
        if outcome.why is RefusalReason.OTHER_LEADER and not self._is_lying:
            return False
        probes = self.cluster.probes
        probes.count("lie refused", self._is_lying)
        probes.count("came back too late", not self._is_lying)
        if outcome.why is RefusalReason.NOT_HELD:
            self.cluster.truth.queue.turned(wanted)
        self._incarnation, self._sequence = self._incarnation + 1, 1
        for token in outcome.tokens:
            self._held.pop(token, None)
        return True


class Drain(Consumer):
    """Accepts the messages left in one subqueue, until both are empty."""

    dying_share = hanging_share = lying_share = leaving_share = moving_share = 0.0

    def __init__(self, cluster: "Cluster", name: str, random: Random, subqueue: int) -> None:
        super().__init__(cluster, name, random)
        self._subqueue = subqueue

    @property
    def idle(self) -> bool:
        return super().idle and self.cluster.truth.queue.is_empty

    def begin(self) -> None:
        """The pause between two requests, longer while the queue is empty."""
        if super().idle and self.cluster.truth.queue.is_empty:
            self.cluster.clock.after(self.rest(), self.begin)
        else:
            super().begin()

    def _settlement(self) -> Settlement:
        return Settlement(self._session, self._incarnation, self._sequence, tuple(self._held))
