"""A queue against its twin: random entries, saved, loaded and applied again at any point; and the desk over
it, with leaders that change, sessions that are lost and requests that are repeated."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.entry import Kind
from hawser.log.queue import claims as claims_module
from hawser.log.queue import dispatcher as dispatcher_module
from hawser.log.queue.claims import NO_TOKEN, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import (
    Dispatcher,
    Get,
    Proposal,
    RefusalReason,
    Settlement,
    SettlementRefusal,
)
from hawser.log.state import queue as queue_module
from hawser.log.state import range_map
from hawser.log.state.commands import QueueLimit, QueueSettle, Run, decoder, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.part import BadState, Part
from hawser.log.state.producers import Producers
from hawser.log.state.queue import DEAD_LETTERS, MESSAGE_BYTES, MESSAGES, Queue
from hawser.log.state.results import Reason, Rejected, Repeated, Result, Settled
from hawser.log.state.subqueue import Subqueue
from hawser.record.batch import Batch
from hawser.record.record import NO_STAMP, Record, Stamp

from .log_shard import MemoryBlocks, Shard
from .queue_twin import QueueTwin

Record_property = Callable[[str, object], None]
STEP_BYTES = 300
SESSION, LEASE, MOST_DELIVERIES, MOST_HELD = 100, 300, 3, 6
reached: Counter[str] = Counter()
_read_settle = decoder(QueueSettle)


def parts(page_places: int = 3) -> tuple[Part, ...]:
    return Queue(page_places, STEP_BYTES), Producers()


def values(count: int, begin: int = 0) -> list[Record]:
    return [Record(f"message {begin + number}".encode()) for number in range(count)]


class Pair:
    """A queue and its twin, which must agree on every result and every look."""

    def __init__(self) -> None:
        self.shard = Shard(parts)
        self.twin = QueueTwin(STEP_BYTES, MESSAGE_BYTES)

    @property
    def queue(self) -> Queue:
        return self.shard.machine.part(Queue)

    def agree(self, result: Result, expected: Result) -> Result:
        name = type(result).__name__
        reached[result.reason.name if isinstance(result, Rejected) else name] += 1
        assert result == expected
        return result

    def put(self, count: int, stamp: Stamp = NO_STAMP) -> Result:
        batch = bytes(Batch.of(values(count, self.queue.messages.end), stamp).data)
        entry = self.shard.entry(Kind.QUEUE_PUT, batch)
        expected = self.twin.put(entry.index, count, len(entry.frame), stamp)
        return self.agree(self.shard.put(Kind.QUEUE_PUT, batch), expected)

    def settle(self, payload: bytes) -> Result:
        entry = self.shard.entry(Kind.QUEUE_SETTLE, payload)
        command = _read_settle(entry)
        assert command is not None
        expected = self.twin.settle(entry.index, command, len(entry.frame))
        return self.agree(self.shard.put(Kind.QUEUE_SETTLE, payload), expected)

    def limit(self, capacity: int) -> None:
        payload = encode_command(QueueLimit(capacity))
        self.agree(self.shard.put(Kind.QUEUE_LIMIT, payload), self.twin.limit(capacity))

    def stamp(self, name: bytes, incarnation: int, step: int) -> Stamp:
        """A sequence so many from the next one of this incarnation."""
        known = self.twin.known.get(name)
        last = len(known[1]) if known and known[0] == incarnation else 0
        return Stamp(name, incarnation, max(1, last + 1 + step))

    def restart(self) -> None:
        before = self.shard.machine.hash, self.shard.machine.digest()
        self.shard.restart()
        assert (self.shard.machine.hash, self.shard.machine.digest()) == before

    def replay(self) -> None:
        """Another member, with runs of another length, applies the whole log."""
        machine = Machine(MemoryBlocks(), parts(2))
        for entry in self.shard.log:
            machine.apply(entry)
        mine = self.shard.machine
        assert (machine.hash, machine.digest(), machine.needed) == (mine.hash, mine.digest(), mine.needed)

    def compare(self) -> None:
        assert self.queue.used_bytes == self.twin.used_bytes
        assert self.shard.machine.needed == self.twin.needed(self.shard.machine.applied)
        for subqueue, twin in zip(self.queue.subqueues, self.twin.subqueues, strict=True):
            left = [each for each in twin.messages if not each.done]
            assert (subqueue.start, subqueue.end, subqueue.count) == (
                twin.start,
                len(twin.messages) + 1,
                len(left),
            )
            for offset, message in enumerate(twin.messages, 1):
                assert subqueue.deliveries(offset) == (None if message.done else message.deliveries)
                if offset >= subqueue.start:
                    assert subqueue.locate(offset).index == message.index  # type: ignore[union-attr]


# Entries as they come.


def some_runs(pair: Pair, chance: random.Random, subqueue: int) -> list[Run]:
    """Runs that do not overlap, most of them as the messages are."""
    runs: list[Run] = []
    twin = pair.twin.subqueues[subqueue]
    offset = max(1, twin.start - chance.choice([0] * 20 + [1]))
    for _ in range(chance.randrange(1, 4)):
        offset += chance.choice((0, 0, 1, 3))
        first = offset
        deliveries = twin.messages[first - 1].deliveries if first <= len(twin.messages) else 0
        while offset <= len(twin.messages) and offset - first < chance.randrange(1, 5):
            message = twin.messages[offset - 1]
            if message.done or message.deliveries != deliveries:
                break
            offset += 1
        offset += chance.choice([0] * 20 + [1])
        if offset > first:
            runs.append((first, offset - first, deliveries + chance.choice([0] * 30 + [1])))
    return runs


def settle_some(pair: Pair, chance: random.Random) -> None:
    subqueue = chance.choice([MESSAGES] * 4 + [DEAD_LETTERS])
    split: tuple[list[Run], list[Run], list[Run]] = ([], [], [])
    runs = some_runs(pair, chance, subqueue)
    for run in runs:
        chance.choice((split[0], split[0], split[1], split[2])).append(run)
    if not runs:
        return
    moved = sum(count for _, count, _ in split[2])
    batch = bytes(Batch.of(values(moved)).data) if moved else b""
    consumer = chance.choice((b"", b"c", b"d"))
    stamp = NO_STAMP
    if consumer:
        incarnation = chance.choice([1] * 30 + [2])
        stamp = pair.stamp(consumer, incarnation, chance.choice([0] * 20 + [1, -1, -3, -64, -70]))
    accepted, returned, to_move = map(tuple, split)
    pair.settle(encode_command(QueueSettle(subqueue, accepted, returned, to_move, batch, *stamp)))


def walk(seed: int, steps: int) -> Pair:
    chance = random.Random(seed)
    pair = Pair()

    def put() -> None:
        stamp = NO_STAMP
        if chance.random() < 0.8:
            step = chance.choice([0] * 20 + [1, -1, -64, -70])
            stamp = pair.stamp(b"p", chance.choice([1] * 50 + [2]), step)
        pair.put(chance.randrange(1, 4), stamp)

    moves: list[Callable[[], Any]] = [put, put, lambda: settle_some(pair, chance), pair.shard.save]
    moves += [lambda: settle_some(pair, chance)] * 2
    rare: list[Callable[[], Any]] = [
        pair.restart,
        pair.replay,
        lambda: pair.limit(chance.choice((500, 3_000, 10_000))),
    ]
    for step in range(steps):
        chance.choice(rare if chance.random() < 0.03 else moves)()
        if step % 10 == 0:
            pair.compare()
    pair.restart()
    pair.replay()
    pair.compare()
    return pair


def test_long_walks(record_property: Record_property) -> None:
    reached.clear()
    pairs = [walk(seed, 800) for seed in range(8)]
    record_property("entries", sum(len(pair.shard.log) for pair in pairs))
    record_property("blocks read", sum(pair.shard.blocks.reads for pair in pairs))
    for name, count in sorted(reached.items()):
        record_property(name, count)
    wanted = {"Accepted", "Repeated", "Settled", "Limited", "QUEUE_FULL", "NOT_HELD", "GAP", "FENCED"}
    assert wanted <= set(reached)


# The desk.


class Service:
    """A desk over a queue, its sessions, and who holds what as a dictionary has it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.pair = Pair()
        self.epoch = 0
        self.now = 0
        self.pending: list[tuple[Proposal, Settlement | None]] = []
        self.requests: Counter[str] = Counter()
        self.sequences: Counter[tuple[str, int]] = Counter()
        # What sessions hold as far as they know: the tokens of this leader and their offsets.
        self.held: dict[str, dict[Token, int]] = {}
        self.received: dict[str, Token] = {}
        self.accepted: dict[int, Token] = {}
        self.given: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Another leader: what was proposed may be applied before it begins, or never."""
        for proposal, wanted in self.pending:
            if self.chance.random() < 0.5:
                self.apply(proposal, wanted)
        self.pending = []
        self.epoch += 1
        policy = DeliveryPolicy(SESSION, LEASE, MOST_DELIVERIES, MOST_HELD)
        shard = self.pair.shard
        self.dispatcher = Dispatcher(shard.machine, lambda index: shard.log[index - 1], self.epoch, policy)
        reached["leader"] += 1

    def get(self, session: str) -> None:
        self.requests[session] += 1
        received = self.received.get(session, NO_TOKEN)
        most, ahead = self.chance.choice((0, 1, 3, 9)), self.chance.choice((0, 0, 1, 5))
        wanted = Get(session, self.requests[session], received, most, ahead=ahead)
        ready = self.ready(session, received)
        got = self.dispatcher.get(wanted, self.now)
        offsets = [delivery.offset for delivery in got]
        held = self.dispatcher.claims.holders[session] - len(got)
        assert offsets == ready[: min(wanted.most, MOST_HELD - held)]
        for delivery in got:
            message = self.pair.twin.subqueues[0].messages[delivery.offset - 1]
            assert delivery.delivery_count == message.deliveries + 1 <= MOST_DELIVERIES
            assert delivery.redelivered or delivery.offset not in self.given
            assert delivery.record.value == f"message {delivery.offset}".encode()
        if self.chance.random() < 0.9:
            # The answer arrives, and so does its repeat.
            assert self.dispatcher.get(wanted, self.now) == got
            for delivery in got:
                self.held.setdefault(session, {})[delivery.token] = delivery.offset
                self.received[session] = delivery.token
            self.given.update(offsets)
        else:
            reached["lost"] += len(got)
        reached["given"] += len(got)

    def ready(self, session: str, received: Token) -> list[int]:
        """All that may be lent, in order, by a look at every message: also what the session did not get."""
        known = received.number if received.epoch == self.epoch else 0
        delivered = {
            claim.offset
            for claim in self.dispatcher.claims
            if claim.session != session or claim.number <= known or claim.pending
        }
        return [
            offset
            for offset, message in enumerate(self.pair.twin.subqueues[0].messages, 1)
            if not message.done and offset not in delivered and message.deliveries < MOST_DELIVERIES
        ]

    def settle(self, session: str) -> None:
        """One at a time; it lets go of the messages once it is known what became of them."""
        held = self.held.get(session, {})
        tokens = [token for token in held if self.chance.random() < 0.6]
        if not tokens or any(wanted is not None and wanted.session == session for _, wanted in self.pending):
            return
        verdicts: tuple[list[Token], ...] = ([], [], [])
        for token in tokens:
            self.chance.choice((verdicts[0], verdicts[0], verdicts[1], verdicts[2])).append(token)
        sequence = self.sequences[session, self.epoch] + 1
        wanted = Settlement(session, self.epoch, sequence, *map(tuple, verdicts))
        answer = self.dispatcher.settle(wanted, self.now)
        if isinstance(answer, SettlementRefusal):
            assert answer.why is RefusalReason.NOT_HELD
            reached["turned"] += 1
            for token in answer.tokens:
                del held[token]
        else:
            assert isinstance(answer, Proposal)
            self.pending.append((answer, wanted))

    def lie(self, session: str) -> None:
        """Tokens of others, of nobody, of other leaders."""
        others = [token for name, held in self.held.items() if name != session for token in held]
        token = self.chance.choice([*others, Token(self.epoch, 10_000), Token(max(0, self.epoch - 1), 1)])
        if token in self.held.get(session, {}):
            return
        wanted = Settlement(session, self.epoch + 1_000, 1, (token,))
        before = len(self.dispatcher.claims)
        answer = self.dispatcher.settle(wanted, self.now)
        assert isinstance(answer, SettlementRefusal) and answer.tokens == (token,)
        assert len(self.dispatcher.claims) == before
        reached["lie"] += 1

    def tick(self) -> None:
        self.now += self.chance.choice((1, 30, SESSION + 1))
        proposal = self.dispatcher.tick(self.now)
        if proposal is not None:
            reached["taken back"] += 1
            self.pending.append((proposal, None))

    def progress(self) -> None:
        """The oldest proposal is applied, or refused."""
        if not self.pending:
            return
        proposal, wanted = self.pending.pop(0)
        if self.chance.random() < 0.9:
            self.apply(proposal, wanted)
        else:
            reached["refused"] += 1
        self.dispatcher.resolve(proposal)

    def apply(self, proposal: Proposal, wanted: Settlement | None) -> None:
        result = self.pair.settle(proposal.payload)
        if wanted is None:
            assert isinstance(result, Settled)
        elif isinstance(result, Settled):
            assert self.pair.settle(proposal.payload) == Repeated(
                min(claim.offset for claim in proposal.claims), len(proposal.claims)
            )
            self.sequences[wanted.session, wanted.incarnation] = wanted.sequence
            for claim in proposal.claims:
                token = Token(wanted.incarnation, claim.number)
                self.held[wanted.session].pop(token, None)
                if token in wanted.accepted:
                    assert self.accepted.setdefault(claim.offset, token) == token

    def close(self) -> None:
        """Everybody leaves; all that was lent comes back, or is where it belongs."""
        for _ in range(3):
            while self.pending:
                self.progress()
            self.now += SESSION + 1
            self.tick()
        while self.pending:
            proposal, wanted = self.pending.pop(0)
            self.apply(proposal, wanted)
            self.dispatcher.resolve(proposal)
        assert len(self.dispatcher.claims) == 0 or self.dispatcher.tick(self.now) is not None


def work(seed: int, steps: int) -> Service:
    chance = random.Random(seed)
    service = Service(chance)
    sessions = ("a", "b", "c")
    moves: list[Callable[[], Any]] = [
        lambda: service.pair.put(chance.randrange(1, 4)),
        *[lambda: service.get(chance.choice(sessions))] * 3,
        *[lambda: service.settle(chance.choice(sessions))] * 3,
        *[service.progress] * 4,
        service.tick,
        lambda: service.lie(chance.choice(sessions)),
    ]
    for _ in range(steps):
        chance.choice(moves)() if chance.random() > 0.01 else service.begin()
    service.close()
    service.pair.compare()
    return service


def test_the_desk_lends_each_message_to_one(record_property: Record_property) -> None:
    reached.clear()
    services = [work(seed, 800) for seed in range(10)]
    for name, count in sorted(reached.items()):
        record_property(name, count)
    accepted = sum(len(service.accepted) for service in services)
    dead_letters = sum(len(service.pair.twin.subqueues[1].messages) for service in services)
    record_property("accepted", accepted)
    record_property("dead letters", dead_letters)
    assert accepted > 300 and dead_letters > 30
    assert min(reached[name] for name in ("given", "turned", "lie", "taken back", "leader")) > 10


@pytest.mark.soak
@pytest.mark.slow
def test_soak(soak_seconds: float, record_property: Record_property) -> None:
    seeds = max(1, int(soak_seconds / 2))
    for seed in range(100, 100 + seeds):
        walk(seed, 800)
        work(seed, 800)
    record_property("walks", 2 * seeds)
    assert seeds > 0


# Canaries: each is a bug that one could write.


def must_be_caught(attack: Callable[[int], object], record_property: Record_property) -> None:
    """What was planted is found by a few walks."""
    for seed in range(10):
        try:
            attack(seed)
        except (AssertionError, KeyError, BadState) as error:
            record_property("caught in walk", seed)
            record_property("as", type(error).__name__)
            return
    pytest.fail("the planted bug was not caught")


def walk_far(seed: int) -> None:
    walk(seed, 800)


def work_long(seed: int) -> None:
    work(seed, 800)


def test_canary_runs_that_touch_are_not_merged(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    monkeypatch.setattr(range_map, "_merge", lambda pieces: pieces)
    must_be_caught(walk_far, record_property)


def test_canary_a_delivery_that_ended_is_ended_again(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    def are_there(self: Any, first: int, count: int, deliveries: int) -> bool:
        offsets = range(first, first + count)
        return all(self.deliveries(offset) is not None for offset in offsets)

    monkeypatch.setattr(Subqueue, "are_there", are_there)
    must_be_caught(walk_far, record_property)


def test_canary_a_part_of_a_settlement_takes_effect(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = queue_module.Queue._settle

    def settle(self: Any, entry: Any, context: Any) -> Result:
        result = real(self, entry, context)
        command = _read_settle(entry)
        if isinstance(result, Rejected) and result.reason is Reason.NOT_HELD and command is not None:
            subqueue = self.subqueues[command.subqueue]
            for first, count, deliveries in command.accepted:
                if subqueue.are_there(first, count, deliveries):
                    subqueue.settle(first, count)
        return result

    monkeypatch.setattr(queue_module.Queue, "_settle", settle)
    must_be_caught(walk_far, record_property)


def test_canary_room_is_counted_anew_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = Subqueue.load

    def load(self: Any, data: bytes) -> None:
        real(self, data)
        self._total_bytes = self._rung_bytes[-1] if self._rung_bytes else 0

    monkeypatch.setattr(Subqueue, "load", load)
    must_be_caught(walk_far, record_property)


def test_canary_the_entries_of_letters_are_not_needed(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    needed = property(lambda self: self.messages.needed)
    monkeypatch.setattr(queue_module.Queue, "needed", needed)
    must_be_caught(walk_far, record_property)


def test_canary_a_message_is_lent_twice(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = claims_module.Claims.resolve

    def resolve(self: Any, claims: Any) -> None:
        real(self, claims)
        self._returned.extend(claim.offset for claim in claims if claim.number in self._claims)

    monkeypatch.setattr(claims_module.Claims, "resolve", resolve)
    must_be_caught(work_long, record_property)


def test_canary_a_claim_outlives_its_leader(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    def find(self: Any, name: str, token: Token) -> Any:
        return next((each for each in self._claims.values() if each.number == token.number), None)

    monkeypatch.setattr(claims_module.Claims, "find", find)
    must_be_caught(work_long, record_property)


def test_canary_the_last_delivery_is_one_of_many(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    monkeypatch.setattr(claims_module.Claims, "_is_last", lambda self, deliveries: False)
    must_be_caught(work_long, record_property)


def test_canary_sessions_share_their_numbers(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = dispatcher_module.consumer_id
    monkeypatch.setattr(dispatcher_module, "consumer_id", lambda session: real(session)[:9])
    must_be_caught(work_long, record_property)
