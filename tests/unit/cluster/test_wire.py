"""Every message goes over the wire and comes back the same; whatever else comes is refused with an error that
the transport expects."""

import random
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hawser.log.entry import Entry, EntryId, Number
from hawser.log.protocol import messages as m
from hawser.log.protocol.messages import AnyMessage, Change, ChangeKind, Message, Role, decode, encode

Recorder = Callable[[str, object], None]

KINDS: tuple[type[Message], ...] = get_args(AnyMessage)
# What a transport drops a connection for; nothing else may come out of `decode`.
REFUSED = (msgspec.DecodeError,)

numbers = some.integers(0, (1 << 63) - 1)
names = some.text(min_size=1, max_size=12)
ids = some.builds(EntryId, numbers, numbers)
changes = some.builds(Change, some.sampled_from(ChangeKind), some.none() | names, some.none() | names)
entries = some.builds(
    Entry.make, some.integers(1, 9), some.integers(1, 99), some.integers(0, 7), some.binary(max_size=40)
)
FIELDS: dict[object, some.SearchStrategy[Any]] = {
    Number: numbers,
    bool: some.booleans(),
    bytes: some.binary(max_size=100),
    str: names,
    EntryId: ids,
    Change: changes,
    Role: some.sampled_from(Role),
    EntryId | None: some.none() | ids,
    Change | None: some.none() | changes,
    str | None: some.none() | names,
    tuple[str, ...]: some.lists(names, max_size=4).map(tuple),
    tuple[Entry, ...]: some.lists(entries, max_size=4).map(tuple),
    dict[str, EntryId]: some.dictionaries(names, ids, max_size=4),
    dict[str, Number]: some.dictionaries(names, numbers, max_size=4),
}


def of_kind(kind: type[Message]) -> some.SearchStrategy[Message]:
    fields = {field.name: FIELDS[field.type] for field in msgspec.structs.fields(kind)}
    return some.builds(kind, **fields)


messages = some.one_of([of_kind(kind) for kind in KINDS])


def test_every_message_of_the_module_can_be_sent() -> None:
    defined = {each for each in vars(m).values() if isinstance(each, type) and issubclass(each, Message)}
    assert defined - {Message} == set(KINDS)
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=some.data())
def test_round_trip(kind: type[Message], data: some.DataObject) -> None:
    message = data.draw(of_kind(kind))
    again = decode(encode(message))
    assert again == message and type(again) is kind
    assert encode(again) == encode(message)


def refuses_or_reads(data: bytes) -> bool:
    """Whether it is refused as it should be; what is read must be a message that says the same again."""
    try:
        message = decode(data)
    except REFUSED:
        return True
    assert isinstance(message, KINDS)
    assert decode(encode(message)) == message
    return False


@given(messages)
def test_every_truncation_is_refused(message: Message) -> None:
    data = encode(message)
    for size in range(len(data)):
        assert refuses_or_reads(data[:size]), size


@given(messages, some.binary(min_size=1, max_size=8))
def test_bytes_behind_a_message_are_refused(message: Message, rest: bytes) -> None:
    assert refuses_or_reads(encode(message) + rest)


@given(messages, some.data())
def test_changed_bytes_are_refused_or_another_message(message: Message, data: some.DataObject) -> None:
    wire = bytearray(encode(message))
    for _ in range(data.draw(some.integers(1, 3))):
        wire[data.draw(some.integers(0, len(wire) - 1))] = data.draw(some.integers(0, 255))
    refuses_or_reads(bytes(wire))


def test_garbage_is_refused(record_property: Recorder) -> None:
    chance = random.Random(11)
    refused = sum(refuses_or_reads(chance.randbytes(chance.randrange(60))) for _ in range(50_000))
    record_property("pieces of garbage", 50_000)
    record_property("refused", refused)
    assert refused == 50_000


def with_entries(frames: object) -> bytes:
    return msgspec.msgpack.encode(["entries", 1, [0, 0], frames, 0])


def test_entries_are_checked_when_they_come_in() -> None:
    frame = Entry.make(1, 1, 1, b"payload").frame
    assert decode(with_entries([frame])) == m.AddEntriesRequest(1, EntryId(0, 0), (Entry.read(frame),), 0)
    flipped = bytes([*frame[:-1], frame[-1] ^ 1])
    for wrong in ([flipped], [frame[:-1]], [frame + b"x"], [b""], ["text"], [7], [None], frame):
        with pytest.raises(REFUSED):
            decode(with_entries(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        ["unknown", 1],
        ["fence"],
        ["fence", "one"],
        ["fence", 1.5],
        ["fence", None],
        ["fenced", 1, [1]],
        ["fenced", 1, [1, 2, 3]],
        ["prepare", 1, ["merge", "a", "b"]],
        ["lead", 1, "n1", {}],
        {"epoch": 1},
        7,
        None,
    ],
)
def test_the_wrong_shape_is_refused(wrong: object) -> None:
    with pytest.raises(REFUSED):
        decode(msgspec.msgpack.encode(wrong))


def test_nesting_without_end_is_refused() -> None:
    """Fields of a later version are skipped, but not for ever."""
    known = msgspec.msgpack.encode(["fence", 1])
    assert decode(b"\x93" + known[1:] + b"\x91\x07") == m.FenceRequest(1)
    with pytest.raises(REFUSED):
        decode(b"\x93" + known[1:] + b"\x91" * 100_000)


def test_a_change_knows_the_ensemble_after_it() -> None:
    members = ("a", "b", "c")
    assert Change(ChangeKind.SWAP, "b", "d").applied_to(members) == ("a", "c", "d")
    assert Change(ChangeKind.EXPAND, None, "d").applied_to(members) == ("a", "b", "c", "d")
    assert Change(ChangeKind.CONTRACT, "b", None).applied_to(members) == ("a", "c")
