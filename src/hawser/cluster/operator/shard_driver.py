"""Drives one shard's operator state machine with the store and the nodes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hawser.cluster.stores.shard_metadata import StoredShard, load_shard, store_shard
from hawser.cluster.stores.store import Store, StoreUnavailable
from hawser.cluster.wire import AdminDone
from hawser.errors import Corrupt
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Effect, Event, Load, Loaded, Order, Receive, Report, Send, Tick
from hawser.log.protocol.events import Store as StoreEffect
from hawser.log.protocol.metadata import Metadata
from hawser.log.protocol.operator import Operator

__all__ = ["ShardDriver"]

_log = logging.getLogger("hawser.cluster.operator")

InThread = Callable[..., Awaitable[StoredShard | None]]


class ShardDriver:
    """Drives an `Operator`. `send(shard, member, message)` sends messages; `changed(driver)` is called for
    every new version of the metadata."""

    def __init__(
        self,
        shard: str,
        operator: Operator,
        store: Store,
        in_thread: InThread,
        send: Callable[[str, str, m.Message], None],
        changed: Callable[["ShardDriver"], None],
    ) -> None:
        self.shard = shard
        self.operator = operator
        self._store = store
        self._in_thread = in_thread
        self._send = send
        self._changed = changed
        # What the store had when it was last read or written; the next write replaces only that.
        self._stored: StoredShard | None = None
        # Whether a store call is in progress; there is one at a time.
        self._asking = False
        self._tasks: set[asyncio.Task[None]] = set()
        # The orders in progress.
        self._waiters: set[asyncio.Future[AdminDone]] = set()
        self._closed = False

    @property
    def metadata(self) -> Metadata | None:
        return self.operator.metadata

    @property
    def has_orders(self) -> bool:
        """Whether an order is in progress or queued."""
        return bool(self._waiters)

    def tick(self) -> None:
        self._step(Tick())

    def receive(self, member: str, message: m.Message) -> None:
        self._step(Receive(member, message))

    def loaded(self, stored: StoredShard) -> None:
        """The store now has this metadata."""
        known = self.operator.metadata
        self._stored = stored
        self._step(Loaded(stored.metadata))
        if known is None or known.version < stored.metadata.version:
            self._changed(self)

    async def order(self, make: Callable[[object], Order]) -> AdminDone:
        """Gives an order, made with a tag, and waits until it is done or fails. `close` fails all orders."""
        if self._closed:
            return self._given_up
        future: asyncio.Future[AdminDone] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            self._step(make(future))
            return await future
        finally:
            self._waiters.discard(future)

    def _step(self, event: Event | Order) -> None:
        for effect in self.operator.step(event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            # The roll call asks every node for all its shards at once.
            if not isinstance(effect.message, m.StatusRequest):
                self._send(self.shard, effect.to, effect.message)
        elif isinstance(effect, Report):
            if isinstance(effect.tag, asyncio.Future) and not effect.tag.done():
                effect.tag.set_result(AdminDone(effect.done, effect.text))
        elif isinstance(effect, StoreEffect):
            self._ask(store_shard, effect.metadata, self._stored)
        else:
            assert isinstance(effect, Load), effect
            self._ask(load_shard)

    def _ask(self, call: Callable[..., StoredShard | None], *arguments: object) -> None:
        """Makes one store call at a time; the state machine asks again at a tick."""
        if not self._asking:
            self._asking = True
            task = asyncio.create_task(self._question(call, arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _question(self, call: Callable[..., StoredShard | None], arguments: tuple[object, ...]) -> None:
        try:
            stored = await self._in_thread(call, self._store, self.shard, *arguments)
        except (Corrupt, StoreUnavailable) as error:
            _log.warning("shard %s: %s", self.shard, error)
            stored = None
        finally:
            self._asking = False
        if stored is not None:
            self.loaded(stored)

    @property
    def _given_up(self) -> AdminDone:
        return AdminDone(False, f"shard {self.shard} is deleted, or its operator stops; ask for the status")

    def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for future in self._waiters:
            if not future.done():
                future.set_result(self._given_up)
