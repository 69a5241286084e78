"""The workload of a simulated cluster: the requests of its clients, and the checks of the answers."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.state.commands import GroupCommit, GroupJoin, TrimTo, encode_command
from hawser.log.state.results import (
    Accepted,
    Committed,
    Joined,
    Place,
    Reason,
    Rejected,
    Repeated,
    Trimmed,
)
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.testing.checks import Violation
from hawser.testing.clients import ALL_VALUES, Answer, Client, Excerpt, View

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["Hand", "Keeper", "Producer", "Reader", "Visitor"]


def batch_command(stamp: Stamp, values: Sequence[bytes], kind: Kind = Kind.BATCH) -> Command:
    """Publish these values as one batch, or put them."""
    return Command(kind, bytes(Batch.of([Record(value) for value in values], stamp).data))


class Producer(Client):
    """Publishes batches, a few at a time. Sometimes it begins a new incarnation without waiting: batches of
    the old incarnation may be committed before it, never after."""

    most_batches = 3
    restarting_share = 0.1

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self._incarnation = 1
        self._sequence = 0
        self._stamps: list[Stamp] = []

    def compose(self) -> Sequence[Command]:
        self._stamps = []
        commands = []
        for _ in range(self.random.randint(1, self.most_batches)):
            self._sequence += 1
            stamp = Stamp(self.name.encode(), self._incarnation, self._sequence)
            self._stamps.append(stamp)
            commands.append(self.make_command(stamp))
        return commands

    def make_command(self, stamp: Stamp) -> Command:
        """The commands with this stamp."""
        return batch_command(stamp, self._values(stamp))

    def gives_up(self) -> bool:
        if self.random.random() >= self.restarting_share:
            return False
        self._incarnation += 1
        self._sequence = 0
        return True

    def _values(self, stamp: Stamp) -> list[bytes]:
        count = self.random.randint(1, 3)
        text = f"{self.name}/{stamp.incarnation}/{stamp.sequence}/"
        padding = "." * self.random.choice((0, 10, 300))
        return [f"{text}{number}{padding}".encode() for number in range(count)]

    def judge(self, place: int, outcome: Answer) -> bool:
        if isinstance(outcome, Rejected) and outcome.retryable:
            return False
        stamp = self._stamps[place]
        if not isinstance(outcome, Accepted | Repeated):
            raise Violation(0, f"{self.name} published {stamp} and was told {outcome}")
        self.cluster.probes.count("repeated batch", isinstance(outcome, Repeated))
        self.cluster.truth.acknowledge(stamp, outcome.first_offset, outcome.count)
        return True


class Reader(Client):
    """Reads, and must see everything that any client knew before the request."""

    most_values = 6

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self._told = (1, 1)

    def compose(self) -> Sequence[Command]:
        self._told = self.cluster.truth.told
        return ()

    def judge(self, place: int, outcome: Answer) -> bool:
        assert isinstance(outcome, View), outcome
        truth = self.cluster.truth
        start, end = self._told
        if outcome.start < start or outcome.end < end:
            raise Violation(
                0,
                f"{self.name} saw {outcome.start} to {outcome.end} after somebody knew of {start} to {end}",
            )
        first = max(outcome.start, outcome.end - self.most_values)
        if outcome.end > truth.end or list(outcome.values) != truth.values[first - 1 : outcome.end - 1]:
            raise Violation(0, f"{self.name} read {outcome}, which is not what was published")
        truth.tell(outcome.start, outcome.end)
        return True


class Visitor(Client):
    """Reads the records of any node; later linearizable reads must include them."""

    most_values = 6

    def compose(self) -> Sequence[Command]:
        end = self.cluster.truth.told[1]
        drawn = self.random.random()
        self.offset = end if drawn < 0.3 else max(1, end - int(drawn * 20))
        return ()

    def _whom_to_ask(self) -> str:
        return self.random.choice(self.cluster.node_names)

    def judge(self, place: int, outcome: Answer) -> bool:
        assert isinstance(outcome, Excerpt), outcome
        truth = self.cluster.truth
        bounds = truth.bounds_at(outcome.applied)
        if (outcome.start, outcome.end) != bounds:
            raise Violation(
                0,
                f"{self.name} was told of {outcome.start} to {outcome.end} by a member that had applied "
                f"{outcome.applied}, where there is {bounds[0]} to {bounds[1]}",
            )
        first = outcome.offset
        last = min(outcome.end, first + self.most_values) if first >= outcome.start else first
        if list(outcome.values) != truth.values[first - 1 : last - 1]:
            raise Violation(0, f"{self.name} read {outcome}, which is not what was published")
        self.cluster.probes.count("read at a node that was behind", outcome.end < truth.told[1])
        self.cluster.probes.count("read where nobody had known of it", outcome.end > truth.told[1])
        truth.tell(outcome.start, outcome.end)
        return True


class Keeper(Client):
    """A consumer group with one member that advances, and retention that follows it."""

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self._generation = 0
        self._position = 0
        self._asked: GroupJoin | GroupCommit | TrimTo = GroupJoin(name, name)

    def compose(self) -> Sequence[Command]:
        self._asked = self._next()
        kinds = {GroupJoin: Kind.GROUP_JOIN, GroupCommit: Kind.GROUP_COMMIT, TrimTo: Kind.TRIM}
        return (Command(kinds[type(self._asked)], encode_command(self._asked)),)

    def _next(self) -> GroupJoin | GroupCommit | TrimTo:
        if not self._generation:
            return GroupJoin(self.name, self.name)
        start, end = self.cluster.truth.told
        drawn = self.random.random()
        if drawn < 0.5 and end > self._position:
            after = self.random.randint(self._position, end)
            return GroupCommit(self.name, self.name, self._generation, self._position, after)
        if drawn > 0.85:
            return TrimTo(end, end)
        return TrimTo(self.random.randint(start, end))

    def judge(self, place: int, outcome: Answer) -> bool:
        asked = self._asked
        if isinstance(outcome, Joined):
            self._generation, self._position = outcome.generation, outcome.position
        elif isinstance(outcome, Trimmed):
            self.cluster.truth.tell(outcome.start, outcome.end)
        elif isinstance(asked, GroupCommit) and isinstance(outcome, Committed):
            self._position = outcome.position
        elif isinstance(asked, GroupCommit) and isinstance(outcome, Rejected):
            # An earlier attempt may have taken effect; only this client moves the group.
            if outcome.reason is not Reason.MOVED or outcome.current != asked.after:
                raise Violation(0, f"{self.name} asked for {asked} and was told {outcome}")
            self._position = outcome.current
        else:
            raise Violation(0, f"{self.name} asked for {asked} and was told {outcome}")
        return True


class Hand(Client):
    """The client behind the methods of a cluster: sends one request and waits for it."""

    most_values = ALL_VALUES

    def __init__(self, cluster: "Cluster", name: str, random: Random) -> None:
        super().__init__(cluster, name, random)
        self.stopped = True
        self._sequence = 0
        self._commands: Sequence[Command] = ()
        self._outcome: Answer | None = None

    def publish(self, values: Sequence[bytes], most_events: int) -> Place:
        self._sequence += 1
        stamp = Stamp(self.name.encode(), 1, self._sequence)
        outcome = self._wait_for([batch_command(stamp, values)], most_events)
        assert isinstance(outcome, Accepted | Repeated), outcome
        return self.cluster.truth.acknowledge(stamp, outcome.first_offset, outcome.count)

    def read(self) -> View:
        outcome = self._wait_for(())
        assert isinstance(outcome, View), outcome
        return outcome

    def trim(self, offset: int) -> int:
        outcome = self._wait_for([Command(Kind.TRIM, encode_command(TrimTo(offset)))])
        assert isinstance(outcome, Trimmed), outcome
        return outcome.start

    def _wait_for(self, commands: Sequence[Command], most_events: int = 100_000) -> Answer:
        assert self.idle, "what was asked for before is not done yet; run until it is"
        self._commands = commands
        self.stopped = False
        self.begin()
        self.stopped = True
        self.cluster.run_until(lambda: self.idle, most_events, f"the end of {self.describe()}")
        assert self._outcome is not None
        return self._outcome

    def compose(self) -> Sequence[Command]:
        return self._commands

    def judge(self, place: int, outcome: Answer) -> bool:
        self._outcome = outcome
        return True
