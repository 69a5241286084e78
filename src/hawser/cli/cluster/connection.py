"""Connections of a command to all nodes of a cluster, and an event loop for the command."""

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
# Signals whose handlers end the command with an exception. asyncio handles SIGINT itself.
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
_ERRORS: Final[dict[wire.Code, type[hawser.HawserError]]] = {
    wire.Code.NOT_FOUND: hawser.NotFound,
    wire.Code.UNAVAILABLE: hawser.Unavailable,
    wire.Code.BUSY: hawser.Unavailable,
    wire.Code.UNKNOWN: hawser.OutcomeUnknown,
}


class ClusterView(NamedTuple):
    """The cluster as its answering nodes report it: the shard map and the report of each node."""

    map: ShardMap
    reports: dict[str, wire.Rolled]
    links: dict[str, Link]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` in a new event loop. A signal that ends the command cancels the work before its handler
    raises, because the exception would otherwise hit whichever task runs at that moment."""
    came: list[signal.Signals] = []
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(work)

    def end(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        # The loop may be closed already.
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
    """The addresses in the URL of the command line, or the default address on this machine."""
    url = chosen_url() or _DEFAULT_URL
    if not url.startswith(_SCHEME):
        raise hawser.UsageError(f"{url!r} is not a cluster; give --url hawser://host:port,...")
    try:
        return [str(Address.parse(each)) for each in url.removeprefix(_SCHEME).rstrip("/").split(",")]
    except BadAddress as error:
        raise hawser.UsageError(f"in --url: {error}") from error


@asynccontextmanager
async def connect_nodes(given: list[str]) -> AsyncIterator[ClusterView]:
    """Connect to the nodes at these addresses and to all nodes they know; Unavailable if none answers."""
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
    """The answer, or None if the node does not answer."""
    try:
        answer: wire.Answer = wire.decode_answer(await link.ask(wire.encode(request), _ANSWER_SECONDS))
    except TransportError:
        return None
    return answer


async def refresh(cluster: ClusterView) -> None:
    """Update the map and the reports."""
    for name, link in cluster.links.items():
        answer = await _ask(link, wire.GetMap())
        if isinstance(answer, wire.Map):
            cluster.map.merge(answer)
        rolled = await _ask(link, wire.RollCall())
        if isinstance(rolled, wire.Rolled):
            cluster.reports[name] = rolled


def find_shard(cluster: ClusterView, text: str) -> str:
    """The shard named TOPIC/PARTITION, or by its full name."""
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
    raise hawser.NotFound(f"no shard {text!r}; `hawser cluster status` lists the shards")


async def administer(
    cluster: ClusterView, request: wire.Admin, meanwhile: Callable[[], Awaitable[bool]]
) -> wire.AdminDone | None:
    """Ask an operator to execute the request, and wait for its result. `meanwhile` is called at intervals;
    once it returns true, stop waiting and return None."""
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
    """Send the request to the first node that is connected to an operator."""
    failed: wire.Failed | None = None
    for link in cluster.links.values():
        try:
            answer = wire.decode_answer(await link.ask(wire.encode(request), None))
        except TransportError as error:
            if error.was_sent:
                raise hawser.OutcomeUnknown(
                    f"the connection to the node was lost ({error}); "
                    "`hawser cluster status` shows the outcome"
                ) from error
            continue
        if isinstance(answer, wire.AdminDone):
            return answer
        assert isinstance(answer, wire.Failed), answer
        failed = answer
        if answer.code is not wire.Code.UNAVAILABLE:
            break
    if failed is None:
        raise hawser.Unavailable("no node answers; see `hawser cluster status`")
    raise _ERRORS.get(failed.code, hawser.Rejected)(failed.text)
