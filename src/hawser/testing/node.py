"""The process of a node in a simulated cluster, and the disk under it.

A process runs one member: the node together with its disk of the day. A process that is killed leaves behind
what it wrote; if the power goes, what was not synced is lost, kept or torn. A disk that is wiped or found to
be damaged is replaced by an empty one with a new number, which is another member.
"""

import itertools
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from hawser.log.journal.errors import Damaged, NotFormatted
from hawser.log.journal.journal import Sync
from hawser.log.journal.storage import StorageFailed
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
from hawser.log.protocol.messages import Member, Message
from hawser.log.queue.dispatcher import Get
from hawser.log.replica import Done, Output, Replica, Retired
from hawser.log.state.results import Accepted, OutOfRange, Rejected
from hawser.log.state.results import Reason as Refusal
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.testing.checks import Violation, reads_are_bounded, repeat_changes_nothing
from hawser.testing.clients import (
    ALL_VALUES,
    Errand,
    Excerpt,
    Failure,
    Inquiry,
    Outcome,
    Reply,
    Request,
    View,
)
from hawser.testing.disk import PowerLoss, SimDisk
from hawser.testing.elsewhere import ForwardedBatch, Forwarding
from hawser.testing.queue_dispatchers import Dispatchers, Ending
from hawser.testing.transaction_service import Chore, TransactionService

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["SimNode"]

TICK: Final = 2_000
SHARD: Final = "shard"
_ALL_BYTES: Final = 1 << 40
_FLIPS: Final = 30
_BAD: Final = Rejected(Refusal.BAD_PAYLOAD)

# What an operator asks; a repeat gets the same answer at once.
_ANSWERED_AT_ONCE: Final = (
    m.FenceRequest,
    m.BecomeLeaderRequest,
    m.AddFollowerRequest,
    m.PrepareReconfigurationRequest,
    m.CommitReconfigurationRequest,
    m.AbortReconfigurationRequest,
    m.StatusRequest,
)
# A process may cut or replace its log on these; what it had on disk need not outlive that.
_CUTTING: Final = (m.TruncateRequest, m.ReadSnapshotResponse, m.RetireRequest)


class SimNode:
    """A host with a disk, on which a process runs, or not."""

    def __init__(self, cluster: "Cluster", name: str, random: Random, room_bytes: int | None = None) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random
        self.incarnation = 0
        self.disk_number = 1
        # How much more than an empty member takes each disk of this host has room for; None if for anything.
        self._room_bytes = room_bytes
        self._capacity_bytes: int | None = None
        self.disk = SimDisk()
        self.replica: Replica | None = None
        self.paused = False
        self.sync_delay_most = cluster.swarm.sync_delay_most
        self._tick_duration = int(TICK * cluster.swarm.slowness ** random.uniform(-1.0, 1.0))
        self._formatted = False
        self._most_values: dict[object, int] = {}
        self._dispatchers = Dispatchers(cluster)
        self._forwarding = Forwarding(cluster, name)
        self.transaction_service = TransactionService(cluster, self)
        self._errands: dict[object, Errand] = {}
        # How often each tag was asked of this process and not answered yet.
        self._asked: Counter[object] = Counter()
        # Whether this process refused something for want of room and has had no more since.
        self._was_full = False
        # What the process was doing when the power went or a sync failed.
        self._interrupted: Event | None = None
        cluster.network.attach(name, self._receive)

    @property
    def member(self) -> Member:
        """The node with its disk of the day."""
        return f"{self.name}.d{self.disk_number}"

    @property
    def is_leading(self) -> bool:
        return self.replica is not None and self.replica.node.leadership is not None

    def describe(self) -> str:
        """Role, epoch, and how far the log, the commit index and the state machine are."""
        if self.replica is None:
            return f"{self.member} down"
        node = self.replica.node
        mark = "!" if self.replica.halted else "~" if self.paused else " "
        role = node.role.upper()[:2]
        return f"{mark}{role}{node.epoch} {node.head} {node.synced} {node.commit} {node.applied}"

    # Life and death.

    def start_if_down(self) -> None:
        if self.replica is None:
            self.start()

    def start(self) -> None:
        """Run a process on what the last one left; a disk that is no good is replaced first."""
        assert self.replica is None
        self.incarnation += 1
        self.paused = False
        try:
            self.disk.fail_sync = False
            self.replica = self._open()
        except PowerLoss:
            self.cluster.probes.count("power lost at the start")
            self.disk.crash(self.random)
            self.cluster.clock.after(1 + int(self.random.random() * 10_000), self.start_if_down)
            return
        self._started(self.replica)

    def _open(self) -> Replica:
        settings = self.cluster.settings
        if not self._formatted:
            return self._format()
        try:
            return Replica.open(self.disk, self.incarnation, settings)
        except (Damaged, NotFormatted) as damage:
            self.cluster.note(f"{self.member}: {damage}")
            if self._was_retiring() and isinstance(damage, NotFormatted):
                self.cluster.probes.count("retired")
            elif self.member in self.cluster.gone:
                self.cluster.probes.count("damaged disk found")
            else:
                raise Violation(12, f"{self.member} is damaged, and nobody damaged it: {damage}") from damage
            self.new_disk()
            return self._format()

    def _was_retiring(self) -> bool:
        """Whether the last process ended while it deleted what it had."""
        event = self._interrupted
        return isinstance(event, Receive) and isinstance(event.message, m.RetireRequest)

    def _format(self) -> Replica:
        """A member on an empty disk; if the power goes meanwhile nobody has heard of it yet."""
        self.disk.wipe()
        replica = Replica.create(self.disk, SHARD, self.member, self.incarnation, self.cluster.settings)
        self._formatted = True
        if self._room_bytes is not None:
            self._capacity_bytes = self._used_bytes() + self._room_bytes
            self.free_disk()
        return replica

    def _started(self, replica: Replica) -> None:
        interrupted, self._interrupted = self._interrupted, None
        cutting = isinstance(interrupted, Receive) and isinstance(interrupted.message, _CUTTING)
        self.cluster.probes.started(replica, self.cluster.judge.watch(replica.member))
        self.cluster.judge.started(replica, self.incarnation, cutting)
        self.cluster.note(f"{self.name} started")
        self.cluster.clock.after(self.cluster.drift(self._tick_duration), self._tick, self.incarnation)

    def stop(self, power_loss: bool) -> None:
        """The process ends; without power, the disk is left with what it made of the unsynced writes."""
        self.replica = None
        self.paused = False
        self._most_values.clear()
        self._dispatchers.forget()
        self._forwarding.forget()
        self.transaction_service.forget()
        self._errands.clear()
        self._asked.clear()
        self._was_full = False
        self.cluster.network.forget(self.name)
        if power_loss:
            self.disk.crash(self.random)
        self.cluster.note(f"{self.name} stopped")

    def pause(self) -> None:
        """The process stands still until it is resumed or killed."""
        self.paused = True
        self.cluster.network.pause(self.name)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.cluster.network.resume(self.name)

    # The disk.

    def new_disk(self) -> None:
        """An empty disk in place of the one there was, which is lost."""
        self.cluster.gone.add(self.member)
        self.disk_number += 1
        self.disk = SimDisk()
        self._formatted = False

    def lose_disk(self) -> None:
        """The process ends, and its disk with it."""
        self.stop(power_loss=True)
        self.new_disk()

    def flip_bits(self) -> bool:
        """Flip bits of something that is surely on disk; False if there is nothing yet. Most of a small
        segment is its header, of which little is ever read; so many bits that a frame is likely to have one.
        They are found when they are read, at the latest when the process starts again."""
        names = self._settled_files()
        if not names:
            return False
        self.cluster.gone.add(self.member)
        name = self.random.choice(names)
        for _ in range(_FLIPS):
            self.disk.flip(self.random, name)
        self.cluster.clock.after(1 + int(self.random.random() * 60_000), self._check_disk, self.member)
        return True

    def _settled_files(self) -> list[str]:
        """Segments that the checkpoint covers as a whole, so that a mark is sure to cover them too."""
        if self.replica is None or self.replica.journal.checkpoint is None:
            return []
        covered = self.replica.journal.checkpoint.index
        segments = [name for name in self.disk.names() if name.startswith("log-")]
        return [
            name
            for name, following in itertools.pairwise(segments)
            if int(following.rpartition("-")[2], 16) - 1 <= covered
        ]

    def _check_disk(self, member: Member) -> None:
        """Restart on a disk with flipped bits. If nothing reads them the disk is replaced all the same: it
        counts as lost, and one more could be one too many."""
        if member != self.member:
            return
        if self.replica is not None:
            self.stop(power_loss=False)
        self.start()
        if member == self.member:
            self.lose_disk()
            self.start()

    def fill_disk(self) -> None:
        """Nothing more can be reserved."""
        self.disk.capacity_bytes = self._used_bytes()

    def _used_bytes(self) -> int:
        return sum(self.disk.size(name) for name in self.disk.names())

    def free_disk(self) -> None:
        """There is room again, as much as this disk has at all."""
        self.disk.capacity_bytes = self._capacity_bytes
        self._was_full = False

    def enlarge_disk(self) -> None:
        """From now on there is always room here."""
        self._room_bytes = self._capacity_bytes = None
        self.free_disk()

    # What the process does.

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.replica is None:
            return
        if not self.paused:
            self._step(Tick())
            self._tick_dispatchers()
            self._tick_transactions()
        self.cluster.clock.after(self.cluster.drift(self._tick_duration), self._tick, incarnation)

    def _receive(self, sender: str, to: str, payload: object) -> None:
        if self.replica is None:
            return
        if isinstance(payload, Request):
            self._serve(payload)
        elif isinstance(payload, Reply):
            delivery_batch = self._forwarding.receive(payload)
            if delivery_batch is not None:
                self.propose(delivery_batch.command())
        elif to == self.member:
            assert isinstance(payload, Message)
            event = Receive(sender, payload)
            if self.random.random() < self.cluster.swarm.repeated_share:
                self._step_twice(event)
            else:
                self._step(event)
        elif isinstance(payload, m.RetireRequest):
            # It is not here any more, which is what was asked for.
            self.cluster.network.send(to, sender, m.RetireResponse(payload.epoch))

    def _tick_dispatchers(self) -> None:
        if self.replica is None:
            return
        try:
            endings = self._dispatchers.tick(self.replica)
            if self.cluster.swarm.forwards:
                self._forwarding.tick(self.replica)
        except Damaged as damage:
            self._ended(Halt(str(damage)))
            return
        for ending in endings:
            self.propose(ending.command())

    def _tick_transactions(self) -> None:
        if self.replica is None:
            return
        try:
            self.transaction_service.tick(self.replica)
        except Damaged as damage:
            self._ended(Halt(str(damage)))

    def propose(self, command: Command) -> None:
        """What this process wants to have in the log, if it still runs."""
        if self.replica is not None:
            self._asked[command.tag] += 1
            self._step(Propose((command,)))

    def _run_errand(self, request: Request, errand: Errand) -> None:
        """Reads go first: what was accepted or decided elsewhere must be known here."""
        assert self.replica is not None
        if isinstance(errand.wanted, Get | Inquiry):
            self._asked[request.tag] += 1
            self._errands[request.tag] = errand
            self._step(Read(request.tag))
            return
        try:
            answer = self._dispatchers.settle(self.replica, errand, request.tag)
        except Damaged as damage:
            self._ended(Halt(str(damage)))
            return
        if isinstance(answer, Ending):
            self.propose(answer.command())
        else:
            self.cluster.network.send(self.name, request.tag[0], Reply(request.tag, answer))

    def _serve(self, request: Request) -> None:
        if request.errand is not None:
            self._run_errand(request, request.errand)
        elif request.commands:
            self._asked.update(command.tag for command in request.commands)
            self.transaction_service.expect(request.commands)
            self._step(Propose(request.commands))
        elif request.offset:
            self._show(request)
        else:
            self._asked[request.tag] += 1
            self._most_values[request.tag] = request.most_values
            self._step(Read(request.tag))

    def _show(self, request: Request) -> None:
        """Answer a read of what is here."""
        replica = self.replica
        assert replica is not None
        topic = replica.machine.part(Topic)
        try:
            values = self._values(request.offset, request.most_values)
        except Damaged as damage:
            self._ended(Halt(str(damage)))
            return
        self.cluster.probes.count("read at a follower", not self.is_leading)
        outcome = Excerpt(replica.machine.applied, request.offset, topic.start, topic.end, values)
        self.cluster.network.send(self.name, request.tag[0], Reply(request.tag, outcome))

    def _step(self, event: Event) -> list[Output]:
        replica = self.replica
        assert replica is not None
        probes = self.cluster.probes
        before, reads, files = probes.before(replica), self.disk.reads, len(self.disk.names())
        try:
            outputs = replica.step(event)
        except PowerLoss:
            self._lose_power(event)
            return []
        reads_are_bounded(self.member, event, self.disk.reads - reads, files + len(outputs))
        probes.stepped(before, replica, event, outputs)
        node = replica.node
        is_request = isinstance(event, Receive) and isinstance(event.message, m.SnapshotRequest)
        if is_request and before.pulling is None and node.promise.installed == node.epoch:
            # It has installed what it was asked to pull.
            repeat_changes_nothing(self.member, event, None, node.pulling)
        if replica.halted is not None and self.disk.fail_sync:
            self._interrupted = event
        self._carry_out(replica, outputs)
        if self.cluster.trace is not None:
            self.cluster.note(f"{self.name}: {event}")
        return outputs

    def _step_twice(self, event: Receive) -> None:
        """A message arrives twice on the heels of itself."""
        first = self._answers(event, self._step(event))
        if self.replica is None or self.replica.halted:
            return
        before = self._fingerprint()
        second = self._answers(event, self._step(event))
        if self.replica is not None:
            repeat_changes_nothing(self.member, event.message, before, self._fingerprint())
            if first and isinstance(event.message, _ANSWERED_AT_ONCE):
                repeat_changes_nothing(self.member, event.message, first, second)

    def _answers(self, event: Receive, outputs: list[Output]) -> list[Output]:
        return [each for each in outputs if isinstance(each, Send) and each.to == event.sender]

    def _fingerprint(self) -> object:
        assert self.replica is not None
        node = self.replica.node
        leading = node.leadership
        return (node.promise, node.role, node.head, node.commit, leading.members if leading else None)

    def _lose_power(self, event: Event) -> None:
        self.cluster.probes.count("power lost within a step")
        self._interrupted = event
        self.stop(power_loss=True)

    def _carry_out(self, replica: Replica, outputs: list[Output]) -> None:
        judge, send = self.cluster.judge, self.cluster.network.send
        if replica.halted is None:
            judge.look(replica)
            self._dispatchers.open(replica)
            self.transaction_service.open(replica)
        end: Halt | Retired | None = None
        for output in outputs:
            if isinstance(output, Send):
                if replica.halted is None:
                    judge.sent(replica, output)
                send(replica.member, output.to, output.message)
            elif isinstance(output, Halt | Retired):
                end = output
            else:
                self._answer(output)
                if self.replica is not replica:
                    return  # it read what was damaged
        if end is not None:
            self._check_silence(replica)
            self._ended(end)
        elif replica.sync_wanted:
            self._begin_sync(replica)

    @property
    def unanswered(self) -> list[object]:
        """Whoever asked this process and has heard nothing."""
        return list(self._asked)

    def _check_silence(self, replica: Replica) -> None:
        """A member that does nothing any more has answered everybody, and goes on to refuse."""
        if self._asked:
            raise Violation(0, f"{self.member} ended, and these have no answer: {self.unanswered}")
        refused = replica.step(Read("late"))
        if [type(output) for output in refused] != [Refuse]:
            raise Violation(0, f"{self.member} ended, and whoever asks gets {refused}")

    def _ended(self, output: Halt | Retired) -> None:
        """The member does nothing any more. Somebody looks after it in a while: after a failed sync it starts
        again on the same disk, otherwise it comes back as a new one."""
        self.cluster.note(f"{self.name}: {output}")
        if isinstance(output, Retired):
            self.cluster.probes.count("retired")
            self.lose_disk()
        elif self.disk.fail_sync:
            self.cluster.probes.count("halted by a failed sync")
            self.stop(power_loss=True)
            self.disk.fail_sync = False
        elif self.member in self.cluster.gone:
            self.cluster.probes.count("halted by damage")
            self.lose_disk()
        else:
            raise Violation(0, f"{self.member} halted: {output.reason}")
        self.cluster.clock.after(1 + int(self.random.random() * 5_000), self.start_if_down)

    def _answer(self, output: Done | Serve | Refuse) -> None:
        tag = output.tag
        self._close(tag)
        if isinstance(tag, Ending | ForwardedBatch):
            tag.resolve()
            tag = tag.tag
        if isinstance(tag, Chore) and isinstance(output, Done) and output.result == _BAD:
            raise Violation(0, f"{self.member} wrote entry {output.index}, which no member accepts")
        if tag is None or isinstance(tag, Chore):
            return
        assert isinstance(tag, tuple)
        outcome: Outcome
        if isinstance(output, Done):
            outcome = output.result
            if self.transaction_service.is_to_wait(tag, outcome):
                return
            if self._was_full and isinstance(outcome, Accepted):
                self._was_full = False
                self.cluster.probes.count("full leader went on")
        elif isinstance(output, Refuse):
            outcome = Failure(output.reason)
            self._was_full = self._was_full or output.reason is Reason.FULL
        else:
            try:
                outcome = self._look(tag)
            except Damaged as damage:
                self._ended(Halt(str(damage)))
                return
        self.cluster.network.send(self.name, tag[0], Reply(tag, outcome))

    def _look(self, tag: object) -> Outcome:
        """What a read sees, now that it is certain to see the newest."""
        assert self.replica is not None
        errand = self._errands.get(tag)
        if errand is not None and isinstance(errand.wanted, Inquiry):
            return self.transaction_service.inquire(self.replica, errand.wanted)
        if errand is not None:
            return self._dispatchers.get(self.replica, errand)
        return self.view(self._most_values.get(tag, 0))

    def _close(self, tag: object) -> None:
        if not self._asked[tag]:
            raise Violation(0, f"{self.member} answered {tag}, which was not asked or is answered already")
        self._asked[tag] -= 1
        if not self._asked[tag]:
            del self._asked[tag]

    def view(self, most_values: int = ALL_VALUES) -> View:
        """What a client that reads here and now gets."""
        replica = self.replica
        assert replica is not None
        topic = replica.machine.part(Topic)
        first = max(topic.start, topic.end - most_values)
        return View(topic.start, topic.end, self._values(first, most_values))

    def _values(self, first: int, most_values: int) -> tuple[bytes, ...]:
        """The values from offset `first` on; none if it is out of range."""
        assert self.replica is not None
        batches = self.replica.read(first, _ALL_BYTES, _ALL_BYTES)
        if isinstance(batches, OutOfRange):
            return ()
        values: list[bytes] = []
        for offset, entry in batches:
            records = list(Batch.read(entry.payload).records())
            values.extend(record.value for record in records[max(0, first - offset) :])
        return tuple(values[:most_values])

    # Syncs take time.

    def _begin_sync(self, replica: Replica) -> None:
        try:
            sync = replica.begin_sync()
        except PowerLoss:
            self._lose_power(Tick())
            return
        delay = 20 + int(self.random.random() * self.sync_delay_most)
        self.cluster.clock.after(delay, self._finish_sync, replica, sync)

    def _finish_sync(self, replica: Replica, sync: Sync) -> None:
        if replica is not self.replica or replica.halted:
            return
        if self.paused:
            self.cluster.clock.after(TICK, self._finish_sync, replica, sync)
            return
        before, reads = self.cluster.probes.before(replica), self.disk.reads
        try:
            sync.run()
            outputs = replica.finish_sync(sync)
        except StorageFailed as failure:
            outputs = replica.sync_failed(str(failure))
        except PowerLoss:
            self._lose_power(Tick())
            return
        reads_are_bounded(self.member, Tick(), self.disk.reads - reads, len(self.disk.names()) + len(outputs))
        self.cluster.probes.stepped(before, replica, Tick(), outputs)
        self._carry_out(replica, outputs)
        if self.cluster.trace is not None:
            self.cluster.note(f"{self.name}: synced {sync.index}")
