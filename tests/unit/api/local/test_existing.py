"""Opening a topic only if it is there, and looking at the files of a domain."""

import asyncio
import os
from collections.abc import Iterator

import pytest

import hawser
from hawser.testing import LocalBus


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


def test_a_topic_that_is_not_there_is_not_made(local: LocalBus) -> None:
    bus = local.connect()
    with pytest.raises(hawser.NotFound, match="no topic 'x'"):
        bus.topic("x", create=False)
    assert os.listdir(local.directory) == []
    made = bus.topic("x", slot_size=100)
    assert bus.topic("x", create=False) is made
    other = local.connect().topic("x", create=False, slot_size=100)
    assert other.info().uuid == made.info().uuid
    with pytest.raises(hawser.SettingsMismatch, match="slot_size"):
        local.connect().topic("x", create=False, slot_size=200)


def test_files_tell_what_is_in_use(local: LocalBus) -> None:
    bus = local.connect()
    assert bus.files() == []
    topic = bus.topic("a/b", ephemeral=True)
    bus.topic("c").close()
    found = {each.file: (each.topic, each.state, each.in_use) for each in bus.files()}
    assert found == {
        ".lock": (None, "lock", False),
        "a%2Fb.topic": ("a/b", "topic", True),
        "c.topic": ("c", "topic", False),
    }
    assert {each.mode for each in bus.files()} == {0o600}
    topic.close()
    assert [each.topic for each in bus.files()] == [None, "c"]


def test_the_same_in_an_event_loop(local: LocalBus) -> None:
    async def look() -> list[hawser.DomainFile]:
        async with hawser.aio.connect(local.url) as bus:
            with pytest.raises(hawser.NotFound):
                bus.topic("x", create=False)
            await bus.topic("x").publish(b"1")
            return await bus.files()

    assert [each.topic for each in asyncio.run(look())] == [None, "x"]
