"""Shards, homes, clients and outside coordinators in one thread, from one seed.

Requests and answers lie in a bag, from which they are drawn in any order, some twice, some much later, some
never; now and then nobody reaches one of the shards. Leaders are replaced: the new one has applied the log
from its beginning, or from a snapshot, and knows nothing else. Clients move tokens from queue to queue and
write down in topics what they do; some die. What they intended is known here, and every entry that is applied
is held against it.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.queue.claims import NO_TOKEN, Claims, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import SettlementRefusal, batch_of
from hawser.log.state.commands import QueueLimit, TrimTo, encode_command
from hawser.log.state.groups import Groups
from hawser.log.state.machine import Machine, Saved
from hawser.log.state.part import Part
from hawser.log.state.producers import Producers
from hawser.log.state.queue import MESSAGES, Queue
from hawser.log.state.results import Accepted, Expired, Finished, Outcome, Place, Reason, Rejected, Result
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.commands import CoordinatorCall, CoordinatorSessionLost, to_fields
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    LANE_FORMAT,
    Label,
    TransactionId,
    Xid,
    coordinator_number,
    owner_of,
)
from hawser.transaction.participant import maintenance as k
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.locks import lock
from hawser.transaction.xa.table import Code

from .log_shard import MemoryBlocks

SESSION_SECONDS = 10_000
STEP_BYTES, CAPACITIES_BYTES = 300, (800, 20_000, 20_000)
GROUP, MEMBER = "group", "member"
CARRY_ENTRIES = 80
# For so long a leader waits for an answer of another.
PATIENCE_SECONDS = 2.0
reached: Counter[str] = Counter()


class Message(NamedTuple):
    """A request on its way to a shard; `answer` takes what became of it. `tokens`: the payload is made by the
    leader, from what the session holds."""

    shard: str
    kind: int
    payload: bytes
    label: bytes
    answer: Callable[[Result], None]
    tokens: tuple[Token, ...] = ()
    session: str = ""
    call: Any = None


def parts() -> tuple[Part, ...]:
    """As those of any shard, with room for few messages."""
    return (Topic(3), Producers(), Groups(), Queue(3, STEP_BYTES), Branches(), Decisions())


def batch(value: str) -> bytes:
    return bytes(Batch.of([Record(value.encode())]).data)


class Shard:
    """One shard: its log, and what its leader has."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.blocks = MemoryBlocks()
        self.machine = Machine(self.blocks, parts())
        self.log: list[Entry] = []
        self.saved: Saved | None = None
        self.kept_from = 1
        self.epoch = 0
        self.requests: Counter[str] = Counter()
        # All that was ever to be read, in order, by topic and by queue.
        self.seen: dict[type, int] = {Topic: 1, Queue: 1}
        # Branches that are prepared, and who decides about each.
        self.prepared: dict[TransactionId, str] = {}
        self.lead()

    def part(self, kind: type[Any]) -> Any:
        return self.machine.part(kind)

    def lead(self) -> None:
        """Somebody begins to lead here, and knows what was applied."""
        self.epoch += 1
        self.claims = Claims(self.part(Queue).messages, self.epoch, DeliveryPolicy(SESSION_SECONDS))
        self.received: dict[str, Token] = {}
        self.branch_maintenance = k.BranchMaintenance(self.part(Branches))
        self.coordinator = c.Coordinator(self.part(Decisions), self.name)
        self.waiting: list[Callable[[Result], None]] = []
        # What was told to others and is not answered, by its number.
        self.told: dict[int, tuple[c.Tell, float] | None] = {}
        self.do(self.coordinator.step(c.Began(self.world.now)))

    def fail_over(self) -> None:
        """The next leader has its state from the log, or from a snapshot and the log."""
        before = self.machine
        loaded = self.saved is not None and self.world.chance.random() < 0.7
        blocks = self.blocks if loaded else MemoryBlocks()
        machine = Machine(blocks, parts())
        if loaded:
            assert self.saved is not None
            machine.load(self.saved.state)
        for entry in self.log[machine.applied :]:
            machine.apply(entry)
        assert (machine.hash, machine.applied) == (before.hash, before.applied)
        assert machine.digest() == before.digest()
        assert machine.needed == before.needed
        reached["leader from a snapshot" if loaded else "leader from the log"] += 1
        self.machine = machine
        if not loaded:
            self.blocks, self.saved = blocks, None
        self.lead()

    def save(self) -> None:
        self.saved = self.machine.save()
        self.blocks.keep(self.saved.blocks)
        self.kept_from = max(self.kept_from, self.machine.needed)

    def read(self, index: int) -> Entry:
        """An entry, for the sake of what is in it; those that nobody needed at a snapshot are gone."""
        assert index >= self.kept_from, "the entry was deleted"
        return self.log[index - 1]

    def propose(self, kind: int, payload: bytes, label: bytes = b"") -> Result:
        """Append an entry, apply it, and hold what happened against what was meant."""
        entry = Entry.make(self.epoch, len(self.log) + 1, kind, payload, transaction=label)
        result = self.machine.apply(entry)
        self.log.append(entry)
        self.world.judge(self, entry, result)
        self.do(self.coordinator.step(c.Changed(self.world.now)))
        return result

    # The leader at work.

    def receive(self, message: Message) -> None:
        """A request has arrived."""
        if message.tokens:
            self.answer(message, self.accept(message))
            return
        result = self.propose(message.kind, message.payload, message.label)
        if getattr(result, "code", None) == Code.PENDING:
            self.wait(message)
        elif isinstance(result, Finished) and self.is_spreading(message):
            reached["decided for others"] += 1
            event = c.Await(self.world.now, message.answer, message.call[0], known=result)
            self.do(self.coordinator.step(event))
        else:
            self.answer(message, result)

    def is_spreading(self, message: Message) -> bool:
        """Whether a client has ended a branch with those of others, which have not heard."""
        if message.kind not in (Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT) or message.call is None:
            return False
        record = self.part(Decisions).ledger.register.get(message.call[0])
        return record is not None and bool(record.waiting)

    def wait(self, message: Message) -> None:
        """It is answered when the votes are in."""
        event = c.Await(self.world.now, message.answer, *message.call)
        self.do(self.coordinator.step(event))

    def accept(self, message: Message) -> Result:
        label = Label.read(message.label)
        assert label is not None
        verdict = self.part(Branches).judge(label)
        if verdict is not None:
            return verdict  # type: ignore[no-any-return]
        proposal = lock(self.claims, MESSAGES, message.session, message.tokens)
        if isinstance(proposal, SettlementRefusal):
            reached["turned away"] += 1
            return Rejected(Reason.NOT_HELD)
        result = self.propose(Kind.QUEUE_SETTLE, proposal.payload, message.label)
        self.claims.resolve(proposal.claims)
        return result

    def answer(self, message: Message, result: Result) -> None:
        self.world.reply(message.answer, result)

    def take(self, session: str) -> tuple[Token, int] | None:
        """A token that this session is lent."""
        self.requests[session] += 1
        received = self.received.get(session, NO_TOKEN)
        delivered = self.claims.deliver(session, self.requests[session], received, 1, int(self.world.now))
        if not delivered:
            return None
        self.received[session] = token = Token(self.epoch, delivered[0].number)
        return token, delivered[0].offset

    def do(self, effects: list[c.Effect]) -> None:
        """What the coordinator wants."""
        for effect in effects:
            if isinstance(effect, c.Tell):
                self.tell(effect)
            elif isinstance(effect, c.Propose):
                self.world.later(partial(self.propose_mine, self.epoch, effect))
            else:
                self.world.reply(effect.tag, effect.result)  # type: ignore[arg-type]

    def propose_mine(self, epoch: int, effect: c.Propose | k.Propose) -> None:
        """Unless somebody else leads by now."""
        if epoch == self.epoch:
            self.propose(effect.kind, effect.payload, getattr(effect, "label", b""))

    def tell(self, effect: c.Tell) -> None:
        told = self.told
        number = len(told) + 1
        told[number] = effect, self.world.now

        def heard(result: Result) -> None:
            if self.told is told and told[number] is not None:
                told[number] = None
                event = c.Heard(self.world.now, effect.shard, effect.transaction, effect.kind, result)
                self.do(self.coordinator.step(event))

        self.world.send(Message(effect.shard, effect.kind, effect.payload, effect.label, heard))

    def give_up(self) -> None:
        """Nobody answers any more what was told long ago, or now and then sooner."""
        for number, told in list(self.told.items()):
            patience = 0.0 if self.world.chance.random() < 0.1 else PATIENCE_SECONDS
            if told is not None and self.world.now - told[1] >= patience:
                self.told[number] = None
                event = c.Lost(self.world.now, told[0].shard, told[0].transaction)
                self.do(self.coordinator.step(event))

    def tick(self) -> None:
        world = self.world
        self.give_up()
        sessions = self.part(Decisions).ledger.sessions
        lost = tuple(sorted(each for each in sessions if owner_of(each) in world.lost))
        self.do(self.coordinator.step(c.Tick(world.now, lost)))
        carry_before = self.machine.applied + 1 - CARRY_ENTRIES
        actions = self.branch_maintenance.tick(world.now, world.lost.__contains__, carry_before=carry_before)
        for action in actions:
            if isinstance(action, k.Propose):
                world.later(partial(self.propose_mine, self.epoch, action))
            elif isinstance(action, k.Carry):
                reached["carried"] += 1
                entry = self.read(action.index)
                result = self.propose(entry.kind, bytes(entry.payload), action.label)
                assert result != Rejected(Reason.BAD_PAYLOAD), "it stays where it was, for ever"
            else:
                self.ask(action)

    def ask(self, action: k.Ask) -> None:
        """A linearizable read at home; what is not decided there is disowned, which takes its time."""
        name = action.coordinator or self.world.coordinator_of(action.transaction.xid)
        coordinator, transaction = self.world.shards[name], action.transaction
        ledger = coordinator.part(Decisions).ledger
        outcome = coordinator.part(Branches).decision(transaction, ledger)
        reached["asked home"] += 1
        is_past = coordinator.part(Branches).register.latest(transaction.xid) > transaction.incarnation
        reached["told of a commit when its lane had gone on"] += is_past and outcome is Outcome.COMMITTED
        is_unknown = outcome is None and ledger.register.get(transaction) is None
        if is_unknown and action.reason is not None:
            reached["disowned"] += 1
            disowned = self.branch_maintenance.disown(transaction, action.reason)
            heard = partial(self.hear_home, self.epoch, transaction)
            self.world.send(Message(name, disowned.kind, disowned.payload, disowned.label, heard))
        if outcome is not None:
            self.end(transaction, outcome)

    def hear_home(self, epoch: int, transaction: TransactionId, result: Result) -> None:
        """What became of the branch there, which this one disowned."""
        is_old = isinstance(result, Rejected) and result.reason is Reason.OLD_INCARNATION
        outcome = Outcome.ROLLED_BACK if is_old else getattr(result, "outcome", None)
        if outcome is not None and epoch == self.epoch:
            self.end(transaction, outcome)

    def end(self, transaction: TransactionId, outcome: Outcome) -> None:
        """Home has decided so."""
        reached["heard from home"] += 1
        decided = self.branch_maintenance.decided(transaction, outcome)
        self.propose(decided.kind, decided.payload, decided.label)

    def values(self, kind: type, first: int) -> list[str]:
        """What can be read from this offset on."""
        part = self.part(kind)
        subqueue = part.messages if kind is Queue else part
        found: list[str] = []
        offset = first
        while offset < subqueue.end:
            place = subqueue.locate(offset)
            assert isinstance(place, Place)
            entry = self.read(place.index)
            records = batch_of(entry) if kind is Queue else Batch.read(entry.payload)
            found += [bytes(record.value).decode() for record in records.records()]
            offset = place.first_offset + place.count
        return found


class World:
    """All of it."""

    def __init__(self, seed: int, participants: int = 3, homes: int = 2) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.faults = True
        # Messages that arrive much later, and the shard that nobody reaches.
        self.slow: list[Callable[[], object]] = []
        self.cut_off = ""
        self.bag: list[Callable[[], object]] = []
        self.lost: set[int] = set()
        # Sessions that know that their work is ended.
        self.ended_sessions: set[str] = set()
        self.shards: dict[str, Shard] = {}
        self.names = [f"p{number}" for number in range(participants)]
        self.homes = [f"__tx/{number}" for number in range(homes)]
        for name in (*self.names, *self.homes):
            self.shards[name] = Shard(self, name)
        # Of each transaction: what it does on each shard, as far as it was meant to be committed.
        self.meant: dict[TransactionId, dict[str, list[str]]] = {}
        # And where it leaves the group of each topic that it moves.
        self.moves: dict[TransactionId, dict[str, int]] = {}
        self.ended: set[tuple[TransactionId, str]] = set()
        self.outcomes: dict[TransactionId, bool] = {}
        self.told: dict[TransactionId, Outcome] = {}
        self.visible: dict[TransactionId, set[str]] = {}
        # What an application wanted to commit together, by its batches.
        self.batches: dict[int, list[set[TransactionId]]] = {}
        self.plain = 0
        self.numbers = count(1)

    def coordinator_of(self, xid: Xid) -> str:
        return self.homes[coordinator_number(xid, len(self.homes))]

    # The network.

    def send(self, *messages: Message) -> None:
        """To one shard, together and in order."""
        name = messages[0].shard
        shard = self.shards[name]
        if name == self.cut_off:
            reached["sent to nobody"] += 1
            return

        def arrive() -> None:
            for message in messages:
                shard.receive(message)

        self.post(arrive)

    def reply(self, answer: Callable[[Result], None], result: Result) -> None:
        self.post(lambda: answer(result))

    def post(self, deliver: Callable[[], object]) -> None:
        """Lost, or repeated, or much later, or nothing of that."""
        fate = self.chance.random() if self.faults else 1.0
        if fate < 0.05:
            reached["lost"] += 1
            return
        self.bag.append(deliver)
        if fate < 0.12:
            reached["repeated"] += 1
            self.bag.append(deliver)
        elif fate < 0.15:
            self.slow.append(self.bag.pop())

    def later(self, do: Callable[[], object]) -> None:
        """A proposal of a leader to itself: late, but not lost while it leads."""
        self.bag.append(do)

    def deliver(self) -> bool:
        if not self.bag:
            return False
        place = self.chance.randrange(len(self.bag))
        self.bag[place], self.bag[-1] = self.bag[-1], self.bag[place]
        self.bag.pop()()
        return True

    def mend(self) -> None:
        """What was on its way for long arrives, and everybody is reached."""
        self.bag += self.slow
        self.slow, self.cut_off = [], ""

    def cut(self) -> None:
        """A shard cannot be reached for a while; its leader reaches others."""
        if self.chance.random() < 0.5:
            self.mend()
        self.cut_off = self.chance.choice((*self.names, "", "", ""))

    def restart(self) -> None:
        """Everybody at once."""
        reached["full restart"] += 1
        for shard in self.shards.values():
            shard.fail_over()

    # The judge.

    def judge(self, shard: Shard, entry: Entry, result: Result) -> None:
        """After every entry: nothing that was not meant, and nothing in part."""
        label = Label.read(entry.transaction) if entry.transaction_size else None
        new = {kind: shard.values(kind, first) for kind, first in shard.seen.items()}
        for kind in shard.seen:
            part = shard.part(kind)
            shard.seen[kind] = part.messages.end if kind is Queue else part.end
        shown = sorted(new[Topic] + new[Queue])
        if label is not None and isinstance(result, Finished):
            self.agree(label.id, result.outcome)
            if entry.kind == Kind.BRANCH_ABORT and label.id.xid.format not in (
                LANE_FORMAT,
                APPLICATION_FORMAT,
            ):
                coordinator = self.shards[self.coordinator_of(label.id.xid)].part(Decisions).ledger
                assert coordinator.outcome(label.id) is not None, "a branch of XA was ended, and not by home"
            commits = label.last or entry.kind == Kind.BRANCH_COMMIT
            committed = commits and result.outcome is Outcome.COMMITTED
            reached[result.outcome.name] += 1
            if shown:
                assert committed, "visible, and not committed"
                assert shown == sorted(self.meant[label.id][shard.name]), "a part of a transaction is visible"
                visible = self.visible.setdefault(label.id, set())
                assert shard.name not in visible, "committed twice"
                visible.add(shard.name)
                reached["committed branch"] += 1
            first = (label.id, shard.name) not in self.ended
            self.ended.add((label.id, shard.name))
            if committed and first and shard.name in self.moves.get(label.id, {}):
                assert shard.part(Groups).get(GROUP).position == self.moves[label.id][shard.name]
                reached["group moved"] += 1
        elif label is not None:
            assert not shown, "visible before the commit"
        elif entry.kind == Kind.HOME_SESSION_LOST:
            session = msgspec.msgpack.decode(entry.payload, type=CoordinatorSessionLost).session
            assert session not in self.ended_sessions or result == Expired(0), "ended work was lost"
        self.watch_prepared(shard, label)

    def agree(self, transaction: TransactionId, outcome: Outcome) -> None:
        """Nobody ever says something else."""
        committed = outcome is Outcome.COMMITTED
        assert self.outcomes.setdefault(transaction, committed) == committed, "two decisions"

    def watch_prepared(self, shard: Shard, label: Label | None) -> None:
        register = shard.part(Branches).register
        now = {transaction: branch.coordinator for transaction, branch in register if branch.is_prepared}
        for transaction in shard.prepared.keys() - now.keys():
            assert label is not None and label.id == transaction, "a prepared branch is gone by itself"
            coordinator = self.shards[shard.prepared[transaction]]
            decided = coordinator.part(Branches).decision(transaction, coordinator.part(Decisions).ledger)
            assert decided is not None, "a prepared branch was ended before it was decided"
            assert (decided is Outcome.COMMITTED) == self.outcomes[transaction], "ended against the decision"
            reached["prepared ended"] += 1
        reached["prepared"] += len(now.keys() - shard.prepared.keys())
        shard.prepared = now

    def publish_plain(self) -> None:
        """Whatever is undecided, everybody else's messages are there at once."""
        shard = self.shards[self.chance.choice(self.names)]
        self.plain += 1
        topic = shard.part(Topic)
        end = topic.end
        assert shard.propose(Kind.BATCH, batch(f"plain {self.plain}")) == Accepted(end, 1)
        assert shard.values(Topic, end) == [f"plain {self.plain}"]

    def trim(self) -> None:
        """A topic forgets what is in it, whoever has not read it."""
        shard = self.shards[self.chance.choice(self.names)]
        end = shard.part(Topic).end
        shard.propose(Kind.TRIM, encode_command(TrimTo(end, end)))

    def limit(self) -> None:
        """A queue may hold little, or much."""
        shard = self.shards[self.chance.choice(self.names)]
        command = QueueLimit(self.chance.choice(CAPACITIES_BYTES))
        shard.propose(Kind.QUEUE_LIMIT, encode_command(command))

    def tokens(self) -> Counter[str]:
        """Where all tokens are: on queues, locked ones too."""
        found: Counter[str] = Counter()
        for name in self.names:
            subqueue = self.shards[name].part(Queue).messages
            for offset in range(subqueue.start, subqueue.end):
                if subqueue.deliveries(offset) is not None or subqueue.is_locked(offset):
                    place = subqueue.locate(offset)
                    records = list(batch_of(self.shards[name].log[place.index - 1]).records())
                    value = bytes(records[offset - place.first_offset].value).decode()
                    found[value.split("/")[0]] += 1
        return found

    def call(self, xid: Xid, fields: dict[str, Any], answer: Callable[[Result], None]) -> Message:
        """A call of the XA interface, at the xid's home."""
        incarnation = fields.pop("incarnation", 0)
        transaction = TransactionId(xid, incarnation)
        command = CoordinatorCall(to_fields(transaction), **fields)
        return Message(
            self.coordinator_of(xid),
            Kind.HOME_CALL,
            encode_command(command),
            b"",
            answer,
            session=command.session,
            call=(transaction, command.call, command.request),
        )
