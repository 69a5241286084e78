"""Consuming on one host: getting messages by iteration, and settling many at once."""

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from hawser.api.message import Disposition, Message, ValueLoop
from hawser.api.queue import Consumer
from hawser.memory import Consumer as NativeConsumer
from hawser.memory import Message as NativeMessage
from hawser.memory import Publisher as NativePublisher
from hawser.memory import Subscriber as NativeSubscriber
from hawser.memory import ValueIteration

__all__ = ["LocalConsumer", "end_waits", "settle_all"]

T = TypeVar("T")

# They are plain C types and cannot be derived.
Message.register(NativeMessage)
ValueLoop.register(ValueIteration)


class LocalConsumer(Consumer[T]):
    """A participant that receives messages of one queue, until closed."""

    def __init__(self, name: str, native: NativeConsumer, prefetch: int) -> None:
        self.name = name
        self._native = native
        self._most = prefetch + 1
        # The loop of all callers of `next`; it must not keep this consumer alive.
        self._own_loop = native.iterate(self._most, native)

    def __iter__(self) -> Iterator[Message]:
        """A loop that costs no Python frame."""
        return cast("Iterator[Message]", self._native.iterate(self._most, self))

    def __next__(self) -> Message:
        return cast("Message", next(self._own_loop))

    def values(self) -> ValueLoop[T]:
        return cast("ValueLoop[T]", self._native.iterate_values(self._most, self))

    def close(self) -> None:
        end_waits(self._native)
        self._native.close()

    def __del__(self) -> None:
        # A message that is still alive keeps the participant alive.
        self._native.give_back_ahead()


def settle_all(consumer: NativeConsumer) -> Callable[[list[Message], Disposition], None]:
    """A function that settles messages which `consumer` received together."""

    calls = {"accept": consumer.accept_many, "release": consumer.release_many, "reject": consumer.reject_many}
    return lambda messages, disposition: calls[disposition](cast("list[NativeMessage]", messages))


def end_waits(participant: NativePublisher | NativeSubscriber | NativeConsumer) -> None:
    """Wake the event loops that wait for it, because it is about to be closed."""
    # While another thread imports the module, no event loop waits.
    waiting = sys.modules.get("hawser.api.local.waiter_thread")
    if waiting is not None and hasattr(waiting, "_waiting"):
        waiting.end(participant)
