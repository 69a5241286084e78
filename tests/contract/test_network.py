"""What the log's protocol may rely on in any network, the simulated one and links on loopback alike.

What arrives was sent, unchanged, by whom it says. Sending never waits and never fails. A host that stands
still or is gone costs nobody else anything. Once it is back, what is sent again gets through.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Protocol

import msgspec
import pytest

from hawser.cluster.transport import Dialer, Handler, Identity, Link, PeerRole, Request, Server, listen
from hawser.log.entry import Entry, EntryId
from hawser.log.protocol import messages as m
from hawser.testing.clock import SimClock
from hawser.testing.network import SimNetwork
from tests.support.links import LIMIT_SECONDS, LOOPBACK, PATIENT, run

HOSTS = ("a", "b", "c")
Heard = list[tuple[str, m.Message]]


class Network(Protocol):
    """Three hosts that hear what they are sent."""

    heard: dict[str, Heard]

    def send(self, sender: str, to: str, message: m.Message) -> None: ...
    async def settle(self) -> None:
        """Return when what is under way has arrived, except at hosts that stand still or are gone."""

    def pause(self, host: str) -> None: ...
    def resume(self, host: str) -> None: ...
    async def lose(self, host: str) -> None: ...
    async def bring_back(self, host: str) -> None: ...


class Simulated:
    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {host: [] for host in HOSTS}
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, Random(1), encoded_share=1.0)
        self.gone: set[str] = set()
        for host in HOSTS:
            self.network.attach(host, self._receive)

    def _receive(self, sender: str, to: str, payload: object) -> None:
        assert isinstance(payload, m.Message)
        if to not in self.gone:
            self.heard[to].append((sender, payload))

    def send(self, sender: str, to: str, message: m.Message) -> None:
        self.network.send(sender, to, message)

    async def settle(self) -> None:
        while self.clock.step():
            pass

    def pause(self, host: str) -> None:
        self.network.pause(host)

    def resume(self, host: str) -> None:
        self.network.resume(host)

    async def lose(self, host: str) -> None:
        self.gone.add(host)
        self.network.forget(host)

    async def bring_back(self, host: str) -> None:
        self.gone.discard(host)


class Ears(Handler):
    """Writes down who says what; answers requests, which then come behind all that was told before."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard

    def told(self, link: Link, body: bytes | bytearray) -> None:
        assert link.peer is not None
        self.heard.append((link.peer.name, m.decode(bytes(body))))

    def asked(self, link: Link, request: Request) -> bytes:
        return b""


class Real:
    """Links both ways between every two hosts; a host that stands still does not read."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {host: [] for host in HOSTS}
        self.servers: dict[str, Server] = {}
        self.dialers: dict[tuple[str, str], Dialer] = {}
        self.away: set[str] = set()

    async def start(self) -> None:
        for host in HOSTS:
            self.servers[host] = await self._listen(host, LOOPBACK)
        settings = msgspec.structs.replace(PATIENT, backoff_most_seconds=0.05)
        for sender in HOSTS:
            for to in HOSTS:
                if sender != to:
                    address = self.servers[to].address
                    self.dialers[sender, to] = Dialer(address, self._identity(sender), settings=settings)
                    self.dialers[sender, to].start()
        for dialer in self.dialers.values():
            await dialer.up(LIMIT_SECONDS)

    async def stop(self) -> None:
        await asyncio.gather(*(dialer.close() for dialer in self.dialers.values()))
        await asyncio.gather(*(server.close() for server in self.servers.values()))

    def send(self, sender: str, to: str, message: m.Message) -> None:
        self.dialers[sender, to].tell(m.encode(message))

    async def settle(self) -> None:
        for (_, to), dialer in self.dialers.items():
            if to not in self.away:
                link = await dialer.up(LIMIT_SECONDS)
                await link.ask(b"", LIMIT_SECONDS)

    def pause(self, host: str) -> None:
        self.away.add(host)
        for transport in self._transports(host):
            transport.pause_reading()

    def resume(self, host: str) -> None:
        self.away.discard(host)
        for transport in self._transports(host):
            transport.resume_reading()

    async def lose(self, host: str) -> None:
        self.away.add(host)
        links = [dialer.link for (_, to), dialer in self.dialers.items() if to == host]
        await self.servers[host].close()
        for link in links:
            assert link is not None
            await link.wait_closed()

    async def bring_back(self, host: str) -> None:
        self.servers[host] = await self._listen(host, self.servers[host].address)
        self.away.discard(host)
        for (_, to), dialer in self.dialers.items():
            if to == host:
                await dialer.up(LIMIT_SECONDS)

    def _transports(self, host: str) -> list[asyncio.Transport]:
        return [link._transport for link in self.servers[host].links if link._transport is not None]

    async def _listen(self, host: str, address: str) -> Server:
        return await listen(address, Ears(self.heard[host]), self._identity(host), settings=PATIENT)

    def _identity(self, host: str) -> Identity:
        return Identity(role=PeerRole.NODE, name=host, run=f"{host}#1")


@asynccontextmanager
async def simulated() -> AsyncIterator[Network]:
    yield Simulated()


@asynccontextmanager
async def real() -> AsyncIterator[Network]:
    network = Real()
    await network.start()
    try:
        yield network
    finally:
        await network.stop()


Scenario = Callable[[Network], Awaitable[None]]


@pytest.fixture(params=[simulated, real], ids=["simulated", "links"])
def on_network(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario on one of the networks."""

    def runner(scenario: Scenario) -> None:
        async def work() -> None:
            async with request.param() as network:
                await scenario(network)

        run(work())

    return runner


def entries(number: int, size: int = 100) -> m.Message:
    """A message that no other equals."""
    entry = Entry.make(1, number + 1, 1, bytes([number % 251]) * size)
    return m.AddEntriesRequest(1, EntryId(1, number), (entry,), number)


def test_what_arrives_was_sent(on_network: Callable[[Scenario], None]) -> None:
    async def scenario(network: Network) -> None:
        sent: dict[str, Counter[tuple[str, m.Message]]] = {host: Counter() for host in HOSTS}
        number = 0
        for size in (0, 100, 100_000):
            for sender in HOSTS:
                for to in HOSTS:
                    if sender != to:
                        number += 1
                        network.send(sender, to, entries(number, size))
                        sent[to][sender, entries(number, size)] += 1
        await network.settle()
        assert {host: Counter(heard) for host, heard in network.heard.items()} == sent

    on_network(scenario)


def test_a_host_that_stands_still_costs_nobody_else(on_network: Callable[[Scenario], None]) -> None:
    async def scenario(network: Network) -> None:
        network.pause("b")
        for number in range(1000):
            network.send("a", "b", entries(number))
            network.send("a", "c", entries(number))
        await network.settle()
        assert len(network.heard["c"]) == 1000 and not network.heard["b"]
        network.resume("b")
        await network.settle()
        assert Counter(network.heard["b"]) == Counter(network.heard["c"])

    on_network(scenario)


def test_a_host_that_is_gone_costs_nobody_else(on_network: Callable[[Scenario], None]) -> None:
    async def scenario(network: Network) -> None:
        await network.lose("b")
        for number in range(100):
            network.send("a", "b", entries(number))
            network.send("a", "c", entries(number))
        await network.settle()
        assert len(network.heard["c"]) == 100 and not network.heard["b"]
        await network.bring_back("b")
        network.send("a", "b", entries(1000))
        await network.settle()
        assert network.heard["b"][-1] == ("a", entries(1000))

    on_network(scenario)


def test_canary_a_network_that_mixes_up_senders() -> None:
    class Mixed(Simulated):
        def send(self, sender: str, to: str, message: m.Message) -> None:
            super().send("c" if sender == "a" and to == "b" else sender, to, message)

    @asynccontextmanager
    async def mixed() -> AsyncIterator[Network]:
        yield Mixed()

    def on_mixed(scenario: Scenario) -> None:
        async def work() -> None:
            async with mixed() as network:
                await scenario(network)

        run(work())

    with pytest.raises(AssertionError):
        test_what_arrives_was_sent(on_mixed)
