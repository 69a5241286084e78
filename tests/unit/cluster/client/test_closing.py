"""A client that closes takes the time-out of a call and a second, though no node answers any more."""

import asyncio
import selectors
from typing import Any

from hawser.cluster.client.client import Client
from hawser.cluster.client.queue.acknowledger import HeldMessage
from hawser.cluster.client.queue.session import QueueSession
from hawser.cluster.client.settings import ClientSettings
from hawser.errors import Closed, OutcomeUnknown, Unavailable
from hawser.transaction.xa.table import Call
from hawser.xa import Xid

TIMEOUT = 3.0
# A second to leave, and what closing the links takes at least.
LEAVING = 1.0 + 0.1


class Clock(selectors.DefaultSelector):
    """Waiting takes no time: the clock of the loop goes on instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "this would wait for ever"
            self.now += max(timeout, 0.0)
        return found


class SilentLink:
    """To a node that stands still."""

    address = "n1"

    async def ask(self, body: bytes, timeout_seconds: float) -> bytes:
        await asyncio.sleep(3600)
        raise AssertionError("no caller waits for so long")


class Stalled:
    """A queue into which messages are still put, and a session that has accepted a message and holds more."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.router.leader_link = lambda shard: SilentLink()  # type: ignore[assignment,return-value]
        self.queue_session = QueueSession(client.router, "q", "q@1/0", 0, "name", lambda *each: each)

    async def use(self) -> list[asyncio.Task[Any]]:
        accepting = asyncio.ensure_future(self.queue_session.settle([HeldMessage(1, 1, 0, 5)], "accept"))
        getting = asyncio.ensure_future(self.queue_session.get(1, None))
        await asyncio.sleep(0.01)
        return [accepting, getting]

    async def flush(self) -> None:
        await asyncio.sleep(self.client.settings.timeout)

    def end(self) -> None:
        self.queue_session.end()

    async def close(self) -> None:
        await self.queue_session.close()


class StalledBranch:
    """The client still works in it."""

    is_suspended = False

    def end(self) -> None:
        """Nothing is staged."""


def test_the_end_of_a_branch_is_asked_for_once() -> None:
    """Also if an event loop ends the transactions before it closes the client."""
    asked = []

    async def end(xid: Xid, call: Call) -> None:
        asked.append(xid)
        raise Unavailable("no node answers")

    async def close() -> None:
        client = Client([], "name", ClientSettings(timeout=TIMEOUT))
        resource: Any = client.resource
        resource.end, resource._branches = end, {Xid(1, b"g", b"b"): StalledBranch()}
        await client.end_transactions()
        await client.close()

    asyncio.run(close())
    assert asked == [Xid(1, b"g", b"b")]


def test_closing_takes_the_time_out_and_a_second() -> None:
    async def close() -> float:
        loop = asyncio.get_running_loop()
        client = Client([], "name", ClientSettings(timeout=TIMEOUT))
        stalled: Any = Stalled(client)
        client._handles.add(stalled)
        calls = await stalled.use()
        began = loop.time()
        await client.close()
        seconds = loop.time() - began
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in ended] == [OutcomeUnknown, Closed]
        return seconds

    clock = Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    try:
        seconds = loop.run_until_complete(close())
    finally:
        loop.close()
    assert TIMEOUT <= seconds <= TIMEOUT + LEAVING + 0.01
