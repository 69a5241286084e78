"""The state machine: every rule does one thing to the real topic and to its twin, and compares."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, sleep_for_ever, victim

from . import twin
from .twin import Message

SETTINGS: dict[str, Any] = {
    "slot_size": twin.SLOT_SIZE,
    "history": twin.HISTORY,
    "depth": twin.DEPTH,
    "max_held": twin.MAX_HELD,
    "max_loans": twin.MAX_LOANS,
    "max_subscribers": twin.MAX_SUBSCRIBERS,
    "max_publishers": twin.MAX_PUBLISHERS,
}
BUSES = ("alpha", "beta")
NAME = "stateful/topic"
PICK = st.integers(0, 1 << 16)
PAYLOADS = st.binary(max_size=24)


@dataclass
class Held:
    """A sample that was taken, and the views of it."""

    sample: hawser.Sample | None
    owner: "Joined"
    offset: int
    message: Message
    views: list[memoryview] = field(default_factory=list)
    leaving: bool = False


@dataclass
class Joined:
    """A real subscription beside its twin."""

    real: hawser.Subscription[Any]
    twin: twin.Subscriber
    bus: str
    last: Held | None = None


@dataclass
class Lent:
    """A loan that is being written."""

    loan: Any
    buffer: memoryview
    bus: str
    message: Message


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, type[Exception] | None]:
    """What a call returned, or the error and its class."""
    try:
        return call(*arguments), None
    except hawser.HawserError as error:
        return error, type(error)


def publish_now(target: Any, data: bytes) -> hawser.Receipt:
    receipt: hawser.Receipt = target.publish(data, timeout=0)
    return receipt


class Machine(RuleBasedStateMachine):
    """Two buses of one process, a helper process that is killed, and one topic."""

    steps: ClassVar[int] = 0
    missed: ClassVar[int] = 0
    kills: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.local = LocalBus()
        self.buses = {name: self.local.connect(name) for name in BUSES}
        self.numbers = itertools.count()
        self.twin = twin.Topic()
        self.joined: list[Joined] = []
        self.held: list[Held] = []
        self.lent: list[Lent] = []

    @initialize()
    def open_topic(self) -> None:
        self.topics = {name: bus.topic(NAME, **SETTINGS) for name, bus in self.buses.items()}

    def teardown(self) -> None:
        for held in self.held:
            held.views.clear()
        self.held.clear()
        self.lent.clear()
        self.joined.clear()
        self.local.close()

    def agree(self, real: Callable[[], Any], expected: Callable[[], Any]) -> tuple[Any, Any]:
        """Both return, or both raise the same kind of error. None, None after an error."""
        answer, error = outcome(real)
        wanted, wanted_error = outcome(expected)
        assert error == wanted_error, f"{answer!r} where the twin says {wanted!r}"
        return (None, None) if error else (answer, wanted)

    def own_publisher(self, bus: str, *, publishes: bool = True) -> None:
        """The first publish of a bus joins; whoever joins or finds no space recovers the dead."""
        if bus not in self.twin.publishers:
            self.twin.publishers.add(bus)
            self.twin.dead = 0
        if publishes and self.twin.blocked:
            self.twin.dead = 0

    # Publishing

    @rule(bus=st.sampled_from(BUSES), payload=PAYLOADS, key=st.none() | st.binary(max_size=8))
    def publish(self, bus: str, payload: bytes, key: bytes | None) -> None:
        self.own_publisher(bus)
        receipt, _ = self.agree(
            lambda: self.topics[bus].publish(payload, key=key, timeout=0),
            lambda: self.twin.publish(Message(payload, key, bus)),
        )
        if receipt is not None:
            assert (receipt.first_offset, receipt.count) == (self.twin.head, 1)

    @rule(bus=st.sampled_from(BUSES), count=st.integers(0, 3 * twin.RING))
    def publish_many(self, bus: str, count: int) -> None:
        """Often more than a lap."""
        self.own_publisher(bus, publishes=count > 0)
        payloads = [b"%d" % next(self.numbers) for _ in range(count)]
        first = self.twin.head + 1
        published = 0
        for payload in payloads:
            if self.twin.blocked:
                break
            self.twin.publish(Message(payload, None, bus))
            published += 1
        answer, error = outcome(lambda: self.topics[bus].publish_many(payloads, timeout=0))
        if published < len(payloads):
            self.twin.dead = 0
            assert error is hawser.Full
            assert answer.published == published
        elif payloads:
            assert (answer[0].first_offset, answer[0].count) == (first, published)

    @rule(bus=st.sampled_from(BUSES), payload=PAYLOADS)
    def lend(self, bus: str, payload: bytes) -> None:
        self.own_publisher(bus, publishes=False)
        full = any(lent.bus == bus for lent in self.lent)
        loan, error = outcome(lambda: self.topics[bus].loan(len(payload), timeout=0))
        assert error == (hawser.Full if full else None)
        if error is None:
            buffer = loan.__enter__()
            buffer[:] = payload
            self.lent.append(Lent(loan, buffer, bus, Message(payload, None, bus)))

    @precondition(lambda self: self.lent)
    @rule(pick=PICK, way=st.sampled_from(["publish", "exception", "forget"]))
    def end_loan(self, pick: int, way: str) -> None:
        lent = self.lent.pop(pick % len(self.lent))
        if way == "forget":
            lent.buffer.release()
            return
        if way == "exception":
            lent.loan.__exit__(ValueError, ValueError("dropped"), None)
            return
        if self.twin.blocked:
            self.twin.dead = 0
        self.agree(lambda: lent.loan.__exit__(None, None, None), lambda: self.twin.publish(lent.message))

    # Subscribing and taking

    @rule(
        bus=st.sampled_from(BUSES),
        where=st.sampled_from(["now", "history", "earliest", "offset"]),
        history=st.integers(0, 6),
        offset=st.integers(1, 20),
        kind=st.sampled_from(
            ["plain", "plain", "plain", "reliable", "durable", "lagging", "resume", "both", "group"]
        ),
        max_held=st.none() | st.integers(1, twin.MAX_HELD),
    )
    def subscribe(
        self, bus: str, where: str, history: int, offset: int, kind: str, max_held: int | None
    ) -> None:
        real: dict[str, Any] = {"max_held": max_held}
        model: dict[str, Any] = {"max_held": max_held or twin.MAX_HELD}
        place: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "now": ({}, {}),
            "history": ({"history": history}, {"history": history}),
            "earliest": ({"start": "earliest"}, {"history": twin.HISTORY}),
            "offset": ({"start": offset}, {"start": offset}),
        }
        kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "plain": ({}, {}),
            "reliable": ({"reliable": True}, {"reliable": True}),
            "durable": ({"reliable": "durable"}, {"reliable": True, "durable": True, "name": bus}),
            "lagging": (
                {"reliable": "durable", "max_lag": 5},
                {"reliable": True, "durable": True, "name": bus, "max_lag": 5},
            ),
            "resume": ({"resume": True}, {"name": bus}),
            "both": ({"resume": True, "reliable": True}, {"reliable": True, "name": bus}),
            "group": ({"group": "g"}, {"name": "group:g", "commits": True}),
        }
        for chosen in (place[where], kinds[kind]):
            real |= chosen[0]
            model |= chosen[1]
        made, subscriber = self.agree(
            lambda: self.topics[bus].subscribe(**real), lambda: self.twin.subscribe(**model)
        )
        if made is not None:
            self.joined.append(Joined(made, subscriber, bus))

    def receive(self, joined: Joined, sample: hawser.Sample, expected: tuple[int, int]) -> Held:
        offset, lost_before = expected
        message = self.twin.messages[offset - 1]
        assert (sample.offset, sample.lost_before) == (offset, lost_before)
        Machine.missed += lost_before
        assert Message(bytes(sample), sample.key, sample.publisher) == message
        held = Held(sample, joined, offset, message)
        self.held.append(held)
        return held

    @precondition(lambda self: self.joined)
    @rule(pick=PICK)
    def take(self, pick: int) -> None:
        joined = self.joined[pick % len(self.joined)]
        sample, expected = self.agree(lambda: joined.real.take(0), lambda: self.twin.take(joined.twin))
        assert (sample is None) == (expected is None)
        if sample is not None:
            self.receive(joined, sample, expected)

    @precondition(lambda self: self.joined)
    @rule(pick=PICK, count=st.integers(1, 6))
    def take_many(self, pick: int, count: int) -> None:
        joined = self.joined[pick % len(self.joined)]
        count = min(count, joined.twin.max_held - joined.twin.held) or 1

        def take_all() -> list[tuple[int, int] | None]:
            first = self.twin.take(joined.twin)
            more = (self.twin.take(joined.twin) for _ in range(count - 1)) if first else ()
            return [each for each in (first, *more) if each is not None]

        samples, expected = self.agree(lambda: joined.real.take_many(count, 0), take_all)
        for sample, each in zip(samples or (), expected or (), strict=True):
            self.receive(joined, sample, each)

    @precondition(lambda self: self.joined)
    @rule(pick=PICK, count=st.integers(1, 5))
    def take_values(self, pick: int, count: int) -> None:
        joined = self.joined[pick % len(self.joined)]
        values, expected = self.agree(
            lambda: joined.real.take_values(count, 0), lambda: self.twin.take_values(joined.twin, count)
        )
        assert values == expected

    @precondition(lambda self: self.joined)
    @rule(pick=PICK)
    def iterate(self, pick: int) -> None:
        """Lets go of the sample of the step before, whatever becomes of this one."""
        joined = self.joined[pick % len(self.joined)]
        if not joined.twin.closed:
            if max(joined.twin.cursor + 1, self.twin.oldest) > self.twin.head:
                return
            if joined.last is not None:
                self.let_go(joined.last)
            joined.last = None
            sample, expected = self.agree(lambda: next(joined.real), lambda: self.twin.take(joined.twin))
            if sample is not None:
                joined.last = self.receive(joined, sample, expected)

    def let_go(self, held: Held) -> None:
        """As leaving a block: the slot goes now, or with the last view."""
        held.leaving = True
        if not held.views and held in self.held:
            self.forget(held)

    def forget(self, held: Held) -> None:
        """The twin's side of a release."""
        self.held.remove(held)
        if held.owner.last is held:
            held.owner.last = None
        held.owner.twin.release(held.offset)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, way=st.sampled_from(["release", "block", "drop"]))
    def release(self, pick: int, way: str) -> None:
        held = self.held[pick % len(self.held)]
        if way == "release" and held.sample is not None:
            try:
                held.sample.release()
                assert not held.views
                self.forget(held)
            except BufferError:
                assert held.views
        elif way == "block" and held.sample is not None:
            with held.sample:
                pass
            self.let_go(held)
        elif way == "drop":
            held.sample = None
            self.let_go(held)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, part=st.booleans())
    def view(self, pick: int, part: bool) -> None:
        held = self.held[pick % len(self.held)]
        if held.sample is not None:
            view = held.sample.data
            held.views.append(view[:1] if part else view)

    @precondition(lambda self: any(held.views for held in self.held))
    @rule(pick=PICK)
    def drop_view(self, pick: int) -> None:
        viewed = [held for held in self.held if held.views]
        held = viewed[pick % len(viewed)]
        held.views.pop(pick % len(held.views))
        if held.leaving:
            self.let_go(held)

    @precondition(lambda self: self.joined)
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        joined = self.joined[pick % len(self.joined)]
        _, error = outcome(joined.real.commit)
        if joined.twin.closed:
            assert error is hawser.Closed
        elif not joined.twin.commits:
            assert error is hawser.UsageError
        else:
            assert error is None
            joined.twin.committed = joined.twin.cursor
            joined.twin.keep()

    @precondition(lambda self: self.joined)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        joined = self.joined[pick % len(self.joined)]
        joined.real.close()
        joined.twin.close()

    # Reading, recovering, deleting

    @rule(
        bus=st.sampled_from(BUSES),
        count=st.integers(1, 10),
        after=st.integers(0, 20),
        newest=st.booleans(),
    )
    def read(self, bus: str, count: int, after: int, newest: bool) -> None:
        topic = self.topics[bus]
        result, error = outcome(lambda: (topic.read_newest if newest else topic.read_oldest)(count, after))
        if after > self.twin.head:
            assert error is hawser.OffsetOutOfRange
            return
        offsets, last, missed = (self.twin.read_newest if newest else self.twin.read_oldest)(count, after)
        found = [(each.offset, Message(bytes(each), each.key, each.publisher)) for each in result.samples]
        assert found == [(offset, self.twin.messages[offset - 1]) for offset in offsets]
        assert (result.last, result.missed) == (last, missed)

    # Not at every step, because processes take most of the time.
    @precondition(lambda self: self.twin.head % 4 == 1)
    @rule(payloads=st.lists(PAYLOADS, max_size=3), taken=st.integers(0, 3), lends=st.booleans())
    def abandon(self, payloads: list[bytes], taken: int, lends: bool) -> None:
        """A process publishes, takes and lends, and is killed while it holds everything."""
        room = len(self.twin.joined) < twin.MAX_SUBSCRIBERS

        def live_and_hold(channel: Channel) -> None:
            topic = hawser.connect(self.local.url, name="mortal").topic(NAME)
            publisher = topic.publisher()
            published = [outcome(publish_now, publisher, data)[1] for data in payloads]
            things: list[Any] = [publisher.loan(4)] if lends else []
            if room:
                things.append(topic.subscribe(history=3))
                things.append(things[-1].take_many(taken, 0) if taken else [])
            channel.tell(" ".join("full" if error else "out" for error in published))
            sleep_for_ever()

        with victim(live_and_hold) as child:
            for data, told in zip(payloads, child.hear().split(), strict=True):
                _, error = outcome(self.twin.publish, Message(data, None, "mortal"))
                assert (told == "full") == (error is not None)
        Machine.kills += 1
        self.twin.dead = 1 + room

    @rule(bus=st.sampled_from(BUSES))
    def recover(self, bus: str) -> None:
        recovered = self.buses[bus].recover()
        assert [(each.name, each.complete) for each in recovered] == [("mortal", True)] * self.twin.dead
        self.twin.dead = 0

    # Seldom, because everything begins anew.
    @precondition(lambda self: self.twin.head > 3 * twin.RING)
    @rule(bus=st.sampled_from(BUSES), force=st.booleans())
    def delete(self, bus: str, force: bool) -> None:
        """The other bus has it open: only force deletes it, and then everybody is told."""
        _, error = outcome(lambda: self.topics[bus].delete(force=force))
        assert error == (None if force else hawser.UsageError)
        if not force:
            return
        for name, topic in self.topics.items():
            assert outcome(publish_now, topic, b"never")[1] is hawser.Closed, name
        for lent in self.lent:
            assert outcome(lent.loan.__exit__, None, None, None)[1] is hawser.Closed
        for joined in self.joined:
            assert outcome(joined.real.take, 0)[1] is hawser.Closed
            joined.twin.close()
        self.lent.clear()
        self.joined.clear()
        self.twin = twin.Topic()
        self.open_topic()

    # What holds after every step

    @invariant()
    def held_samples_are_unchanged(self) -> None:
        Machine.steps += 1
        for held in self.held:
            if held.sample is not None and not held.leaving:
                assert bytes(held.sample) == held.message.payload
            for view in held.views:
                assert bytes(view) == held.message.payload[: len(view)]

    @invariant()
    def subscriptions_agree(self) -> None:
        for joined in self.joined:
            real, model = joined.real, joined.twin
            assert (real.position, real.missed, real.received) == (model.cursor, model.missed, model.received)
            assert real.held == model.held

    @invariant()
    def the_topic_agrees(self) -> None:
        if not hasattr(self, "topics"):
            return
        info = self.topics["alpha"].info()
        assert (info.head, info.oldest, info.slots_leaked) == (self.twin.head, self.twin.oldest, 0)
        kept = {(each.name, each.mark, each.durable, each.held) for each in info.records}
        assert kept == {(name, at.mark, at.durable, at.held) for name, at in self.twin.positions.items()}
        alive = [each.kind for each in info.participants if each.alive]
        assert alive.count("subscriber") == len(self.twin.joined)
        assert len(info.participants) - len(alive) == self.twin.dead
        if not self.twin.dead:
            current = {held.offset for held in self.held if held.owner in self.joined}
            assert info.slots_referenced == len(current)
            assert info.slots_lent == len(self.lent)
            assert info.slots_carried == min(self.twin.head, twin.RING)
