"""Subscriptions on a cluster: taking what the client has fetched, in any thread."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, TypeVar, cast

from hawser.api.sample import Sample
from hawser.api.subscription import Start, Subscription, check_count, check_start, check_timeout
from hawser.cluster.client.client import TopicHandle
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.sample import FetchedSample
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.cluster.client.subscribe.subscription import Consumer
from hawser.errors import Closed, UsageError

__all__ = ["ClusterSubscription", "check_options", "member_of"]

T = TypeVar("T")
Taken = TypeVar("Taken")

Sample.register(FetchedSample)

_MOST_GROUP_BYTES = 200


def check_options(history: int, start: Start, group: str | None, resume: bool) -> None:
    """UsageError for options that are invalid, or unknown on a cluster."""
    check_start(history, start)
    if resume:
        raise UsageError("positions are kept for groups on a cluster; give group= and call commit()")
    if group is not None and not 0 < len(group) <= _MOST_GROUP_BYTES:
        raise UsageError(f"group={group!r} is not a name of 1 to {_MOST_GROUP_BYTES} characters")


def member_of(consumer: Consumer) -> GroupMember:
    """The member of a group that a subscription is; UsageError without one."""
    if not isinstance(consumer, GroupMember):
        raise UsageError("only a subscription with a group keeps a position; give group= to subscribe()")
    return consumer


class ClusterSubscription(Subscription[T]):
    """Takes from the partitions that the client reads."""

    def __init__(self, topic: TopicHandle, consumer: Consumer, thread: LoopThread) -> None:
        self.name = topic.name
        self._topic = topic
        self._consumer = consumer
        self._thread = thread
        self._closed = False
        # A subscription without references closes itself.
        self._abandon = weakref.finalize(self, topic.abandon, consumer)
        self._abandon.atexit = False

    def take(self, timeout: float | None = None) -> Sample | None:
        return cast("Sample | None", self._take(self._consumer.next_sample, timeout))

    def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        check_count(count, 1)
        found = self._take(lambda: self._consumer.next_samples(count) or None, timeout)
        return cast("list[Sample]", found or [])

    def take_value(self, timeout: float | None = None) -> T | None:
        sample = self.take(timeout)
        return None if sample is None else cast("T", sample.value)

    def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        if not self._consumer.decodes:
            return [sample.value for sample in self.take_many(count, timeout)]
        check_count(count, 1)
        values: list[T] = []
        while len(values) < count:
            try:
                sample = self.take(0 if values else timeout)
                if sample is None:
                    break
                values.append(cast("T", sample.value))
            except Exception as error:
                if not values:
                    raise
                self._consumer.keep_error(error)
                break
        return values

    def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        check_count(count, 1)
        return self._take(lambda: self._consumer.next_batches(count) or None, timeout) or []

    def _take(self, attempt: Callable[[], Taken | None], timeout: float | None) -> Taken | None:
        """The result of `attempt`, which is tried whenever something was fetched, for `timeout` seconds."""
        check_timeout(timeout)
        self._thread.check()
        self._consumer.raise_kept_error()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            found, arrived = self._consumer.take_in_thread(attempt)
            if found is not None or timeout == 0:
                return found
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return None
            self._thread.call(self._consumer.ready(left, arrived))

    @property
    def missed(self) -> int:
        return self._consumer.missed

    @property
    def received(self) -> int:
        return self._consumer.received

    @property
    def position(self) -> int:
        return self._consumer.last_offset

    @property
    def positions(self) -> dict[int, int]:
        """The offset behind the last sample taken, for each partition that this subscription reads."""
        return self._consumer.positions

    @property
    def held(self) -> int:
        return 0

    @property
    def incarnation(self) -> int:
        return 1

    def commit(self) -> None:
        self._thread.check()
        member = member_of(self._consumer)
        member.raise_kept_error()
        self._thread.call(member.commit(member.taken(threading.current_thread())))

    def close(self) -> None:
        if not self._closed:
            self._thread.check_may_close()
            self._closed = True
            if self._thread.is_usable:
                self._thread.call(self._topic.release(self._consumer))

    def values(self) -> Iterator[T]:
        for sample in self:
            yield sample.value

    def __next__(self) -> Sample:
        try:
            sample = self.take()
        except Closed:
            if self._closed:
                raise StopIteration from None
            raise
        assert sample is not None
        return sample

    async def __anext__(self) -> Sample:
        self._consumer.raise_kept_error()
        try:
            while True:
                sample, arrived = self._consumer.take_in_thread(self._consumer.next_sample)
                if sample is not None:
                    return cast("Sample", sample)
                ready = self._consumer.ready(None, arrived)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ready, self._thread.loop))
        except Closed:
            if self._closed:
                raise StopAsyncIteration from None
            raise
