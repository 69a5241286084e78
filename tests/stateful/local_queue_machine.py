"""The state machine of queues on one host: every rule does one thing to the real queue and to its twin, and
compares."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, sleep_for_ever, victim

from . import local_queue_twin as twin

SETTINGS: dict[str, Any] = {
    "slot_size": 64,
    "capacity": twin.CAPACITY,
    "max_held": twin.MAX_HELD,
    "max_deliveries": twin.MAX_DELIVERIES,
    "max_consumers": 6,
    "max_producers": 4,
}
NAME = "stateful/queue"
DEAD_LETTERS = f"{NAME}.dead"
BUSES = ("alpha", "beta")
PICK = st.integers(0, 1 << 16)
PAYLOADS = st.binary(max_size=24)
VERDICTS = st.sampled_from(["accept", "accept", "release", "reject"])


@dataclass
class Held:
    """A message that was got, and views of it; once it is settled its memory goes with the last view."""

    real: hawser.Message | None
    expected: twin.Message
    owner: twin.Consumer
    verdict: str | None = None
    views: list[memoryview] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        return self.verdict is not None


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, type[Exception] | None]:
    """What a call returned, or the error and its class."""
    try:
        return call(*arguments), None
    except hawser.HawserError as error:
        return error, type(error)


class Machine(RuleBasedStateMachine):
    """Two buses of one process, a helper process that is killed, and one queue with its dead letters."""

    kills: ClassVar[int] = 0
    delivered: ClassVar[int] = 0
    died: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.local = LocalBus()
        self.twin = twin.Queue()
        self.consumers = {name: twin.Consumer() for name in BUSES}
        self.held: list[Held] = []

    @initialize()
    def open_queue(self) -> None:
        self.buses = {name: self.local.connect(name) for name in BUSES}
        # With room for all of them: letters that have to wait are another test.
        self.buses["alpha"].queue(DEAD_LETTERS, slot_size=1000, capacity=1000)
        self.queues = {name: bus.queue(NAME, **SETTINGS) for name, bus in self.buses.items()}

    def teardown(self) -> None:
        self.held.clear()
        self.local.close()

    def agree(self, real: Callable[[], Any], expected: Callable[[], Any]) -> tuple[Any, Any]:
        """Both return, or both raise the same kind of error. None, None after an error."""
        answer, error = outcome(real)
        wanted, wanted_error = outcome(expected)
        assert error == wanted_error, f"{answer!r} where the twin says {wanted!r}"
        return (None, None) if error else (answer, wanted)

    def bury(self) -> None:
        """Nobody waits here, so it is for us to see that dead letters are moved: they are in the way."""
        queue: Any = self.queues["alpha"]
        queue._dead_letters.bury(queue._consumer())
        self.twin.bury()

    # Putting

    @rule(bus=st.sampled_from(BUSES), data=PAYLOADS, key=st.none() | st.binary(max_size=8))
    def put(self, bus: str, data: bytes, key: bytes | None) -> None:
        self.bury()
        receipt, message = self.agree(
            lambda: self.queues[bus].put(data, key=key, timeout=0), lambda: self.twin.put(data, key, bus)
        )
        if receipt is not None:
            assert (receipt.first_offset, receipt.count) == (message.offset, 1)

    @rule(bus=st.sampled_from(BUSES), count=st.integers(1, 2 * twin.CAPACITY))
    def put_many(self, bus: str, count: int) -> None:
        self.bury()
        data = [b"%d" % number for number in range(self.twin.head + 1, self.twin.head + 1 + count)]
        first, put = self.twin.head + 1, 0
        while put < count and not self.twin.full:
            self.twin.put(data[put], None, bus)
            put += 1
        answer, error = outcome(lambda: self.queues[bus].put_many(data, timeout=0))
        if put < count:
            assert (error, answer.published) == (hawser.Full, put)
        else:
            assert (answer.first_offset, answer.count) == (first, count)

    # Getting and settling

    def receive(self, bus: str, real: hawser.Message, expected: twin.Message) -> Held:
        found = (real.offset, bytes(real), real.key, real.publisher, real.delivery_count, real.redelivered)
        wanted = (expected.offset, expected.data, expected.key, expected.producer, expected.deliveries)
        assert found == (*wanted, expected.came_back)
        Machine.delivered += 1
        held = Held(real, expected, self.consumers[bus])
        self.held.append(held)
        return held

    @rule(bus=st.sampled_from(BUSES))
    def get(self, bus: str) -> None:
        message, expected = self.agree(
            lambda: self.queues[bus].get(0), lambda: self.twin.get(self.consumers[bus])
        )
        assert (message is None) == (expected is None)
        if message is not None:
            self.receive(bus, message, expected)

    @rule(bus=st.sampled_from(BUSES), count=st.integers(1, 5))
    def get_many(self, bus: str, count: int) -> None:
        messages, expected = self.agree(
            lambda: self.queues[bus].get_many(count, 0),
            lambda: self.twin.get_many(self.consumers[bus], count),
        )
        for message, each in zip(messages or (), expected or (), strict=True):
            self.receive(bus, message, each)

    @rule(bus=st.sampled_from(BUSES), count=st.integers(1, 5), verdict=VERDICTS)
    def get_many_and_settle(self, bus: str, count: int, verdict: str) -> None:
        messages, expected = self.agree(
            lambda: self.queues[bus].get_many(count, 0),
            lambda: self.twin.get_many(self.consumers[bus], count),
        )
        held = [
            self.receive(bus, message, each)
            for message, each in zip(messages or (), expected or (), strict=True)
        ]
        if messages:
            getattr(messages, verdict)()
        for each in held:
            self.settled(each, verdict)

    @rule(bus=st.sampled_from(BUSES), count=st.integers(1, 5), verdict=VERDICTS)
    def get_values_and_settle(self, bus: str, count: int, verdict: str) -> None:
        values, expected = self.agree(
            lambda: self.queues[bus].get_values(count, 0),
            lambda: self.twin.get_many(self.consumers[bus], count),
        )
        assert (values or []) == [each.data for each in expected or ()]
        if values:
            getattr(values, verdict)()
        for each in expected or ():
            self.twin.settle(each, verdict)
            self.consumers[bus].kept -= 1
            Machine.delivered += 1
            Machine.died += verdict == "reject"

    def settled(self, held: Held, verdict: str) -> None:
        """The twin's side; what was settled before stays as it was."""
        if not held.settled:
            held.verdict = verdict
            self.twin.settle(held.expected, verdict)
            Machine.died += verdict == "reject"
        self.let_go(held)

    def let_go(self, held: Held) -> None:
        """With the last view of a settled message its memory goes; one that is dropped before is released."""
        if held.real is None and not held.views and not held.settled:
            self.settled(held, "release")
        elif held.settled and not held.views and held in self.held:
            held.owner.kept -= 1
            self.held.remove(held)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, verdict=VERDICTS, way=st.sampled_from(["call", "block", "exception"]))
    def settle(self, pick: int, verdict: str, way: str) -> None:
        held = self.held[pick % len(self.held)]
        if held.real is None:
            return
        if way == "call" and held.verdict not in (None, verdict):
            with pytest.raises(hawser.UsageError, match="already"):
                getattr(held.real, verdict)()
        elif way == "call":
            getattr(held.real, verdict)()
        elif way == "block":
            verdict = "accept"
            with held.real:
                pass
        else:
            verdict = "release"
            held.real.__exit__(ValueError, ValueError("failed"), None)
        self.settled(held, verdict)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        """A message dropped without a word is released, with its last view."""
        held = self.held[pick % len(self.held)]
        held.real = None
        self.let_go(held)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def view(self, pick: int) -> None:
        held = self.held[pick % len(self.held)]
        if held.real is not None and not held.settled:
            held.views.append(held.real.data)

    @precondition(lambda self: any(held.views for held in self.held))
    @rule(pick=PICK)
    def drop_view(self, pick: int) -> None:
        viewed = [held for held in self.held if held.views]
        held = viewed[pick % len(viewed)]
        held.views.pop()
        self.let_go(held)

    @rule(bus=st.sampled_from(BUSES), verdicts=st.lists(VERDICTS, max_size=4), prefetch=st.integers(0, 2))
    def consume(self, bus: str, verdicts: list[str], prefetch: int) -> None:
        """A consumer of its own, with places of its own; what it holds ahead goes back at its end, and was
        not delivered."""
        own = twin.Consumer()
        ahead: list[twin.Message] = []
        with self.queues[bus].consume(prefetch) as jobs:
            for verdict in verdicts:
                if not ahead:
                    ahead = self.twin.get_many(own, prefetch + 1)
                if not ahead:
                    break
                expected, job = ahead.pop(0), next(jobs)
                assert (job.offset, job.delivery_count) == (expected.offset, expected.deliveries)
                getattr(job, verdict)()
                self.twin.settle(expected, verdict)
                own.kept -= 1
                del job
        for each in ahead:
            self.twin.settle(each, "unclaim")

    @rule(bus=st.sampled_from(BUSES), count=st.integers(0, 4), prefetch=st.integers(0, 2))
    def consume_values(self, bus: str, count: int, prefetch: int) -> None:
        """The same by values: each is accepted with the next step, and the last one goes back."""
        own = twin.Consumer()
        ahead: list[twin.Message] = []
        last: twin.Message | None = None
        with self.queues[bus].consume(prefetch) as jobs:
            values = jobs.values()
            for _ in range(count):
                if last is not None:
                    self.twin.settle(last, "accept")
                    own.kept -= 1
                ahead = ahead or self.twin.get_many(own, prefetch + 1)
                last = ahead.pop(0) if ahead else None
                if last is None:
                    values.accept()
                    break
                assert next(values) == last.data
            del values
        if last is not None:
            self.twin.settle(last, "release")
        for each in ahead:
            self.twin.settle(each, "unclaim")

    # Dead letters, deaths, and looking

    @rule(bus=st.sampled_from(BUSES), count=st.integers(0, 3))
    def retry(self, bus: str, count: int) -> None:
        self.bury()
        before = self.twin.head
        moved, expected = self.agree(
            lambda: self.queues[bus].retry_dead_letters(count), lambda: self.twin.retry(count, bus)
        )
        if moved is None:
            return
        assert moved == expected
        # Which ones they were only the queue knows: the order of letters is that of their deaths.
        found = {each.offset: each for each in self.queues[bus].peek(1000)}
        moved_ones = [found[offset] for offset in range(before + 1, self.twin.head + 1)]
        pool = self.twin.dead_letters + [(each.data, each.key) for each in self.twin.messages[before:]]
        for message, real in zip(self.twin.messages[before:], moved_ones, strict=True):
            message.data, message.key, message.producer = bytes(real), real.key, real.publisher
            pool.remove((message.data, message.key))
        self.twin.dead_letters = pool

    # Not at every step, because processes take most of the time.
    @precondition(lambda self: self.twin.head % 4 == 1)
    @rule(count=st.integers(1, 3), verdict=st.sampled_from(["accept", "reject", None]))
    def abandon(self, count: int, verdict: str | None) -> None:
        """A process gets messages, settles the first, and is killed while it holds the others."""

        def live_and_hold(channel: Channel) -> None:
            queue = hawser.connect(self.local.url, name="mortal").queue(NAME)
            messages = queue.get_many(count, 0)
            if verdict is not None and messages:
                getattr(messages[0], verdict)()
            channel.tell(" ".join(str(each.offset) for each in messages))
            sleep_for_ever()

        mortal = twin.Consumer()
        with victim(live_and_hold) as child:
            told = [int(offset) for offset in child.hear().split()]
        expected = self.twin.get_many(mortal, count)
        assert told == [each.offset for each in expected]
        for number, each in enumerate(expected):
            self.twin.settle(each, verdict if verdict and number == 0 else "release")
        recovered = self.buses["alpha"].recover()
        assert [(each.name, each.complete) for each in recovered if each.kind == "consumer"] == [
            ("mortal", True)
        ]
        Machine.kills += 1

    @rule(bus=st.sampled_from(BUSES), count=st.integers(0, 9))
    def peek(self, bus: str, count: int) -> None:
        self.bury()
        found = [(each.offset, bytes(each)) for each in self.queues[bus].peek(count)]
        waiting = [(each.offset, each.data) for each in self.twin.messages if not each.over]
        assert found == waiting[:count]

    # Seldom, because everything begins anew.
    @precondition(lambda self: self.twin.head > 3 * twin.CAPACITY)
    @rule(bus=st.sampled_from(BUSES))
    def delete(self, bus: str) -> None:
        """The other bus has it open: only force deletes it, and then everybody is told. Letters stay."""
        self.bury()
        assert outcome(self.queues[bus].delete)[1] is hawser.UsageError
        self.queues[bus].delete(force=True)
        for queue in self.queues.values():
            assert outcome(lambda queue=queue: queue.put(b"never", timeout=0))[1] is hawser.Closed
        self.held.clear()
        for bus_here in self.buses.values():
            bus_here.close()
        dead_letters = self.twin.dead_letters
        self.twin = twin.Queue(dead_letters=dead_letters)
        self.consumers = {name: twin.Consumer() for name in BUSES}
        self.open_queue()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "queues"):
            return
        info = self.queues["beta"].info()
        assert (info.ready, info.claimed, info.dead) == self.twin.counts()
        assert (info.head, info.slots_leaked) == (self.twin.head, 0)

    @invariant()
    def views_are_unchanged(self) -> None:
        for held in self.held:
            assert all(bytes(view) == held.expected.data for view in held.views)
            assert held.real is None or held.settled or bytes(held.real) == held.expected.data

    @invariant()
    def letters_agree(self) -> None:
        """Those that are moved, and perhaps not all are."""
        if hasattr(self, "queues") and self.twin.counts()[2]:
            found = Counter((bytes(each), each.key) for each in self.queues["beta"].dead_letters().peek(1000))
            dying = [(each.data, each.key) for each in self.twin.messages if each.dying]
            assert Counter(self.twin.dead_letters) <= found <= Counter(self.twin.dead_letters + dying)
