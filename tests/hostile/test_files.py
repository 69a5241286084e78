"""Files in place of a topic that are damaged, foreign, cut short, too new or of an earlier boot."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, Child

VERSION_AT = 8
KIND_AT = 12
HASH_AT = 16
BOOT_AT = 40
SETTINGS_AT = 88


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], type[hawser.HawserError]]] = {
    "empty": (lambda data: b"", hawser.Corrupt),
    "one byte": (lambda data: b"H", hawser.Corrupt),
    "half a label": (lambda data: data[:512], hawser.Corrupt),
    "a label alone": (lambda data: data[:1024], hawser.Corrupt),
    "cut short": (lambda data: data[:-1], hawser.Corrupt),
    "half": (lambda data: data[: len(data) // 2], hawser.Corrupt),
    "too long": (lambda data: data + bytes(4096), hawser.Corrupt),
    "a text": (lambda data: b"Dear reader,\n" * 10_000, hawser.Corrupt),
    "zeros": (lambda data: bytes(len(data)), hawser.Corrupt),
    "ones": (lambda data: b"\xff" * len(data), hawser.Corrupt),
    "another kind": (lambda data: data[:KIND_AT] + b"\x07\0\0\0" + data[KIND_AT + 4 :], hawser.Corrupt),
    "a newer version": (
        lambda data: data[:VERSION_AT] + struct.pack("<I", 999) + data[VERSION_AT + 4 :],
        hawser.SettingsMismatch,
    ),
    "another magic": (lambda data: flipped(data, 0), hawser.Corrupt),
    "another hash": (lambda data: flipped(data, HASH_AT), hawser.Corrupt),
    "another boot": (lambda data: flipped(data, BOOT_AT), hawser.Corrupt),
    "another setting": (lambda data: flipped(data, SETTINGS_AT), hawser.Corrupt),
    "huge settings": (
        lambda data: data[:SETTINGS_AT] + b"\xff" * 40 + data[SETTINGS_AT + 40 :],
        hawser.Corrupt,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_is_refused_and_left_as_it_is(local: LocalBus, damage: str) -> None:
    bus = local.connect()
    bus.topic("bad", slot_size=64).publish(b"x")
    bus.topic("good", slot_size=64).publish(b"y")
    bus.close()
    path = local.directory / "bad.topic"
    change, error = DAMAGES[damage]
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()

    def open_it(channel: Channel) -> None:
        own = hawser.connect(local.url)
        for _ in range(2):
            with pytest.raises(error, match=r"bad\.topic") as refused:
                own.topic("bad")
            assert not refused.value.retryable
        assert bytes(own.topic("good").read_oldest(1).samples[0]) == b"y"
        assert [each.topic for each in own.participants()] == []
        own.recover()

    # In a child, so that a crash is a failure like any other.
    with Child(open_it):
        pass
    assert path.read_bytes() == before


def test_every_bit_of_a_label_is_watched(local: LocalBus) -> None:
    local.connect().topic("bits", slot_size=64).close()
    path = local.directory / "bits.topic"
    sound = path.read_bytes()
    own = local.connect()
    unnoticed = []
    for place in range(1024):
        path.write_bytes(flipped(sound, place))
        try:
            own.topic("bits").close()
            unnoticed.append(place)
        except (hawser.Corrupt, hawser.SettingsMismatch):
            continue
    assert unnoticed == []


def test_a_truncated_file_under_a_living_topic(local: LocalBus, tmp_path: Path) -> None:
    """Who cuts a file short while it is in use ends those that touch the missing part, not the others."""
    topic = local.connect().topic("whole", slot_size=64)
    other = local.connect().topic("other", slot_size=64)
    other.publish(b"fine")
    path = local.directory / "whole.topic"

    def use_it(channel: Channel) -> None:
        own = hawser.connect(local.url).topic("whole")
        own.publish(b"x")
        channel.tell("ready")
        channel.hear()
        own.read_oldest(1)

    child = Child(use_it)
    child.hear()
    path.write_bytes(path.read_bytes()[:4096])
    child.tell("go")
    with pytest.raises(AssertionError, match="status"):
        child.join()
    child.close()
    assert bytes(other.read_oldest(1).samples[0]) == b"fine"
    del topic


def test_a_deleted_file_is_a_closed_topic(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("gone", slot_size=64)
    topic.publish(b"x")
    (local.directory / "gone.topic").unlink()
    assert bytes(topic.read_oldest(1).samples[0]) == b"x"
    with pytest.raises(hawser.Closed):
        topic.subscribe()
    assert bus.topics() == []
