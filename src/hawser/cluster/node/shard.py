"""One shard on one node: drives a replica with its disk, in the event loop.

The shard carries out the outputs of the replica: it routes messages, runs syncs in threads, and settles the
tags of requests. Publishes that arrive in one turn of the loop are proposed together; entries that arrive
during a sync are synced together.

    open --step that waits for the disk--> stepping --step ends--> open
    open, stepping --replica halts or is retired, or close()--> closed

While stepping, as for a checkpoint (`disk_steps.py`), other events and fetches are held back in order, and
operators get the report from before the step. A closed shard refuses its tags with NOT_LEADER. During a term,
the shard has a transaction service, and a queue delivery once the queue's settings are known; both end with
the term.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hawser.cluster.disk import Disk, DiskSync
from hawser.cluster.node.clock_quorum import Standing
from hawser.cluster.node.disk_steps import DiskSteps
from hawser.cluster.node.group_sessions import GroupSessions
from hawser.cluster.node.maintenance import Maintenance, Now
from hawser.cluster.node.queue.delivery import QueueDelivery
from hawser.cluster.node.refusals import refusal
from hawser.cluster.node.retention import Retention
from hawser.cluster.node.sync_pool import SyncPool
from hawser.cluster.node.transaction.context import NodeServices
from hawser.cluster.node.transaction.service import TransactionService
from hawser.cluster.shard_map import Resident, node_of
from hawser.cluster.wire import (
    Batches,
    Code,
    Executed,
    Failed,
    GroupEntry,
    GroupState,
    Inspect,
    Inspected,
    KeepAlive,
    Looked,
    QueueLook,
    ShardReport,
    TransactionLook,
    TransactionsSeen,
)
from hawser.log.clock import LogClock
from hawser.log.entry import HEADER_BYTES, Kind
from hawser.log.journal.journal import Sync
from hawser.log.journal.storage import StorageRefused
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Command,
    Event,
    Halt,
    Propose,
    Read,
    Reason,
    Receive,
    Refuse,
    Send,
    Serve,
    Tick,
)
from hawser.log.replica import Done, Output, Replica, Retired
from hawser.log.state.commands import GroupLeave, encode_command
from hawser.log.state.groups import Groups
from hawser.log.state.log_time import LogTime
from hawser.log.state.producers import Producers
from hawser.log.state.queue import Queue
from hawser.log.state.results import OutOfRange, encode_result
from hawser.log.state.terms import Terms
from hawser.log.state.topic import Topic
from hawser.record.batch import Header

__all__ = ["Shard"]

# The most bytes that one step appends and sends, unless a single command has more.
_MOST_PROPOSED_BYTES = 4 << 20
# The most events held back while a step waits for the disk; further messages of nodes are dropped, and sent
# again.
_MOST_HELD = 1000

_log = logging.getLogger("hawser.cluster.node")


class Shard:
    """A hosted replica. `route(shard, to, message)` sends a message. `gone(shard, disk_lost)` is called when
    the replica was retired or its disk failed. `services` are for its transactions."""

    def __init__(
        self,
        name: str,
        replica: Replica,
        disk: Disk,
        sync_pool: SyncPool,
        disk_steps: DiskSteps,
        route: Callable[[str, str, m.Message], None],
        gone: Callable[["Shard", bool], None],
        services: NodeServices,
    ) -> None:
        self.name = name
        self.member = replica.member
        self.replica = replica
        # Cached until the next event.
        self._report: ShardReport | None = None
        self._is_restless: bool | None = None
        self._disk = disk
        self._sync_pool = sync_pool
        self._disk_steps = disk_steps
        self._route = route
        self._gone = gone
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._proposals: list[Command] = []
        self._flush_scheduled = False
        self._waiters: dict[asyncio.Future[None], int] = {}
        # The end of the topic when the waiting fetches were checked last.
        self._woken_at = 0
        self._applied = replica.machine.applied
        self._is_syncing = False
        # While stepping: the events to handle afterwards, and the future of the step's end.
        self._held: deque[Callable[[], None]] = deque()
        self._step_end: asyncio.Future[None] | None = None
        self._is_retiring = self._holds_tick = False
        self._last_sync: asyncio.Future[tuple[Sync, Exception | None]] | None = None
        self._closed = False
        self._maintenance: Maintenance | None = None
        self._log_clock = LogClock(replica.machine.part(LogTime), services.clocks.boot_ns())
        self._sessions = GroupSessions(self._groups, self._drop_member)
        self._delivery: QueueDelivery | None = None
        self._transactions: TransactionService | None = None

    @property
    def leads(self) -> bool:
        return self.replica.node.leadership is not None

    @property
    def is_retiring(self) -> bool:
        return self._step_end is not None and self._is_retiring

    @property
    def restless(self) -> bool:
        if self._is_restless is None:
            self._is_restless = self.replica.node.restless
        return self._is_restless

    @property
    def report(self) -> ShardReport:
        if self._report is None:
            status = m.encode(self.replica.node.status())
            self._report = ShardReport(self.member, status, self.replica.halted)
        return self._report

    # Events.

    def receive(self, sender: str, message: m.Message) -> None:
        self._step(Receive(sender, message))

    def tick(self) -> None:
        if self._step_end is None:
            self._step(Tick())
        elif not self._holds_tick:
            # One held tick is enough; without any, a busy shard would make no checkpoints.
            self._holds_tick = True
            self._held.append(self._held_tick)
        if self.leads:
            self._sessions.tick()
        else:
            self._sessions.forget()

    def _held_tick(self) -> None:
        self._holds_tick = False
        self._step(Tick())

    def tick_queue(self) -> bool:
        """Called at every tick, also while the shard rests. Whether there are dead letters to forward."""
        if self._delivery is None or self._step_end is not None:
            return False
        self._delivery.tick()
        return self._delivery.has_dead_letters

    def _step(self, event: Event) -> None:
        if self._closed:
            self._turn_away(event)
        elif self._step_end is not None:
            if type(event) is not Receive or len(self._held) < _MOST_HELD:
                self._held.append(partial(self._step, event))
        elif self.replica.waits_for_disk(event):
            self._step_aside(event)
        else:
            self._carry_out(self.replica.step(event))

    def _step_aside(self, event: Event) -> None:
        # The report from before the step: what the step changes is not durable until it ends.
        self._report, self._is_restless = self.report, self.restless
        self._is_retiring = isinstance(event, Receive) and isinstance(event.message, m.RetireRequest)
        self._step_end = self._loop.create_future()
        self._disk_steps.begin(self._disk, partial(self.replica.step, event), self._stepped)

    def _stepped(self, outputs: list[Output], failure: BaseException | None) -> None:
        ended, self._step_end = self._step_end, None
        _settle(ended, None)
        self._held.appendleft(partial(self._finish_step, outputs, failure))
        while self._held and self._step_end is None:
            try:
                self._held.popleft()()
            except Exception:
                # The other held events still run: each may have a caller.
                _log.exception("shard %s: an event that a step had held back failed", self.name)

    def _finish_step(self, outputs: list[Output], failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        if not self._closed:
            self._carry_out(outputs)
            return
        for output in outputs:
            if isinstance(output, Done | Serve | Refuse):
                self._answer(output)
            elif isinstance(output, Halt):
                _log.error("shard %s halted while it was closed: %s", self.name, output.reason)

    def _turn_away(self, event: Event) -> None:
        tags = [each.tag for each in event.commands] if isinstance(event, Propose) else []
        for tag in [event.tag] if isinstance(event, Read) else tags:
            _settle(tag, refusal(Reason.NOT_LEADER))

    def _carry_out(self, outputs: list[Output]) -> None:
        self._report = self._is_restless = None
        is_gone = disk_lost = False
        for output in outputs:
            if isinstance(output, Send):
                self._route(self.name, output.to, output.message)
            elif isinstance(output, Done | Serve | Refuse):
                self._answer(output)
            elif isinstance(output, Halt):
                _log.error("shard %s halted: %s", self.name, output.reason, exc_info=self.replica.failure)
                is_gone = disk_lost = disk_lost or output.disk_lost
            else:
                assert isinstance(output, Retired), output
                is_gone = True
        if is_gone:
            # Tags in flight have been settled; held events are refused.
            self._closed = True
            self._gone(self, disk_lost)
            return
        if not self._is_syncing and self.replica.sync_wanted:
            self._begin_sync()
        if self.replica.machine.applied != self._applied:
            self._applied = self.replica.machine.applied
            clocks = self._services.clocks
            self._log_clock.saw(self.replica.machine.part(LogTime), clocks.boot_ns, clocks.walls_ns)
            self._wake()
            self._sessions.applied()
            if self._delivery is not None:
                self._delivery.wake()
            if self._transactions is not None:
                self._transactions.applied()
        if self._delivery is not None:
            self._end_delivery()
        self._renew_transactions()

    def _answer(self, output: Done | Serve | Refuse) -> None:
        """Settles a tag. An error in one tag must not affect the others."""
        result: object = None
        if isinstance(output, Done):
            result = output.result
        elif isinstance(output, Refuse):
            result = refusal(output.reason)
        try:
            _settle(output.tag, result)
        except Exception:
            _log.exception("shard %s: the result of a request could not be delivered", self.name)

    # The disk.

    def _begin_sync(self) -> None:
        sync = self.replica.begin_sync()
        self._is_syncing = True
        self._run_sync(sync, partial(self._end_sync, sync))

    def _run_sync(self, sync: Sync, ended: Callable[[Exception | None], None]) -> None:
        """Calls `ended` later in any case, and without an error only if everything is on disk."""
        try:
            files = self._disk.begin_sync(sync.names)
        except Exception as error:
            self._loop.call_soon(ended, error)
        else:
            self._sync_pool.begin(files.descriptors, partial(self._synced, files, ended))

    def _synced(
        self, files: DiskSync, ended: Callable[[Exception | None], None], error: int, seconds: float
    ) -> None:
        failure: Exception | None = None
        try:
            self._disk.end_sync(files, error, seconds)
        except Exception as raised:
            failure = raised
        ended(failure)

    def _end_sync(self, sync: Sync, error: Exception | None) -> None:
        if self._step_end is not None:
            self._held.append(partial(self._end_sync, sync, error))
            return
        self._is_syncing = False
        if self._closed:
            # Tags were settled at the close; `close` continues with this sync.
            _settle(self._last_sync, (sync, error))
        elif error is not None:
            self._carry_out(self.replica.sync_failed(str(error), not isinstance(error, StorageRefused)))
        else:
            self._carry_out(self.replica.finish_sync(sync))

    # Writes.

    async def execute(self, kind: int, payload: bytes) -> Executed | Failed:
        """Answers when the entry is committed and applied here."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.propose(kind, payload, future)
        result = await future
        return result if isinstance(result, Failed) else Executed(encode_result(result))

    def propose(self, kind: int, payload: bytes, tag: Any = None, label: bytes = b"") -> None:
        """Writes an entry. `tag`, a future or an object like one, gets the result once the entry is committed
        and applied here, or the refusal. An entry with a label belongs to a transaction."""
        self._proposals.append(Command(kind, payload, tag, transaction=label))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Proposes the waiting commands, as many as one turn of the loop can take; the rest follow in the
        next turn."""
        count = size = 0
        while count < len(self._proposals) and size < _MOST_PROPOSED_BYTES:
            size += len(self._proposals[count].payload)
            count += 1
        commands, self._proposals = tuple(self._proposals[:count]), self._proposals[count:]
        self._flush_scheduled = bool(self._proposals)
        if self._flush_scheduled:
            self._loop.call_soon(self._flush)
        self._step(Propose(commands))

    # Reads.

    async def fetch(self, offset: int, max_bytes: int, wait_seconds: float, term: int) -> Batches | Failed:
        """Committed batches from `offset` on, behind a record of `term`; none if none arrived in time."""
        topic = self.replica.machine.part(Topic)
        if offset == topic.end and wait_seconds > 0:
            await self._wait_beyond(offset, wait_seconds)
        if self._step_end is None:
            return self._fetched(offset, max_bytes, term)
        answer: asyncio.Future[Batches | Failed] = self._loop.create_future()
        # Before the other held events, which may contain more steps that wait.
        self._held.appendleft(partial(self._answer_fetch, answer, (offset, max_bytes, term)))
        return await answer

    def _answer_fetch(self, answer: "asyncio.Future[Any]", wanted: tuple[int, int, int]) -> None:
        if not answer.done():
            try:
                answer.set_result(self._fetched(*wanted))
            except Exception as error:
                answer.set_exception(error)

    def _fetched(self, offset: int, max_bytes: int, term: int) -> Batches | Failed:
        topic, terms = self.replica.machine.part(Topic), self.replica.machine.part(Terms).runs
        found = self.replica.read(offset, max_bytes) if not self._closed else OutOfRange(0, 0)
        if isinstance(found, OutOfRange):
            text = f"offset {offset} is out of range: the partition has {found.start} up to {found.end}"
            ahead = offset > found.end
            return Failed(Code.OUT_OF_RANGE, text, ahead, start=found.start, end=found.end)
        if term and terms.at(offset - 1) not in (0, term):
            return Failed(Code.OTHER_LOG, f"record {offset - 1} is another one here", True)
        # Not copied here, but at most when the answer is sent.
        batches = tuple((first, memoryview(entry.payload)) for first, entry in found)
        return Batches(batches, topic.start, topic.end, terms.between(offset - 1, topic.end))

    async def _wait_beyond(self, offset: int, seconds: float) -> None:
        """Returns when there is a record at `offset`, or the time is over."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters[future] = offset
        timer = self._loop.call_later(seconds, _settle, future, None)
        try:
            await future
        finally:
            timer.cancel()
            self._waiters.pop(future, None)

    def _wake(self) -> None:
        """Ends the waiting of fetches for which there are records now."""
        end = self.replica.machine.part(Topic).end
        if end == self._woken_at:
            # Every waiting fetch arrived when the topic ended here.
            return
        self._woken_at = end
        for future in [each for each, offset in self._waiters.items() if offset < end]:
            del self._waiters[future]
            _settle(future, None)

    async def inspect(self, request: Inspect) -> Inspected | Failed:
        refused = await self._newest()
        if refused is not None:
            return refused
        topic, messages = self.replica.machine.part(Topic), self.replica.machine.part(Queue).messages
        at = None if request.at_ns is None else topic.at_time(request.at_ns)
        groups = {}
        if request.groups:
            groups = {
                name: GroupEntry(each.generation, each.position, each.members)
                for name, each in self._groups()
            }
        newest = None
        if request.producer is not None:
            newest = self.replica.machine.part(Producers).newest(request.producer)
        bounds, terms = messages if request.queue else topic, self.replica.machine.part(Terms).runs
        runs = () if request.terms_from is None else terms.between(request.terms_from, topic.end)
        return Inspected(bounds.start, bounds.end, at, groups, newest, runs)

    def read(self, tag: Any) -> None:
        """Settles `tag` with None once the state applied here is the newest, or with the reason why that is
        not known."""
        self._step(Read(tag))

    async def _newest(self) -> Failed | None:
        future: asyncio.Future[Failed | None] = self._loop.create_future()
        self.read(future)
        return await future

    # The queue.

    def put(self, header: Header, batch: bytes, tag: Any) -> None:
        """As `propose`, but does not write what the queue would refuse."""
        leading, machine = self.replica.node.leadership, self.replica.machine
        verdict = None
        if leading is not None and leading.ready:
            verdict = machine.part(Queue).judge(header, HEADER_BYTES + len(batch), machine.part(Producers))
        if verdict is None:
            self.propose(Kind.QUEUE_PUT, batch, tag)
        else:
            _settle(tag, verdict)

    def delivery(self, queue: Resident | None) -> QueueDelivery | None:
        """The delivery of the queue on this shard; None until this node leads it and is ready."""
        self._end_delivery()
        leading = self.replica.node.leadership
        if self._delivery is None and queue is not None:
            is_over = self.replica.halted is not None or self._closed
            if leading is not None and leading.ready and not is_over:
                self._delivery = QueueDelivery(self, queue.name, leading.since, queue.entry.settings)
        return self._delivery

    def _end_delivery(self) -> None:
        """Ends the delivery with the term. The next leader starts without its claims."""
        leading, delivery = self.replica.node.leadership, self._delivery
        if delivery is not None and (
            leading is None or self.replica.halted or leading.since != delivery.epoch
        ):
            self._delivery = None
            delivery.close(refusal(Reason.NOT_LEADER))

    @property
    def current_delivery(self) -> QueueDelivery | None:
        """The delivery of the queue on this shard, if one was started."""
        return self._delivery

    async def look(self, queue: Resident | None, request: QueueLook) -> Looked | Failed:
        refused = await self._newest()
        delivery = self.delivery(queue)
        if refused is not None or delivery is None:
            return refused or refusal(Reason.BUSY)
        return delivery.look(request)

    # Transactions.

    @property
    def transactions(self) -> TransactionService | None:
        """The transaction service; None until this node leads and is ready."""
        return self._transactions

    def _renew_transactions(self) -> None:
        """Opens the transaction service with the term, and closes it with the term."""
        leading, transactions = self.replica.node.leadership, self._transactions
        is_over = self.replica.halted is not None or self._closed
        if transactions is not None and (is_over or leading is None or leading.since != transactions.epoch):
            self._transactions = None
            transactions.close()
        if self._transactions is None and leading is not None and leading.ready and not is_over:
            self._transactions = TransactionService(self, leading.since, self._services)

    def tick_transactions(self) -> None:
        """Called periodically, also while the shard rests."""
        if self._transactions is not None and self._step_end is None:
            self._transactions.tick()

    async def transactions_now(self, request: TransactionLook) -> TransactionsSeen | Failed:
        refused = await self._newest()
        if refused is not None or self._transactions is None:
            return refused or refusal(Reason.BUSY)
        return self._transactions.look(request)

    # Groups.

    async def keep_alive(self, request: KeepAlive) -> GroupState | Failed:
        """Answers when the group has changed for the member, or its time is over."""
        leading = self.replica.node.leadership
        if leading is None or not leading.ready:
            return refusal(Reason.NOT_LEADER)
        answer = await self._sessions.keep_alive(request)
        return answer if self.leads else refusal(Reason.NOT_LEADER)

    def _groups(self) -> Groups:
        return self.replica.machine.part(Groups)

    def _drop_member(self, group: str, member: str) -> None:
        _log.info("shard %s: %s was silent for too long and leaves group %s", self.name, member, group)
        self.propose(Kind.GROUP_LEAVE, encode_command(GroupLeave(group, member)))

    # Retention.

    def retain(self, retention: Retention | None, is_needed: Callable[[bytes], bool], learned: float) -> None:
        """Proposes entries that trim old records, forget idle producers, and so on. Without a `retention`
        there is nothing to maintain. The complete map arrived last at `learned`."""
        if not self.leads or retention is None:
            self._maintenance = None
            return
        if self._maintenance is None:
            self._maintenance = Maintenance(self._services.limit)
        for kind, payload in self._maintenance.due(self.replica, retention, is_needed, learned, self._now()):
            self.propose(kind, payload)

    def standing(self) -> Standing:
        leading = self.replica.node.leadership
        if leading is None:
            return Standing(None)
        return self._services.clocks.among({node_of(member) for member in leading.members})

    def _now(self) -> Now | None:
        """None while the clock of this node is not confirmed."""
        wall_ns, log_time = self.standing().confirmed_ns, self.replica.machine.part(LogTime)
        if wall_ns is None:
            return None
        return Now(self._log_clock.now_ns(log_time, self._services.clocks.boot_ns(), wall_ns), wall_ns)

    # The end.

    async def close(self) -> None:
        """Stops the shard: pending requests have an unknown outcome, and everything written is synced."""
        self._closed = True
        for future in list(self._waiters):
            _settle(future, None)
        if self._delivery is not None:
            self._delivery.close(refusal(Reason.NOT_LEADER))
            self._delivery = None
        self._renew_transactions()
        if self._is_syncing:
            self._last_sync = self._loop.create_future()
        if self._step_end is not None:
            await asyncio.wait([self._step_end])
        try:
            await self._settle_journal()
        except Exception as error:
            _log.error("shard %s is closed, and its last entries may not be on disk: %s", self.name, error)
        finally:
            self._disk.close()

    async def _settle_journal(self) -> None:
        """Syncs everything, after the sync that is in flight."""
        journal = self.replica.journal
        if self._last_sync is not None:
            sync, error = await self._last_sync
            if error is not None:
                raise error
            if self.replica.halted is None:
                journal.end_sync(sync)
        if self.replica.halted is not None:
            return
        for sync in journal.settling():
            ended: asyncio.Future[Exception | None] = self._loop.create_future()
            self._run_sync(sync, partial(_settle, ended))
            error = await ended
            if error is not None:
                raise error


def _settle(future: Any, result: object) -> None:
    if future is not None and not future.done():
        future.set_result(result)
