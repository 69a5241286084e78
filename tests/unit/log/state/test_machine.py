"""The machine: order, hash, saving and loading, what it must not guess, and parts beside the first ones."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.log.entry import HEADER_BYTES, Entry, Kind
from hawser.log.state.commands import GroupCommit, GroupJoin, TrimTo, encode_command
from hawser.log.state.machine import STATE_VERSION, Machine, topic_parts
from hawser.log.state.part import BadState, Context, Part, Unsupported
from hawser.log.state.results import (
    Accepted,
    Done,
    Place,
    Reason,
    Rejected,
    Result,
    decode_result,
    encode_result,
)
from hawser.log.state.topic import Topic
from hawser.record.batch import Header
from hawser.record.record import Stamp
from tests.stateful.log_shard import MemoryBlocks, Shard, batch

ROOT = Path(__file__).resolve().parents[4]
COUNT_KIND = 40
COMMIT_KIND = 70


class Counted(Result, frozen=True, tag="counted"):
    total: int


class Counter(Part):
    """Counts entries of its own kind; asks the topic where it ends."""

    name: ClassVar = "counter"
    kinds: ClassVar = {COUNT_KIND: 2}

    def __init__(self) -> None:
        self.total = 0

    def apply(self, entry: Entry, context: Context) -> Result:
        self.total += entry.version * context.part(Topic).end
        return Counted(self.total)

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def load(self, state: bytes) -> None:
        self.total = int(state)

    def digest(self) -> bytes:
        return b"%d" % self.total


class Staging(Part):
    """Holds the batches of transactions back until an entry commits them."""

    name: ClassVar = "staging"
    kinds: ClassVar = {COMMIT_KIND: 1}
    transactional: ClassVar = True

    def __init__(self) -> None:
        self.staged: dict[bytes, list[tuple[int, Header]]] = {}

    def apply(self, entry: Entry, context: Context) -> Result:
        if entry.kind == COMMIT_KIND:
            result: Result = Done()
            for index, header in self.staged.pop(bytes(entry.payload), []):
                result = context.part(Topic).publish(header, index, context)
            return result
        header = Header.read(entry.frame, HEADER_BYTES + entry.transaction_size)
        self.staged.setdefault(entry.transaction, []).append((entry.index, header))
        return Done()

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def load(self, state: bytes) -> None:
        self.staged = msgspec.msgpack.decode(state, type=dict[bytes, list[tuple[int, Header]]])

    def digest(self) -> bytes:
        return msgspec.msgpack.encode(self.staged)

    @property
    def needed(self) -> int | None:
        return min((index for staged in self.staged.values() for index, _ in staged), default=None)


def with_counter() -> Sequence[Part]:
    return (*topic_parts(3), Counter())


def with_staging() -> Sequence[Part]:
    return (*topic_parts(3), Staging())


def test_nothing_is_applied_too() -> None:
    shard = Shard()
    assert shard.put(Kind.NOTHING, b"") == Done()
    assert shard.machine.applied == 1
    assert shard.machine.needed == 2


def test_entries_come_in_order() -> None:
    machine = Machine(MemoryBlocks())
    with pytest.raises(AssertionError):
        machine.apply(Entry.make(1, 2))


@pytest.mark.parametrize(
    ("kind", "version"), [(9, 1), (32, 1), (64, 1), (255, 1), (1, 2), (1, 0), (0, 2), (4, 9)]
)
def test_what_is_unknown_is_not_guessed(kind: int, version: int) -> None:
    shard = Shard()
    shard.publish()
    before = shard.machine.hash, shard.machine.digest()
    with pytest.raises(Unsupported, match=rf"kind {kind}, version {version}.*Start this member"):
        shard.put(kind, b"", version)
    assert (shard.machine.hash, shard.machine.digest()) == before
    assert shard.machine.applied == 1


def test_a_transaction_without_its_part_is_not_guessed() -> None:
    shard = Shard()
    with pytest.raises(Unsupported, match="transaction"):
        shard.put(Kind.BATCH, batch(), transaction=b"t")
    assert shard.topic.end == 1


@pytest.mark.parametrize("kind", [kind for kind in Kind if Kind.NOTHING < kind < Kind.QUEUE_PUT])
@given(payload=st.binary(max_size=60))
def test_bad_payloads_are_rejected_alike(kind: Kind, payload: bytes) -> None:
    first, second = Shard(), Shard()
    digest = first.machine.part(Topic).digest()
    result = first.put(kind, payload)
    assert result == second.put(kind, payload)
    assert first.machine.hash == second.machine.hash
    if isinstance(result, Rejected):
        assert first.machine.part(Topic).digest() == digest


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.TRIM, msgspec.msgpack.encode([1, 2, 3])),
        (Kind.TRIM, msgspec.msgpack.encode([-1])),
        (Kind.TRIM, msgspec.msgpack.encode([1 << 63])),
        (Kind.TRIM, msgspec.msgpack.encode([1]) + b"\x00"),
        (Kind.TRIM, msgspec.msgpack.encode({"offset": 1})),
        (Kind.EXPIRE_PRODUCERS, msgspec.msgpack.encode([[[b"", 1, 1]]])),
        (Kind.GROUP_JOIN, msgspec.msgpack.encode(["", "a"])),
        (Kind.GROUP_JOIN, msgspec.msgpack.encode(["g", "a" * 201])),
        (Kind.GROUP_JOIN, b"\x92\xa1\xff\xa1a"),
        (Kind.GROUP_LEAVE, b""),
        (Kind.GROUP_COMMIT, msgspec.msgpack.encode(["g", "a", 1, 2])),
        (Kind.GROUP_DELETE, msgspec.msgpack.encode([1])),
        (Kind.ADVANCE_TIME, msgspec.msgpack.encode([0, 1])),
        (Kind.ADVANCE_TIME, msgspec.msgpack.encode([2, 1, 1])),
        (Kind.BATCH, b""),
        (Kind.BATCH, batch()[:-1]),
    ],
)
def test_a_payload_that_is_something_else_is_rejected(kind: Kind, payload: bytes) -> None:
    shard = Shard()
    assert shard.put(kind, payload) == Rejected(Reason.BAD_PAYLOAD)


def test_the_hash_depends_on_every_entry_and_every_result() -> None:
    one, other = Shard(), Shard()
    one.publish(1), other.publish(1)
    assert one.machine.hash == other.machine.hash
    one.publish(1, timestamp_ns=1), other.publish(1, timestamp_ns=2)
    assert one.machine.hash != other.machine.hash
    for _ in range(5):
        one.publish(1), other.publish(1)
        assert one.machine.hash != other.machine.hash, "a difference is never lost"


def test_the_hash_depends_on_results_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Shard(), Shard()
    one.publish(1)
    monkeypatch.setattr(Topic, "publish", lambda self, header, index, context: Accepted(2, 1))
    other.publish(1)
    assert one.log == other.log
    assert one.machine.hash != other.machine.hash


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\x90",
        msgspec.msgpack.encode([STATE_VERSION, 0, 0, {"topic": b""}]),
        msgspec.msgpack.encode([STATE_VERSION, 0, 0, {}]) + b"more",
    ],
)
def test_a_state_that_cannot_be_is_refused(state: bytes) -> None:
    with pytest.raises(BadState, match="saved"):
        Machine(MemoryBlocks()).load(state)


def test_a_state_of_another_version_is_refused() -> None:
    shard = Shard(with_counter)
    shard.put(COUNT_KIND, b"")
    with pytest.raises(Unsupported, match="counter"):
        Machine(shard.blocks).load(shard.save().state)
    for version in (STATE_VERSION - 1, STATE_VERSION + 1):
        other = msgspec.msgpack.encode([version, 0, 0, {}])
        with pytest.raises(Unsupported, match=f"version {version} "):
            Machine(shard.blocks).load(other)


def test_a_part_lives_beside_the_others() -> None:
    plain, shard = Shard(), Shard(with_counter)
    for made in (plain, shard):
        made.publish(4, Stamp(b"p", 1, 1))
        made.do(GroupJoin("g", "a"))
    assert plain.machine.hash == shard.machine.hash
    assert shard.put(COUNT_KIND, b"") == Counted(5)
    assert shard.put(COUNT_KIND, b"", version=2) == Counted(15)
    with pytest.raises(Unsupported):
        shard.put(COUNT_KIND, b"", version=3)
    assert shard.publish(1, Stamp(b"p", 1, 2)) == Accepted(5, 1)
    before = shard.machine.hash, shard.machine.digest()
    shard.save()
    shard.restart()
    assert shard.machine.part(Counter).total == 15
    assert (shard.machine.hash, shard.machine.digest()) == before


def test_a_part_may_be_added_to_a_saved_shard() -> None:
    shard = Shard()
    shard.publish(4)
    shard.save()
    shard.make_parts = with_counter
    shard.restart()
    assert shard.put(COUNT_KIND, b"") == Counted(5)


@pytest.mark.parametrize(
    "parts",
    [
        lambda: (*with_counter(), Counter()),
        lambda: (*with_staging(), Staging()),
        lambda: (Topic(), Topic()),
    ],
)
def test_parts_do_not_share_a_name(parts: object) -> None:
    with pytest.raises(AssertionError, match="two parts"):
        Shard(parts)  # type: ignore[arg-type]


def test_what_was_staged_early_is_committed_late() -> None:
    """Offsets are in the order of commits; entries are not, and none that is needed is given up."""
    shard = Shard(with_staging)
    shard.publish(2)
    assert shard.put(Kind.BATCH, batch(3, Stamp(b"p", 1, 1)), transaction=b"t") == Done()  # entry 2
    assert shard.topic.end == 3
    for _ in range(7):
        shard.publish(1)
    shard.do(TrimTo(10))
    assert shard.topic.count == 0
    assert shard.machine.needed == 2, "the staged entry"
    shard.publish(1)  # entry 11, offset 10
    assert shard.put(COMMIT_KIND, b"t") == Accepted(11, 3)
    assert shard.topic.locate(10) == Place(11, 10, 1)
    assert shard.topic.locate(12) == Place(2, 11, 3)
    assert shard.machine.needed == 2
    for _ in range(4):
        shard.publish(1)
    shard.save()
    shard.restart()
    assert shard.machine.needed == 2
    shard.do(TrimTo(13))
    assert shard.machine.needed == 2
    shard.do(TrimTo(14))
    assert shard.machine.needed == 13


def test_results_travel() -> None:
    for result in (Done(), Accepted(7, 2), Rejected(Reason.GAP, 3, 5)):
        assert decode_result(encode_result(result)) == result


def history(seed: int) -> Shard:
    """A few hundred entries of every kind, among them many that are rejected."""
    chance = random.Random(seed)
    shard = Shard()
    for _ in range(300):
        group, member = chance.choice("gh"), chance.choice("abc")
        start, end = shard.topic.start, shard.topic.end
        match chance.randrange(5):
            case 0:
                shard.publish(chance.randrange(1, 4), timestamp_ns=chance.randrange(100))
            case 1:
                shard.publish(1, Stamp(chance.choice([b"p", b"q"]), 1, chance.randrange(1, 9)))
            case 2:
                shard.do(GroupJoin(group, member, end))
            case 3:
                shard.do(GroupCommit(group, member, chance.randrange(20), start, end))
            case 4:
                shard.do(TrimTo(chance.randrange(end + 1)))
    return shard


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_hash_does_not_depend_on_the_order_of_sets(seed: str) -> None:
    program = (
        "from tests.unit.log.state.test_machine import history; "
        "machine = history(7).machine; print(machine.hash, machine.digest(), machine.save().state.hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    machine = history(7).machine
    assert done.stdout.split() == [str(machine.hash), str(machine.digest()), machine.save().state.hex()]


def test_runs_of_another_length_are_the_same_state() -> None:
    shard = history(9)
    other = Machine(MemoryBlocks(), topic_parts(5))
    for entry in shard.log:
        other.apply(entry)
    assert (other.hash, other.digest(), other.needed) == (
        shard.machine.hash,
        shard.machine.digest(),
        shard.machine.needed,
    )


def test_commands_are_small() -> None:
    assert len(encode_command(TrimTo(1000))) == 5
