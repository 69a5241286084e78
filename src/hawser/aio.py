"""The whole API for event loops: the same names, with `async` and `await`."""

from hawser.api.aio import AsyncBus, AsyncLoan, AsyncPublisher, AsyncSubscription, AsyncTopic, connect

__all__ = ["AsyncBus", "AsyncLoan", "AsyncPublisher", "AsyncSubscription", "AsyncTopic", "connect"]
