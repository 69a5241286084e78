"""The whole API for event loops: the same names, with `async` and `await`."""

from hawser.api.aio.bus import AsyncBus, AsyncLoan, AsyncPublisher, AsyncSubscription, AsyncTopic, connect
from hawser.api.aio.queue import (
    AsyncConsumer,
    AsyncMessage,
    AsyncMessages,
    AsyncQueue,
    AsyncValueLoop,
    AsyncValues,
)
from hawser.api.aio.transaction import AsyncTransaction

__all__ = [
    "AsyncBus",
    "AsyncConsumer",
    "AsyncLoan",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncPublisher",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTopic",
    "AsyncTransaction",
    "AsyncValueLoop",
    "AsyncValues",
    "connect",
]
