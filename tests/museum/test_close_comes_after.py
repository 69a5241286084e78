"""Whatever is closed in an event loop, what `publish_nowait` began comes first. Found by review."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster.client.client import TopicHandle
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

_numbers = itertools.count()


@pytest.fixture(params=["one host", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cluster":
        running: RunningCluster = request.getfixturevalue("cluster")
        yield running.url
    else:
        with LocalBus() as local:
            yield local.url


@pytest.mark.parametrize("closed", ["bus", "topic", "publisher"])
@pytest.mark.parametrize("is_open", [False, True])
def test_closing_comes_after_what_was_begun(url: str, closed: str, is_open: bool) -> None:
    """Publishes of a `publisher()` ended in Closed when its topic or its bus was closed."""
    name = f"closed {next(_numbers)}"

    async def story() -> None:
        bus = aio.connect(url)
        topic: Any = bus.topic(name)
        publisher = topic.publisher()
        if is_open:
            await publisher
        begun = [publisher.publish_nowait(b"%d" % number) for number in range(3)]
        if closed != "publisher":
            begun.append(topic.publisher().publish_nowait(b"3"))
            begun.append(topic.publish_nowait(b"4"))
        await {"bus": bus, "topic": topic, "publisher": publisher}[closed].close()
        assert all(each.done() for each in begun)
        assert len(await asyncio.gather(*begun)) == len(begun)
        with pytest.raises(hawser.Closed):
            await publisher.publish(b"late")
        await bus.close()

    async def seen() -> None:
        async with aio.connect(url) as bus:
            found = (await bus.topic(name).read_oldest(9)).samples
            assert len(found) == (3 if closed == "publisher" else 5)

    with hawser.connect(url) as holder:
        holder.topic(name)
        asyncio.run(asyncio.wait_for(story(), 60))
        asyncio.run(asyncio.wait_for(seen(), 60))


@pytest.mark.parametrize("is_open", [False, True])
def test_closing_comes_after_what_a_replaced_topic_began(cluster: RunningCluster, is_open: bool) -> None:
    """The bus waited only for the topic that it had returned last for a name."""

    async def story() -> None:
        async with aio.connect(cluster.url) as bus:
            name = f"replaced {next(_numbers)}"
            replaced: Any = bus.topic(name)
            if is_open:
                await replaced.info()
            begun = [replaced.publish_nowait(b"%d" % number) for number in range(3)]
            latest = bus.topic(name, partitions=1)
            assert latest is not replaced
            del replaced
        assert all(each.done() for each in begun)
        assert len(await asyncio.gather(*begun)) == len(begun)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_one_that_is_cancelled_does_not_let_others_pass() -> None:
    """Who came behind it did not wait for those before it, and neither did flush."""

    async def story(url: str) -> None:
        async with aio.connect(url) as bus:
            topic: Any = bus.topic("turns", slot_size=64, history=0, depth=2)
            subscription = topic.subscribe(reliable=True)
            await topic.publish_many([b"0", b"1"])
            begun = [topic.publish_nowait(each) for each in (b"2", b"cancelled", b"3", b"4")]
            await asyncio.sleep(0.05)
            begun[1].cancel()
            await asyncio.wait([begun[1]])
            flushed = asyncio.create_task(topic.flush())
            await asyncio.sleep(0.05)
            assert not flushed.done()
            found = [bytes(await subscription.take(60)) for _ in range(5)]
            assert found == [b"0", b"1", b"2", b"3", b"4"]
            await flushed
            assert all(each.done() for each in begun)

    with LocalBus() as local:
        asyncio.run(asyncio.wait_for(story(local.url), 60))


def test_closing_comes_after_an_opening(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that was closed while its first `take` opened it was open from then on: it read, and
    kept its partitions from the other members of its group."""
    released: list[object] = []
    subscribe, release = TopicHandle.subscribe, TopicHandle.release

    async def story() -> None:
        opening, may_open = asyncio.Event(), asyncio.Event()

        async def subscribe_later(self: TopicHandle, *place: Any) -> Any:
            opening.set()
            await may_open.wait()
            return await subscribe(self, *place)

        async def note_release(self: TopicHandle, user: Any) -> None:
            released.append(type(user))
            await release(self, user)

        monkeypatch.setattr(TopicHandle, "subscribe", subscribe_later)
        monkeypatch.setattr(TopicHandle, "release", note_release)
        async with aio.connect(cluster.url) as bus:
            subscription = bus.topic(f"closed {next(_numbers)}").subscribe(group="g")
            taking = asyncio.create_task(subscription.take())
            await opening.wait()
            late = asyncio.create_task(subscription.take())
            closing = asyncio.create_task(subscription.close())
            await asyncio.sleep(0)
            may_open.set()
            await closing
            assert released == [GroupMember]
            for each in (taking, late):
                with pytest.raises(hawser.Closed):
                    await each

    asyncio.run(asyncio.wait_for(story(), 60))
