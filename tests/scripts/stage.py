"""A stage for dialogues: real replicas on simulated disks, real operators, a metadata store in memory, and a
network that is a list of letters. Nothing moves but by the script, and everything that moves is told.

A node `n1` holds the member `n1`; with its second disk it is the member `n1.2`. The store is an actor like
the others: operators reach it by letters, so these can be held and lost too.
"""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from random import Random
from typing import Any

import msgspec

from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.journal.journal import Sync
from hawser.log.journal.storage import StorageFailed
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Command,
    Effect,
    Event,
    Halt,
    Loaded,
    Order,
    Propose,
    Read,
    Receive,
    Refuse,
    Report,
    Send,
    Serve,
    Store,
    Tick,
)
from hawser.log.protocol.metadata import Metadata
from hawser.log.protocol.operator import Operator
from hawser.log.replica import Done, Output, Replica, Retired, Settings
from hawser.log.state.results import Accepted, Trimmed
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import NO_STAMP, Record
from hawser.testing.disk import Fate, SimDisk

from .telling import differences, glance
from .words import message_words, metadata_words, tag, values_of

__all__ = ["Endless", "Host", "Letter", "Stage", "Trouble"]

SHARD = "shard"
STORE = "store"
PATIENCE = 4
# Never told: it would drown the rest.
CHATTER = (m.StatusRequest, m.StatusResponse, m.ReadSnapshotRequest, m.ReadSnapshotResponse)
MOST_DELIVERIES = 3_000

# Two batches fill a segment, and what nobody needs goes soon.
SHORT = Settings(
    JournalSettings(segment_bytes=200, ballast_bytes=4096), checkpoint_entries=3, spare_entries=0
)
LONG = Settings(JournalSettings(segment_bytes=4096, ballast_bytes=4096))


class Trouble(Exception):
    """The script asks for something that cannot be done."""


class Endless(Exception):
    """Letters beget letters without end."""


class Letter(msgspec.Struct, frozen=True):
    """Something on its way."""

    sender: str
    to: str
    message: Any

    def fits(self, link: str, kind: str | None = None, epoch: int | None = None) -> bool:
        """`link` is a->b, with * for anybody, or one name for both ways."""
        first, arrow, second = link.partition("->")
        if arrow:
            there = fnmatchcase(self.sender, first) and fnmatchcase(self.to, second)
        else:
            there = first in (self.sender, self.to)
        if not there or (kind and tag(self.message) != kind):
            return False
        return epoch is None or getattr(self.message, "epoch", None) == epoch

    def __str__(self) -> str:
        return f"{self.sender} to {self.to}: {message_words(self.message)}"


class Host:
    """A node: a disk, and a process on it or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = SimDisk()
        self.disk_number = 1
        self.incarnation = 0
        self.slow = False
        self.replica: Replica | None = None

    @property
    def member(self) -> str:
        return self.name if self.disk_number == 1 else f"{self.name}.{self.disk_number}"


class Stage:
    """Everybody and everything; `told` is what happened and was not yet taken by the script."""

    def __init__(self) -> None:
        self.settings = LONG
        self.hosts: dict[str, Host] = {}
        self.operators: dict[str, Operator] = {}
        self.metadata: Metadata | None = None
        self.flight: list[Letter] = []
        self.history: list[Letter] = []
        self.held: list[str] = []
        self.cut: list[str] = []
        self.hears_all = False
        self.told: list[str] = []
        # Called with the host before a letter reaches it.
        self.on_delivery: Callable[[Host, Letter], None] | None = None

    def tell(self, line: str) -> None:
        self.told.append(line)

    # Who is there.

    def host(self, name: str) -> Host:
        host = self.hosts.get(name.partition(".")[0])
        if host is None:
            raise Trouble(f"there is no node {name}")
        return host

    def running(self, name: str) -> Replica:
        replica = self.host(name).replica
        if replica is None:
            raise Trouble(f"{name} is down")
        return replica

    def operator(self, name: str | None = None) -> tuple[str, Operator]:
        if name is None and self.operators:
            name = next(iter(self.operators))
        if name not in self.operators:
            raise Trouble(f"there is no operator {name or ''}")
        return name, self.operators[name]

    def add_node(self, name: str) -> None:
        self.hosts[name] = Host(name)
        self.start(self.hosts[name])

    def start(self, host: Host) -> None:
        """Run a process on what the disk has."""
        host.incarnation += 1
        if host.disk.names():
            host.replica = Replica.open(host.disk, host.incarnation, self.settings)
        else:
            host.replica = Replica.create(host.disk, SHARD, host.member, host.incarnation, self.settings)

    def stop(self, host: Host, power_loss: bool = False) -> None:
        """End the process; without power, what was not synced is gone."""
        host.replica = None
        if power_loss:
            host.disk.crash_with([Fate.LOST] * host.disk.pending(), Random(0))

    # Letters.

    def send(self, sender: str, dead_letters: list[Letter]) -> None:
        """Put them on their way and tell of them, a message to many in one line."""
        for letter in dead_letters:
            routine = self._is_routine(letter)
            self.history.append(letter)
            if not any(letter.fits(link) for link in self.cut):
                self.flight.append(letter)
            if routine:
                dead_letters = [each for each in dead_letters if each is not letter]
        while dead_letters:
            message = dead_letters[0].message
            names = [each.to for each in dead_letters if each.message == message]
            dead_letters = [each for each in dead_letters if each.message != message]
            self.tell(f"{sender} to {', '.join(names)}: {message_words(message)}")

    def _is_routine(self, letter: Letter) -> bool:
        """What goes to and fro all the time, and would drown the rest."""
        message = letter.message
        if not isinstance(message, m.Message) or isinstance(message, CHATTER):
            return True
        if self.hears_all:
            return False
        if isinstance(message, m.AddEntriesResponse):
            return letter in self.history
        empty = isinstance(message, m.AddEntriesRequest) and not message.entries
        return empty or isinstance(message, m.HeartbeatRequest | m.HeartbeatResponse)

    def deliver(self, letter: Letter) -> None:
        """It arrives; whoever is not there does not hear it."""
        if letter.to == STORE:
            self._ask_store(letter)
        elif letter.to in self.operators:
            event = letter.message if letter.sender == STORE else Receive(letter.sender, letter.message)
            self.step_operator(letter.to, event)
        elif letter.to.partition(".")[0] in self.hosts:
            self._deliver_to_node(letter)

    def _deliver_to_node(self, letter: Letter) -> None:
        host = self.host(letter.to)
        replica = host.replica
        if replica is not None and replica.member == letter.to and replica.halted is None:
            if self.on_delivery is not None:
                self.on_delivery(host, letter)
            self.step(host, Receive(letter.sender, letter.message))
        elif isinstance(letter.message, m.RetireRequest) and (replica is None or host.member != letter.to):
            # The disk is gone, and with it everything that was to be deleted.
            self.send(letter.to, [Letter(letter.to, letter.sender, m.RetireResponse(letter.message.epoch))])

    def deliver_all(self) -> None:
        """Until nothing moves but what is held."""
        for _ in range(MOST_DELIVERIES):
            letter = next((each for each in self.flight if not self._is_held(each)), None)
            if letter is None:
                return
            self.flight.remove(letter)
            self.deliver(letter)
        raise Endless("they never stop talking")

    def _is_held(self, letter: Letter) -> bool:
        return any(letter.fits(link) for link in self.held)

    def take(self, link: str, kind: str | None, which: str | None = None) -> list[Letter]:
        """Out of the air: all that fit, or the `first` or `last` of them."""
        taken = [letter for letter in self.flight if letter.fits(link, kind)]
        if not taken:
            raise Trouble(f"nothing is on its way: {link} {kind or ''}")
        if which is not None:
            taken = taken[:1] if which == "first" else taken[-1:]
        self.flight = [letter for letter in self.flight if not any(letter is each for each in taken)]
        return taken

    # Nodes.

    def step(self, host: Host, event: Event) -> None:
        replica = host.replica
        assert replica is not None
        before = glance(replica)
        outputs = list(replica.step(event))
        if not host.slow:
            while replica.sync_wanted:
                outputs += self._sync(replica, replica.begin_sync())
        self._carry_out(host, replica, before, outputs)

    def _sync(self, replica: Replica, sync: Sync) -> list[Output]:
        try:
            sync.run()
        except StorageFailed as failure:
            return replica.sync_failed(str(failure))
        return replica.finish_sync(sync)

    def sync(self, host: Host) -> None:
        """What a slow disk has waiting gets there."""
        replica = host.replica
        if replica is None or not replica.sync_wanted:
            raise Trouble(f"{host.name} has nothing to sync")
        before = glance(replica)
        outputs = self._sync(replica, replica.begin_sync())
        self.tell(f"{replica.member} has {replica.node.epochs.id_at(replica.node.synced)} on disk")
        self._carry_out(host, replica, before, outputs)

    def _carry_out(self, host: Host, replica: Replica, before: Any, outputs: Iterable[Output]) -> None:
        if replica.halted is None:
            for fact in differences(replica, before):
                self.tell(fact)
        for output in outputs:
            if isinstance(output, Halt):
                self.tell(f"{replica.member} halts: {output.reason}")
            elif isinstance(output, Retired):
                self.tell(f"{replica.member} deletes everything")
                host.replica = None
        dead_letters = [
            Letter(replica.member, each.to, each.message) for each in outputs if isinstance(each, Send)
        ]
        self.send(replica.member, dead_letters)
        for output in outputs:
            if isinstance(output, Done | Serve | Refuse):
                self._answer(replica, output)

    def _answer(self, replica: Replica, output: Done | Serve | Refuse) -> None:
        if isinstance(output, Serve):
            self.tell(f"client: {output.tag} at {replica.member} sees {self.records(replica)}")
        elif isinstance(output, Refuse):
            self.tell(f"client: {output.tag} is refused by {replica.member}, {output.reason}")
        elif isinstance(output.result, Accepted):
            self.tell(f"client: {output.tag} is record {output.result.first_offset}")
        elif isinstance(output.result, Trimmed):
            self.tell(f"client: records from {output.result.start} on are kept")
        else:
            self.tell(f"client: {output.tag} is {output.result}")

    def records(self, replica: Replica) -> str:
        """What can be read there."""
        found = replica.read(replica.machine.part(Topic).start, 1 << 20)
        assert isinstance(found, list)
        values = [value for _, entry in found for value in values_of(entry)]
        return ", ".join(values) or "nothing"

    def propose(self, host: Host, values: Iterable[str], size: int = 0) -> None:
        commands = tuple(
            Command(
                Kind.BATCH, bytes(Batch.of([Record(each.ljust(size, ".").encode())], NO_STAMP).data), each
            )
            for each in values
        )
        self.step(host, Propose(commands))

    def read(self, host: Host) -> None:
        self.step(host, Read("a read"))

    # Operators and their store.

    def add_operator(self, name: str) -> None:
        self.operators[name] = Operator(name, PATIENCE)

    def step_operator(self, name: str, event: Event | Order) -> None:
        effects: list[Effect] = self.operators[name].step(event)
        dead_letters: list[Letter] = []
        for effect in effects:
            if isinstance(effect, Report):
                self.tell(f"{name}: {effect.tag} is {'done' if effect.done else 'not done'}, {effect.text}")
            elif isinstance(effect, Send):
                dead_letters.append(Letter(name, effect.to, effect.message))
            else:
                dead_letters.append(Letter(name, STORE, effect))
        self.send(name, dead_letters)

    def _ask_store(self, letter: Letter) -> None:
        assert self.metadata is not None
        if isinstance(letter.message, Store):
            wanted = letter.message.metadata
            if wanted.version == self.metadata.version + 1:
                self.metadata = wanted
                self.tell(f"store: {letter.sender} wrote {wanted.version}: {metadata_words(wanted)}")
            elif wanted != self.metadata:
                self.tell(
                    f"store: {letter.sender} is too late with {wanted.version}: {metadata_words(wanted)}"
                )
        self.send(STORE, [Letter(STORE, letter.sender, Loaded(self.metadata))])

    # Time.

    def tick(self, name: str) -> None:
        if name in self.operators:
            self.step_operator(name, Tick())
        elif self.host(name).replica is not None:
            self.step(self.host(name), Tick())

    def wait(self) -> None:
        """Everybody's clock ticks, and every letter that is not held arrives."""
        for name in (*self.hosts, *self.operators):
            self.tick(name)
        self.deliver_all()
