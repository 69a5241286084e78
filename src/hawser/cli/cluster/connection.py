"""A cluster as the command line sees it: asked at the nodes of a URL, from outside any event loop."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

import hawser
from hawser.cli.options import chosen_url
from hawser.cluster import wire
from hawser.cluster.shard_map import ShardMap
from hawser.cluster.transport import (
    Address,
    BadAddress,
    Identity,
    Link,
    LinkSettings,
    PeerRole,
    TransportError,
    dial,
)

__all__ = ["ClusterView", "addresses", "administer", "connect_nodes", "find_shard", "refresh", "run"]

Result = TypeVar("Result")

_SCHEME: Final = "hawser://"
_DEFAULT_URL: Final = "hawser://127.0.0.1:7400"
_ANSWER_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.2
# Signals whose handlers end the command by an exception; asyncio itself sees to SIGINT.
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
_ERRORS: Final[dict[wire.Code, type[hawser.HawserError]]] = {
    wire.Code.NOT_FOUND: hawser.NotFound,
    wire.Code.UNAVAILABLE: hawser.Unavailable,
    wire.Code.BUSY: hawser.Unavailable,
    wire.Code.UNKNOWN: hawser.OutcomeUnknown,
}


class ClusterView(NamedTuple):
    """What the nodes that answer say: the map, and each node's own report."""

    map: ShardMap
    reports: dict[str, wire.Rolled]
    links: dict[str, Link]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it to its end in an event loop of its own. A signal that ends the command cancels the work first:
    an exception that its handler raised at once would end up in whichever task runs just then."""
    came: list[signal.Signals] = []
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(work)

    def end(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        # Of a loop that is closed already there is nothing to end.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    handlers = {each: handler for each in _ENDINGS if callable(handler := signal.getsignal(each))}
    for number in handlers:
        signal.signal(number, end)
    try:
        with runner:
            return runner.run(_result_of(task))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            handlers[came[0]](came[0], None)


async def _result_of(task: asyncio.Task[Result]) -> Result:
    return await task


def addresses() -> list[str]:
    """Those of the URL that was given, or the usual one on this machine."""
    url = chosen_url() or _DEFAULT_URL
    if not url.startswith(_SCHEME):
        raise hawser.UsageError(f"{url!r} is no cluster; give --url hawser://host:port,...")
    try:
        return [str(Address.parse(each)) for each in url.removeprefix(_SCHEME).rstrip("/").split(",")]
    except BadAddress as error:
        raise hawser.UsageError(f"in --url: {error}") from error


@asynccontextmanager
async def connect_nodes(given: list[str]) -> AsyncIterator[ClusterView]:
    """The nodes at these addresses and all that they know of; Unavailable if nobody answers."""
    problems: list[str] = []
    links: dict[str, Link] = {}
    shard_map = ShardMap()
    tried: set[str] = set()
    try:
        wanted = set(given)
        while wanted:
            tried |= wanted
            for link in await asyncio.gather(*(_dial(address, problems) for address in sorted(wanted))):
                if link is None:
                    continue
                assert link.peer is not None
                if link.peer.name in links:
                    await link.close("this node is known by another address")
                    continue
                links[link.peer.name] = link
                answer = await _ask(link, wire.GetMap())
                if isinstance(answer, wire.Map):
                    shard_map.merge(answer)
            wanted = {entry.address for entry in shard_map.nodes.values()} - tried
        if not links:
            raise hawser.Unavailable("; ".join(problems))
        answers = await asyncio.gather(*(_ask(link, wire.RollCall()) for link in links.values()))
        reports = {
            name: each for name, each in zip(links, answers, strict=True) if isinstance(each, wire.Rolled)
        }
        yield ClusterView(shard_map, reports, links)
    finally:
        await asyncio.gather(*(link.close("done") for link in links.values()))


async def _dial(address: str, problems: list[str]) -> Link | None:
    identity = Identity(role=PeerRole.CLIENT, name="command", run=secrets.token_hex(8))
    try:
        return await dial(address, identity, settings=LinkSettings(connect_seconds=_ANSWER_SECONDS))
    except TransportError as error:
        problems.append(str(error))
        return None


async def _ask(link: Link, request: wire.Request) -> wire.Answer | None:
    """None if it does not answer."""
    try:
        answer: wire.Answer = wire.decode_answer(await link.ask(wire.encode(request), _ANSWER_SECONDS))
    except TransportError:
        return None
    return answer


async def refresh(cluster: ClusterView) -> None:
    """Bring map and reports up to date."""
    for name, link in cluster.links.items():
        answer = await _ask(link, wire.GetMap())
        if isinstance(answer, wire.Map):
            cluster.map.merge(answer)
        rolled = await _ask(link, wire.RollCall())
        if isinstance(rolled, wire.Rolled):
            cluster.reports[name] = rolled


def find_shard(cluster: ClusterView, text: str) -> str:
    """The shard that a person names as TOPIC/PARTITION, or by its full name."""
    topic, _, partition = text.rpartition("/")
    entry = cluster.map.topics.get(topic)
    if (
        entry is not None
        and not entry.deleted
        and partition.isdecimal()
        and int(partition) < entry.partitions
    ):
        return wire.shards_of(topic, entry)[int(partition)]
    if text in cluster.map.shards:
        return text
    raise hawser.NotFound(f"there is no shard {text!r}; `hawser cluster status` shows them all")


async def administer(
    cluster: ClusterView, request: wire.Admin, meanwhile: Callable[[], Awaitable[bool]]
) -> wire.AdminDone | None:
    """Have an operator do it, and wait until it is done. `meanwhile` is called again and again until then;
    once it returns true nobody waits any more, and the result is None."""
    asking = asyncio.ensure_future(_administer(cluster, request))
    try:
        while not asking.done():
            if await meanwhile():
                return None
            await asyncio.wait([asking], timeout=_LOOK_SECONDS)
        return await asking
    finally:
        asking.cancel()


async def _administer(cluster: ClusterView, request: wire.Admin) -> wire.AdminDone:
    """By the first node that has an operator."""
    failed: wire.Failed | None = None
    for link in cluster.links.values():
        try:
            answer = wire.decode_answer(await link.ask(wire.encode(request), None))
        except TransportError as error:
            if error.was_sent:
                raise hawser.OutcomeUnknown(
                    f"the node that was asked is gone ({error}); `hawser cluster status` shows the outcome"
                ) from error
            continue
        if isinstance(answer, wire.AdminDone):
            return answer
        assert isinstance(answer, wire.Failed), answer
        failed = answer
        if answer.code is not wire.Code.UNAVAILABLE:
            break
    if failed is None:
        raise hawser.Unavailable("no node answers any more; see `hawser cluster status`")
    raise _ERRORS.get(failed.code, hawser.Rejected)(failed.text)
