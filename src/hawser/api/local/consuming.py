"""Consuming on one host: getting messages by iteration, and settling many at once."""

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from hawser.api.message import Message, Verdict
from hawser.api.queue import Consumer
from hawser.errors import Closed, Fenced, UsageError
from hawser.memory import Consumer as NativeConsumer
from hawser.memory import Message as NativeMessage
from hawser.memory import Publisher as NativePublisher

__all__ = ["LocalConsumer", "end_waits", "settle_all"]

T = TypeVar("T")


class LocalConsumer(Consumer[T]):
    """A participant that gets messages of one queue, until closed."""

    def __init__(self, name: str, native: NativeConsumer, prefetch: int) -> None:
        self.name = name
        self._native = native
        self._most = prefetch + 1
        self._ahead: deque[Message] = deque()
        self._given: Message | None = None
        self._closed = False

    def __next__(self) -> Message:
        self._let_go()
        try:
            self._fill(None)
        except Closed:
            if self._closed:
                raise StopIteration from None
            raise
        return self._give()

    def close(self) -> None:
        self._closed = True
        end_waits(self._native)
        self._give_back_the_rest()
        self._native.close()

    def _fill(self, timeout: float | None) -> int:
        """How many messages are there to be given out; if none was, more are claimed."""
        if not self._ahead:
            self._ahead.extend(cast("list[Message]", self._native.claim_many(self._most, timeout)))
        return len(self._ahead)

    def _let_go(self) -> None:
        """Of the message given out last, if it is still held."""
        given, self._given = self._given, None
        if given is not None:
            with suppress(Fenced):  # then it is somebody else's already
                self._native.release_many([cast("NativeMessage", given)])

    def _give_back_the_rest(self) -> None:
        """What was claimed ahead and never given out was not delivered."""
        rest = cast("list[NativeMessage]", list(self._ahead))
        self._ahead.clear()
        with suppress(Fenced, UsageError):  # in a forked child they are its parent's
            self._native.unclaim_many(rest)

    def _give(self) -> Message:
        given = self._given = self._ahead.popleft()
        return given


def settle_all(consumer: NativeConsumer) -> Callable[[list[Message], Verdict], None]:
    """What settles messages that `consumer` got together."""

    calls = {"accept": consumer.accept_many, "release": consumer.release_many, "reject": consumer.reject_many}
    return lambda messages, verdict: calls[verdict](cast("list[NativeMessage]", messages))


def end_waits(participant: NativePublisher | NativeConsumer) -> None:
    """Tell the event loops that wait for it that it is about to be closed."""
    waiting = sys.modules.get("hawser.api.waiting")
    if waiting is not None:
        waiting.end(participant)
