"""The public surface of a cluster's API as a table of calls, for threads and for event loops alike.

`SURFACE` has an entry for every public method; `missing` compares it with the classes themselves. An entry is
prepared while the cluster works, and each of its calls is made later, perhaps when it does not any more.
"""

import asyncio
import inspect
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import hawser
from hawser import aio, xa
from tests.support.processes import LIMIT_SECONDS

__all__ = ["SECONDS", "SURFACE", "Call", "Entry", "Scene", "done", "in_thread", "missing"]

# Each call waits for so long.
SECONDS: Final = 1.0
# Those of the local bus, or of values that are there already.
_LOCAL: Final = frozenset(
    {"Sample", "Loan", "ArrayLoan", "Receipt", "ReadResult", "TopicInfo", "PartitionInfo", "QueueInfo"}
    | {"QueueOwner", "Participant", "Recovered", "KeptPosition", "DomainFile", "Xid"}
)
_LISTS: Final = frozenset(dir(list))
_SPECIAL: Final = {"__next__", "__anext__", "__exit__", "__aexit__"}
# Of what a message has here already.
_AT_HAND: Final = frozenset({"array", "arrow"})
_HISTORY: Final = 8
_MESSAGES: Final = 400
_EPOCH: Final = datetime(1970, 1, 2, tzinfo=UTC)

Made = Any
Call = Callable[[Any], Any]


class Entry(NamedTuple):
    """`make` prepares an object, and each of the calls is made on it, one after the other. A call takes up to
    `times` time-outs: its own, and that of a transaction that it waits for."""

    make: "Callable[[Scene], Awaitable[Made]]"
    calls: tuple[Call, ...]
    times: int = 1


class Scene:
    """What entries are prepared with: a bus for threads or for event loops, a topic, a queue with messages,
    and one without."""

    def __init__(self, url: str, is_async: bool) -> None:
        self.url = url
        self.is_async = is_async
        self.buses: list[Any] = []
        # Messages and subscriptions that nothing else refers to.
        self.kept: list[Any] = []
        # It makes topics and queues, however slow this machine is.
        self.patient = hawser.connect(url, timeout=LIMIT_SECONDS, connect_timeout=LIMIT_SECONDS)
        self.tag = secrets.token_hex(4)
        self.new_topic(self.tag)
        self.patient.queue(f"q-{self.tag}").put_many([b"x"] * _MESSAGES)
        self.patient.queue(f"e-{self.tag}")
        self.bus = self.new_bus()
        self.topic, self.queue = self.opened(self.bus)
        self.empty = self.bus.queue(f"e-{self.tag}")

    def new_bus(self) -> Any:
        connect = aio.connect if self.is_async else hawser.connect
        bus = connect(self.url, timeout=SECONDS, connect_timeout=LIMIT_SECONDS)
        self.buses.append(bus)
        return bus

    def opened(self, bus: Any) -> tuple[Any, Any]:
        return bus.topic(f"t-{self.tag}"), bus.queue(f"q-{self.tag}")

    def new_topic(self, tag: str) -> None:
        """A topic with messages in both partitions."""
        topic = self.patient.topic(f"t-{tag}", partitions=2)
        for _ in range(2):
            topic.publish_many([b"x"] * _HISTORY)

    async def made(self, name: str) -> Any:
        """What an entry needs; a loaded machine may need another try."""
        while True:
            try:
                return await SURFACE[name].make(self)
            except hawser.HawserError as error:
                if not error.retryable and error.outcome != "unknown":
                    raise

    async def close(self) -> None:
        """Close every bus at the same time."""
        closing = [bus.close() if self.is_async else in_thread(bus.close) for bus in self.buses]
        await asyncio.gather(in_thread(self.patient.close), *closing)


def in_thread(call: Callable[[], Any]) -> "asyncio.Future[Any]":
    """The result of a call in a thread that the end of the process does not wait for."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call()
            future.set_result(result.result() if isinstance(result, Future) else result)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)


async def done(made: Any) -> Any:
    """What a call of either API comes to."""
    if isinstance(made, Future):
        return await asyncio.wrap_future(made)
    return await made if inspect.isawaitable(made) else made


# What the calls are made on.


async def shared_bus(scene: Scene) -> Any:
    return scene.bus


async def shared_topic(scene: Scene) -> Any:
    return scene.topic


async def shared_queue(scene: Scene) -> Any:
    return scene.queue


async def bus_and_topic(scene: Scene) -> Any:
    return scene.bus, scene.topic


async def own_bus(scene: Scene) -> Any:
    bus = scene.new_bus()
    await done(bus.topics())
    return bus


async def busy_bus(scene: Scene) -> Any:
    """One that has everything open."""
    bus = scene.new_bus()
    topic, queue = scene.opened(bus)
    subscription = topic.subscribe(group=f"g-{secrets.token_hex(4)}", start="earliest")
    await done(subscription.take(10))
    message = await done(queue.get(10))
    transaction = bus.transaction()
    await done(transaction.publish(topic, b"x"))
    return bus, topic, queue, subscription, message, transaction


async def own_topic(scene: Scene) -> Any:
    topic = scene.opened(scene.new_bus())[0]
    await done(topic.info())
    return topic


async def own_queue(scene: Scene) -> Any:
    queue = scene.opened(scene.new_bus())[1]
    await done(queue.info())
    return queue


async def new_topic(scene: Scene) -> Any:
    tag = secrets.token_hex(4)
    scene.new_topic(tag)
    topic = scene.bus.topic(f"t-{tag}")
    await done(topic.info())
    return topic


async def new_queue(scene: Scene) -> Any:
    name = f"q-{secrets.token_hex(4)}"
    scene.patient.queue(name)
    queue = scene.bus.queue(name)
    await done(queue.info())
    return queue


async def publisher(scene: Scene) -> Any:
    made = scene.topic.publisher()
    await done(made.publish(b"x"))
    return made


async def subscription(scene: Scene) -> Any:
    made = scene.topic.subscribe(start="earliest")
    await done(made.take(10))
    return made


async def drained(scene: Scene) -> Any:
    """A subscription to which nothing more comes."""
    made = scene.topic.subscribe(start="latest")
    await done(made.take(0))
    return made


async def member(scene: Scene) -> Any:
    made = scene.topic.subscribe(group=f"g-{secrets.token_hex(4)}", start="earliest")
    assert await done(made.take(10)) is not None
    return made


async def empty_queue(scene: Scene) -> Any:
    await done(scene.empty.info())
    return scene.empty


async def consumer(scene: Scene) -> Any:
    made = scene.queue.consume(4)
    await done(next_of(made))
    return made


async def message(scene: Scene) -> Any:
    return await done(scene.queue.get(10))


async def messages(scene: Scene) -> Any:
    return await done(scene.queue.get_many(3, 10))


async def values(scene: Scene) -> Any:
    return await done(scene.queue.get_values(3, 10))


async def value_loop(scene: Scene) -> Any:
    made = scene.queue.consume(4).values()
    await done(next_of(made))
    return made


async def holding_queue(scene: Scene) -> Any:
    queue = await own_queue(scene)
    scene.kept.append(await done(queue.get(10)))
    return queue


async def transaction(scene: Scene) -> Any:
    made = scene.bus.transaction(SECONDS)
    await done(made.publish(scene.topic, b"x"))
    return made


async def wide_transaction(scene: Scene) -> Any:
    """On several shards."""
    made = await transaction(scene)
    await done(made.publish(scene.queue, b"x"))
    return made


async def open_transaction(scene: Scene) -> Any:
    """With a topic, a queue, a message and a subscription."""
    made = await transaction(scene)
    return made, scene.topic, scene.queue, await message(scene), await member(scene)


async def offsets_transaction(scene: Scene) -> Any:
    """With the position of a group."""
    made = await transaction(scene)
    scene.kept.append(await member(scene))
    await done(made.commit_offsets(scene.kept[-1]))
    return made


def _xid() -> xa.Xid:
    return xa.Xid(4711, secrets.token_bytes(8), b"b")


async def branch(scene: Scene) -> Any:
    """A branch that is begun, and its resource: a session works in one branch at a time."""
    xid, bus = _xid(), scene.new_bus()
    topic, queue = bus.topic(scene.topic.name), bus.queue(scene.queue.name)
    work = await done(bus.xa.start(xid))
    await done(work.publish(topic, b"x"))
    await done(work.publish(queue, b"x"))
    return bus.xa, xid


async def ended_branch(scene: Scene) -> Any:
    resource, xid = await branch(scene)
    await done(resource.end(xid))
    return resource, xid


async def prepared_branch(scene: Scene) -> Any:
    resource, xid = await ended_branch(scene)
    await done(resource.prepare(xid))
    return resource, xid


def next_of(loop: Any) -> Any:
    """The next of a loop."""
    return next(loop) if hasattr(loop, "__next__") else loop.__anext__()


def leave(block: Any) -> Any:
    """End a `with` block."""
    return (block.__aexit__ if hasattr(block, "__aexit__") else block.__exit__)(None, None, None)


def _opened(made: Any) -> Any:
    """In an event loop it is opened by its first use."""
    return made.info() if isinstance(made, aio.AsyncTopic | aio.AsyncQueue) else made


def _taken(made: Any) -> Any:
    return made.take(0) if isinstance(made, aio.AsyncSubscription) else made


def _first_published(made: Any) -> Any:
    return made.publish(b"x") if isinstance(made, aio.AsyncPublisher) else made


def _flush(topic: Any) -> Any:
    topic.publish_nowait(b"x")
    return topic.flush()


def _run(bus_and_topic: Any) -> Any:
    bus, topic = bus_and_topic

    async def publish(transaction: Any) -> None:
        await transaction.publish(topic, b"x")

    is_async = isinstance(bus, aio.AsyncBus)
    work = publish if is_async else lambda transaction: transaction.publish(topic, b"x")
    return bus.run_transaction(work, 0, timeout=SECONDS)


def _close_busy(kept: Any) -> Any:
    bus, topic = kept[:2]
    topic.publish_nowait(b"x")
    return bus.close()


def _close_transaction(each: Any) -> Any:
    return each.close() if isinstance(each, aio.AsyncTransaction) else leave(each)


def _publish_nowait(each: Any) -> Any:
    return each.publish_nowait(b"x") if isinstance(each, aio.AsyncPublisher) else None


def _flush_publisher(each: Any) -> Any:
    return _flush(each) if isinstance(each, aio.AsyncPublisher) else None


_HELD: Final = {"Message": message, "Messages": messages, "Values": values, "ValueLoop": value_loop}
_SETTLEMENTS: Final[dict[str, Call]] = {
    "accept": lambda each: each.accept(),
    "release": lambda each: each.release(),
    "reject": lambda each: each.reject(),
    "__exit__": leave,
}

SURFACE: Final[dict[str, Entry]] = {
    "Bus.topic": Entry(shared_bus, (lambda bus: _opened(bus.topic("t-new")),)),
    "Bus.queue": Entry(shared_bus, (lambda bus: _opened(bus.queue("q-new")),)),
    "Bus.topics": Entry(shared_bus, (lambda bus: bus.topics(),)),
    "Bus.queues": Entry(shared_bus, (lambda bus: bus.queues(),)),
    "Bus.files": Entry(shared_bus, (lambda bus: bus.files(),)),
    "Bus.recover": Entry(shared_bus, (lambda bus: bus.recover(),)),
    "Bus.participants": Entry(shared_bus, (lambda bus: bus.participants(),)),
    "Bus.transaction": Entry(shared_bus, (lambda bus: leave(bus.transaction()),)),
    "Bus.run_transaction": Entry(bus_and_topic, (_run,), 2),
    "Bus.close": Entry(own_bus, (lambda bus: bus.close(),)),
    "Bus.close, busy": Entry(busy_bus, (_close_busy,)),
    "Bus.__exit__": Entry(own_bus, (leave,)),
    "Topic.publish": Entry(shared_topic, (lambda topic: topic.publish(b"x"),)),
    "Topic.publish, in time": Entry(shared_topic, (lambda topic: topic.publish(b"x", timeout=SECONDS / 2),)),
    "Topic.publish_many": Entry(shared_topic, (lambda topic: topic.publish_many([b"x"] * 9),)),
    "Topic.publish_nowait": Entry(shared_topic, (lambda topic: topic.publish_nowait(b"x"),)),
    "Topic.flush": Entry(own_topic, (_flush,)),
    "Topic.loan": Entry(shared_topic, (lambda topic: leave(topic.loan(8)),)),
    "Topic.loan_array": Entry(shared_topic, (lambda topic: leave(topic.loan_array(8)),)),
    "Topic.publisher": Entry(shared_topic, (lambda topic: _first_published(topic.publisher()),)),
    "Topic.subscribe": Entry(shared_topic, (lambda topic: _taken(topic.subscribe()),)),
    "Topic.subscribe, in a group": Entry(shared_topic, (lambda topic: _taken(topic.subscribe(group="n")),)),
    "Topic.subscribe, at a time": Entry(shared_topic, (lambda topic: _taken(topic.subscribe(start=_EPOCH)),)),
    "Topic.read_oldest": Entry(shared_topic, (lambda topic: topic.read_oldest(3),)),
    "Topic.read_newest": Entry(shared_topic, (lambda topic: topic.read_newest(3),)),
    "Topic.info": Entry(shared_topic, (lambda topic: topic.info(),)),
    "Topic.forget": Entry(shared_topic, (lambda topic: topic.forget("group:none"),)),
    "Topic.delete": Entry(new_topic, (lambda topic: topic.delete(),)),
    "Topic.close": Entry(own_topic, (lambda topic: topic.close(),)),
    "Topic.__exit__": Entry(own_topic, (leave,)),
    "Publisher.publish": Entry(publisher, (lambda each: each.publish(b"x"),)),
    "Publisher.publish_many": Entry(publisher, (lambda each: each.publish_many([b"x"] * 9),)),
    "Publisher.publish_nowait": Entry(publisher, (_publish_nowait,)),
    "Publisher.flush": Entry(publisher, (_flush_publisher,)),
    "Publisher.loan": Entry(publisher, (lambda each: leave(each.loan(8)),)),
    "Publisher.loan_array": Entry(publisher, (lambda each: leave(each.loan_array(8)),)),
    "Publisher.close": Entry(publisher, (lambda each: each.close(),)),
    "Publisher.__exit__": Entry(publisher, (leave,)),
    "Subscription.take": Entry(drained, (lambda each: each.take(SECONDS),)),
    "Subscription.take_many": Entry(drained, (lambda each: each.take_many(3, SECONDS),)),
    "Subscription.take_value": Entry(drained, (lambda each: each.take_value(SECONDS),)),
    "Subscription.take_values": Entry(drained, (lambda each: each.take_values(3, SECONDS),)),
    "Subscription.take_batches": Entry(drained, (lambda each: each.take_batches(1, SECONDS),)),
    "Subscription.values": Entry(subscription, (lambda each: next_of(each.values()),)),
    "Subscription.__next__": Entry(subscription, (next_of,)),
    "Subscription.commit": Entry(member, (lambda each: each.commit(),)),
    "Subscription.close": Entry(subscription, (lambda each: each.close(),)),
    "Subscription.close, in a group": Entry(member, (lambda each: each.close(),)),
    "Subscription.__exit__": Entry(subscription, (leave,)),
    "Queue.put": Entry(shared_queue, (lambda queue: queue.put(b"x"),)),
    "Queue.put, in time": Entry(shared_queue, (lambda queue: queue.put(b"x", timeout=SECONDS / 2),)),
    "Queue.put_many": Entry(shared_queue, (lambda queue: queue.put_many([b"x"] * 9),)),
    "Queue.get": Entry(empty_queue, (lambda queue: queue.get(SECONDS),)),
    "Queue.get, without waiting": Entry(empty_queue, (lambda queue: queue.get(0),)),
    "Queue.get_many": Entry(empty_queue, (lambda queue: queue.get_many(3, SECONDS),)),
    "Queue.get_values": Entry(empty_queue, (lambda queue: queue.get_values(3, SECONDS),)),
    "Queue.consume": Entry(shared_queue, (lambda queue: leave(queue.consume()),)),
    "Queue.peek": Entry(shared_queue, (lambda queue: queue.peek(3),)),
    "Queue.info": Entry(shared_queue, (lambda queue: queue.info(),)),
    "Queue.dead_letters": Entry(shared_queue, (lambda queue: _opened(queue.dead_letters()),)),
    "Queue.retry_dead_letters": Entry(shared_queue, (lambda queue: queue.retry_dead_letters(),)),
    "Queue.forget": Entry(shared_queue, (lambda queue: queue.forget("x"),)),
    "Queue.delete": Entry(new_queue, (lambda queue: queue.delete(),)),
    "Queue.close": Entry(own_queue, (lambda queue: queue.close(),)),
    "Queue.close, holding": Entry(holding_queue, (lambda queue: queue.close(),)),
    "Queue.__exit__": Entry(own_queue, (leave,)),
    "Consumer.__next__": Entry(consumer, (next_of,)),
    "Consumer.values": Entry(consumer, (lambda each: next_of(each.values()),)),
    "Consumer.close": Entry(consumer, (lambda each: each.close(),)),
    "Consumer.__exit__": Entry(consumer, (leave,)),
    **{
        f"{name}.{method}": Entry(make, (call,))
        for name, make in _HELD.items()
        for method, call in _SETTLEMENTS.items()
    },
    "ValueLoop.__next__": Entry(value_loop, (next_of,)),
    "Transaction.publish": Entry(open_transaction, (lambda o: o[0].publish(o[1], b"x"),)),
    "Transaction.publish_many": Entry(open_transaction, (lambda o: o[0].publish_many(o[1], [b"x"] * 9),)),
    "Transaction.get": Entry(open_transaction, (lambda o: o[0].get(o[2], SECONDS),)),
    "Transaction.get_many": Entry(open_transaction, (lambda o: o[0].get_many(o[2], 3, SECONDS),)),
    "Transaction.accept": Entry(open_transaction, (lambda o: o[0].accept(o[3]),)),
    "Transaction.commit_offsets": Entry(open_transaction, (lambda o: o[0].commit_offsets(o[4]),)),
    "Transaction.commit": Entry(transaction, (lambda each: each.commit(),)),
    "Transaction.commit, of shards": Entry(wide_transaction, (lambda each: each.commit(),)),
    "Transaction.commit, of offsets": Entry(offsets_transaction, (lambda each: each.commit(),)),
    "Transaction.resolve": Entry(transaction, (lambda each: each.commit(), lambda each: each.resolve())),
    "Transaction.rollback": Entry(wide_transaction, (lambda each: each.rollback(),)),
    "Transaction.rollback, of offsets": Entry(offsets_transaction, (lambda each: each.rollback(),)),
    "Transaction.close": Entry(wide_transaction, (_close_transaction,)),
    "Transaction.__exit__": Entry(wide_transaction, (leave,)),
    "XA.start": Entry(own_bus, (lambda bus: bus.xa.start(_xid()),)),
    "XA.start, join": Entry(branch, (lambda o: o[0].start(o[1], join=True),)),
    "XA.end": Entry(branch, (lambda o: o[0].end(o[1]),)),
    "XA.prepare": Entry(ended_branch, (lambda o: o[0].prepare(o[1]),)),
    "XA.commit": Entry(prepared_branch, (lambda o: o[0].commit(o[1]),)),
    "XA.commit, in one phase": Entry(ended_branch, (lambda o: o[0].commit(o[1], one_phase=True),)),
    "XA.rollback": Entry(ended_branch, (lambda o: o[0].rollback(o[1]),)),
    "XA.recover": Entry(own_bus, (lambda bus: bus.xa.recover(),)),
    "XA.forget": Entry(ended_branch, (lambda o: o[0].forget(o[1]),)),
    "XA.set_timeout": Entry(branch, (lambda o: o[0].set_timeout(o[1], 9),)),
    "XA.get_timeout": Entry(branch, (lambda o: o[0].get_timeout(o[1]),)),
}


def missing() -> set[str]:
    """Public methods that have no entry, and entries of methods that are none."""
    walked = {name.partition(",")[0] for name in SURFACE}
    there = {
        f"{name.removeprefix('Async')}.{_plain(method)}"
        for module in (hawser, aio, xa)
        for name in module.__all__
        if inspect.isclass(kind := getattr(module, name)) and not issubclass(kind, Exception)
        if name.removeprefix("Async") not in _LOCAL
        for method in _methods(kind)
    }
    return walked ^ there


def _methods(kind: type) -> Iterator[str]:
    for name in dir(kind):
        is_public = not name.startswith("_") or name in _SPECIAL
        if is_public and callable(getattr(kind, name)) and name not in _LISTS | _AT_HAND:
            yield name


def _plain(method: str) -> str:
    return method.replace("__a", "__") if method in _SPECIAL else method
