"""A client process that writes or reads and notes everything.

    python -m tests.cluster.worker write|batch|aio|member|read URL NAME FILE

It goes on until its standard input ends. Every value names its writer and a number, so none comes twice; it
is its own key, so it is known beforehand which partition it goes to.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

import hawser
from hawser import aio
from hawser.api.cluster.aio.subscription import ClusterAsyncSubscription
from hawser.api.cluster.subscription import ClusterSubscription
from hawser.cluster.client.publish.partitioner import partition_of
from tests.history.events import Event, Recorder

__all__ = [
    "GROUP",
    "PATIENT",
    "SESSION_SECONDS",
    "TOPIC",
    "Until",
    "commit_noted",
    "log_of",
    "main",
    "note_taken",
]

TOPIC: Final = "attacked"
GROUP: Final = "attackers"
SESSION_SECONDS: Final = 3.0
# However slow the machine is, somebody answers within that.
PATIENT: Final = {"timeout": 30.0, "connect_timeout": 120.0}
_MOST_IN_A_BATCH: Final = 20
_IN_FLIGHT: Final = 8
_MOST_TAKEN: Final = 200


class Until:
    """True until standard input ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        os.read(0, 1)
        self._ended.set()

    def __bool__(self) -> bool:
        return not self._ended.is_set()


def log_of(partition: int) -> str:
    """What a partition of the topic is called in a history."""
    return f"{TOPIC}:{partition}"


class Publishes:
    """Notes what is published, and how it ended. A client that does not know an outcome is another one after
    it; `lives` counts them."""

    def __init__(self, recorder: Recorder, name: str, partitions: int) -> None:
        self._recorder = recorder
        self._name = name
        self._partitions = partitions
        self._numbers = 0
        self.lives = 0

    @property
    def process(self) -> str:
        return f"{self._name}.{self.lives}"

    def values(self, count: int) -> list[str]:
        """New ones."""
        first, self._numbers = self._numbers, self._numbers + count
        return [f"{self.process}.{number}" for number in range(first, first + count)]

    def begin(self, values: Iterable[str]) -> dict[int, Event]:
        """They are published together: all or none for each partition."""
        parts: dict[int, list[str]] = {}
        for value in values:
            parts.setdefault(partition_of(value.encode(), self._partitions), []).append(value)
        return {
            partition: self._recorder.invoke("publish", log_of(partition), self.process, values=part)
            for partition, part in parts.items()
        }

    def succeed(self, begun: dict[int, Event], receipts: Iterable[hawser.Receipt]) -> None:
        offsets = {receipt.partition: receipt.first_offset for receipt in receipts}
        assert offsets.keys() == begun.keys(), (offsets, begun)
        for partition, invoked in begun.items():
            self._recorder.end(invoked, "ok", offset=offsets[partition])

    def fail(self, begun: dict[int, Event], error: hawser.HawserError) -> bool:
        """Whether something of it may be there, or is there in part: then `lives` has to be raised before
        anything else is published."""
        is_certain = error.outcome == "none"
        for invoked in begun.values():
            self._recorder.end(invoked, "fail" if is_certain else "info", error=str(error)[:300])
        return not is_certain


def write(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Publish one message after the other."""
    _publish(url, name, recorder, goes_on, lambda: 1)


def batch(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Publish one batch after the other, of any size, over all partitions."""
    random = Random(name)
    _publish(url, name, recorder, goes_on, lambda: random.randint(2, _MOST_IN_A_BATCH))


def _publish(url: str, name: str, recorder: Recorder, goes_on: Until, size: Callable[[], int]) -> None:
    with hawser.connect(url, name=name, **PATIENT) as bus:
        topic = bus.topic(TOPIC)
        publisher = topic.publisher()
        publishes = Publishes(recorder, name, _partitions(topic.info()))
        while goes_on:
            values = [value.encode() for value in publishes.values(size())]
            begun = publishes.begin(value.decode() for value in values)
            try:
                if len(values) == 1:
                    receipts = [publisher.publish(values[0], key=values[0])]
                else:
                    receipts = publisher.publish_many(values, keys=values)
            except hawser.HawserError as error:
                if publishes.fail(begun, error):
                    publishes.lives += 1
                    publisher = topic.publisher()
            else:
                publishes.succeed(begun, receipts)


def _partitions(info: hawser.TopicInfo) -> int:
    assert info.partitions is not None
    return len(info.partitions)


def read(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Follow the topic from its beginning, and now and then ask where it ends and where the group is."""
    with hawser.connect(url, name=name, **PATIENT) as bus:
        topic = bus.topic(TOPIC)
        partitions = range(_partitions(topic.info()))
        subscription = topic.subscribe(start="earliest")
        while goes_on:
            samples = subscription.take_many(1000, timeout=0.2)
            for partition, records in _by_partition(samples).items():
                polled = recorder.invoke("poll", log_of(partition))
                recorder.end(polled, "ok", records=records)
            states = [recorder.invoke("state", log_of(each)) for each in partitions]
            positions = [recorder.invoke("position", log_of(each), group=GROUP) for each in partitions]
            info = topic.info()
            marks = {kept.name: kept.mark for kept in info.records}
            for each, state, position in zip(info.partitions or (), states, positions, strict=True):
                if each.end:
                    recorder.end(state, "ok", end=each.end)
                else:
                    recorder.end(state, "fail", error="no leader answered")
                kept = f"group:{GROUP}" if len(partitions) == 1 else f"group:{GROUP}/{each.partition}"
                if kept in marks:
                    recorder.end(position, "ok", offset=marks[kept] + 1)
                else:
                    recorder.end(position, "fail", error="no leader answered, or there is no group")


def _by_partition(samples: Iterable[hawser.Sample]) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}
    for sample in samples:
        found.setdefault(sample.partition, []).append((sample.offset, bytes(sample).decode()))
    return found


def note_taken(recorder: Recorder, samples: Iterable[hawser.Sample], process: str | None = None) -> None:
    """A member of the group was given these."""
    for partition, records in _by_partition(samples).items():
        taken = recorder.invoke("take", log_of(partition), process, group=GROUP)
        recorder.end(taken, "ok", records=records)


def _begin_commits(recorder: Recorder, process: str, positions: dict[int, int]) -> list[Event]:
    return [
        recorder.invoke("commit", log_of(partition), process, group=GROUP, offset=position)
        for partition, position in positions.items()
    ]


def _end_commits(recorder: Recorder, begun: list[Event], error: hawser.HawserError | None) -> None:
    for invoked in begun:
        if error is None:
            recorder.end(invoked, "ok")
        else:
            # Of some partitions it may have been carried out.
            recorder.end(invoked, "info", error=str(error)[:300])


def commit_noted(recorder: Recorder, subscription: ClusterSubscription[Any], process: str) -> None:
    """A member of the group commits what it has taken; it may have been replaced meanwhile."""
    begun = _begin_commits(recorder, process, subscription.positions)
    try:
        subscription.commit()
    except hawser.HawserError as error:
        _end_commits(recorder, begun, error)
    else:
        _end_commits(recorder, begun, None)


def member(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Take as a member of the group, and commit what was taken, mostly only after some more."""
    random = Random(name)
    with hawser.connect(url, name=name, session_seconds=SESSION_SECONDS, **PATIENT) as bus:
        subscription = bus.topic(TOPIC).subscribe(group=GROUP, start="earliest")
        assert isinstance(subscription, ClusterSubscription)
        while goes_on:
            note_taken(recorder, subscription.take_many(_MOST_TAKEN, timeout=0.2))
            if random.random() < 0.7:
                continue
            commit_noted(recorder, subscription, name)


def in_a_loop(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Publish, several at a time, and be a member of the group, all in one event loop."""
    asyncio.run(_in_a_loop(url, name, recorder, goes_on))


async def _in_a_loop(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    connected = aio.connect(url, name=name, session_seconds=SESSION_SECONDS, **PATIENT)
    async with connected as bus, asyncio.TaskGroup() as tasks:
        topic: aio.AsyncTopic[Any] = bus.topic(TOPIC)
        tasks.create_task(_publish_in_a_loop(topic, name, recorder, goes_on))
        tasks.create_task(_take_in_a_loop(topic, name, recorder, goes_on))


async def _publish_in_a_loop(
    topic: aio.AsyncTopic[Any], name: str, recorder: Recorder, goes_on: Until
) -> None:
    publisher = topic.publisher()
    publishes = Publishes(recorder, name, _partitions(await topic.info()))

    async def one(value: str) -> bool:
        begun = publishes.begin([value])
        try:
            publishes.succeed(begun, [await publisher.publish(value.encode(), key=value.encode())])
        except hawser.HawserError as error:
            return publishes.fail(begun, error)
        return False

    while goes_on:
        if any(await asyncio.gather(*map(one, publishes.values(_IN_FLIGHT)))):
            publishes.lives += 1
            publisher = topic.publisher()


async def _take_in_a_loop(topic: aio.AsyncTopic[Any], name: str, recorder: Recorder, goes_on: Until) -> None:
    async with topic.subscribe(group=GROUP, start="earliest") as subscription:
        assert isinstance(subscription, ClusterAsyncSubscription)
        while goes_on:
            note_taken(recorder, await subscription.take_many(_MOST_TAKEN, timeout=0.2))
            begun = _begin_commits(recorder, name, subscription.positions)
            try:
                await subscription.commit()
            except hawser.HawserError as error:
                _end_commits(recorder, begun, error)
            else:
                _end_commits(recorder, begun, None)


_ROLES: Final[dict[str, Callable[[str, str, Recorder, Until], None]]] = {
    "write": write,
    "batch": batch,
    "aio": in_a_loop,
    "member": member,
    "read": read,
}


def main() -> None:
    role, url, name, file = sys.argv[1:]
    _ROLES[role](url, name, Recorder(Path(file), name), Until())


if __name__ == "__main__":
    main()
