"""A peer that answers with other types, other lengths or garbage: its link is closed, the request is sent
again, and what was done is done once. No pipeline of the client stands still."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.transport import Address, Handler, Link, PeerRole, Request, Server, dial, listen
from hawser.cluster.transport.handshake import Identity
from hawser.log.queue.claims import Token
from hawser.log.queue.dispatcher import DeliveryBatch
from hawser.log.state import results as r
from hawser.xa import Xid
from tests.support.cluster import RunningCluster

# Nothing takes so long, however busy the machine is.
SECONDS = 60.0
# So many answers are lies.
LIES = 2

Lie = Callable[[Any], bytes]


class Liar(Handler):
    """Hands requests on to a node, as their client, and answers with what the node says, or with a lie."""

    def __init__(self, node: str) -> None:
        self.address = ""
        self.lies_told = 0
        self.closed_for: list[str] = []
        self._node = node
        self._links: dict[Link, asyncio.Task[Link]] = {}
        self._kind: type[Any] | None = None
        self._lie: Lie | None = None

    def lie(self, kind: type[Any], lie: Lie) -> None:
        self._kind, self._lie, self.lies_told = kind, lie, 0

    def opened(self, link: Link) -> None:
        assert link.peer is not None
        self._links[link] = asyncio.create_task(dial(self._node, link.peer))

    def closed(self, link: Link, reason: str) -> None:
        self.closed_for.append(reason)
        self._links.pop(link).add_done_callback(lambda ended: ended.result().abort("its client has gone"))

    async def _answer(self, link: Link, body: bytes | bytearray) -> bytes:
        request = wire.decode_request(body)
        upstream = await asyncio.shield(self._links[link])
        answer = wire.decode_answer(await upstream.ask(bytes(body), SECONDS))
        if isinstance(answer, wire.Map):
            nodes = {name: replaced(node, address=self.address) for name, node in answer.nodes.items()}
            answer = replaced(answer, nodes=nodes)
        if type(request) is self._kind and self._lie is not None and self.lies_told < LIES:
            self.lies_told += 1
            return self._lie(answer)
        return wire.encode(answer)

    def asked(self, link: Link, request: Request) -> Any:
        return self._answer(link, request.body)


def replaced(answer: Any, **fields: Any) -> Any:
    kept = {name: getattr(answer, name) for name in answer.__struct_fields__}
    return type(answer)(**{**kept, **fields})


def executed(result: r.Result) -> Lie:
    return lambda _: wire.encode(wire.Executed(r.encode_result(result)))


def garbage(_: object) -> bytes:
    return b"\xc1 no message"


def other_type(answer: Any) -> bytes:
    other = wire.Hosted("m") if isinstance(answer, wire.AdminDone) else wire.AdminDone(True, "it is done")
    return wire.encode(other)


def with_fields(**fields: Any) -> Lie:
    return lambda answer: wire.encode(replaced(answer, **fields) if _has(answer, fields) else answer)


def _has(answer: Any, fields: dict[str, Any]) -> bool:
    return set(fields) <= set(answer.__struct_fields__)


def sent_nowhere(_: object) -> bytes:
    failed = wire.Failed(wire.Code.NOT_LEADER, "elsewhere", True, leader=("n9", "no address"))
    return wire.encode(failed)


def batches_of_garbage(answer: Any) -> bytes:
    delivery_batch = DeliveryBatch(Token(1, 1), 1, 1, 1, False, b"no batch")
    return wire.encode(replaced(answer, delivery_batches=(delivery_batch,)))


GENERAL: dict[str, Lie] = {"garbage": garbage, "other type": other_type, "sent nowhere": sent_nowhere}
SPECIAL: dict[type[Any], dict[str, Lie]] = {
    wire.GetMap: {"address": with_fields(nodes={"n1": wire.NodeEntry("nowhere", True)})},
    wire.Publish: {"result": executed(r.Deleted(True)), "unreadable": with_fields(result=b"\xc1")},
    wire.QueuePut: {"result": executed(r.Deleted(True)), "nowhere": executed(r.Accepted(-1, 0))},
    wire.Execute: {"result": executed(r.Expired(1)), "unreadable": with_fields(result=b"")},
    wire.Fetch: {
        "offset": with_fields(batches=((1 << 40, memoryview(b"x")),)),
        "batch": with_fields(batches=((1, memoryview(b"no batch")),)),
    },
    wire.Inspect: {"bounds": with_fields(start=9, end=1)},
    wire.KeepAlive: {"generation": with_fields(generation=-1)},
    wire.QueueGet: {"messages": batches_of_garbage},
    wire.QueueSettle: {
        "result": executed(r.Deleted(True)),
        "claims": lambda _: wire.encode(wire.Turned("no", ((1, 1, 1 << 40),))),
    },
    wire.QueueLook: {"counts": with_fields(delivered=9, count=1), "messages": batches_of_garbage},
    wire.Transact: {
        "none": with_fields(results=()),
        "more": with_fields(results=(b"\xc1",) * 99),
        "unreadable": lambda answer: wire.encode(wire.Transacted((b"\xc1",) * len(answer.results))),
        "result": lambda answer: wire.encode(
            wire.Transacted((r.encode_result(r.Deleted(True)),) * len(answer.results))
        ),
    },
    wire.TransactionLook: {"outcome": with_fields(outcome=99)},
    wire.Admin: {},
}
CASES = [
    pytest.param(kind, lie, id=f"{kind.__name__}-{name.replace(' ', '-')}")
    for kind, own in SPECIAL.items()
    for name, lie in {**GENERAL, **own}.items()
]


@pytest.fixture(scope="module")
def node(module_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(module_path, nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def liar(node: RunningCluster) -> Iterator[Liar]:
    async def begin() -> tuple[Liar, Server]:
        handler = Liar(node.url.removeprefix("hawser://"))
        identity = Identity(role=PeerRole.NODE, name="liar", run="liar")
        server = await listen("127.0.0.1:0", handler, identity)
        handler.address = str(Address.parse(server.address))
        return handler, server

    handler, server = node.run(begin())
    yield handler
    node.run(server.close())


class Walk:
    """Uses every request of a client; what it has published and put is there once."""

    def __init__(self, bus: hawser.Bus, tag: str) -> None:
        self.bus = bus
        self.tag = tag

    def run(self) -> None:
        self._publish()
        self._read_in_a_group()
        self._use_a_queue()
        self._transact()

    def _publish(self) -> None:
        self.topic = self.bus.topic(f"t-{self.tag}", replication=1)
        assert self.topic.publish(b"1").first_offset == 1
        assert self.topic.publish_many([b"2", b"3"])[0].first_offset == 2
        assert [bytes(each) for each in self.topic.read_oldest(9).samples] == [b"1", b"2", b"3"]
        assert self.topic.info().head == 3

    def _read_in_a_group(self) -> None:
        with self.topic.subscribe(group="g", start="earliest") as subscription:
            found: list[bytes] = []
            while len(found) < 3:
                found += [bytes(each) for each in subscription.take_many(3, SECONDS)]
            assert found == [b"1", b"2", b"3"]
            subscription.commit()
        with suppress(hawser.OutcomeUnknown):
            self.topic.forget("group:g")

    def _use_a_queue(self) -> None:
        queue = self.queue = self.bus.queue(f"q-{self.tag}", replication=1)
        for value in (b"1", b"2"):
            queue.put(value)
        assert [bytes(each) for each in queue.peek(9)] == [b"1", b"2"]
        for value in (b"1", b"2"):
            message = queue.get(SECONDS)
            assert message is not None and bytes(message) == value
            message.accept()
        assert queue.get(0) is None and queue.info().ready == 0

    def _transact(self) -> None:
        for _ in range(2):
            with self.bus.transaction() as transaction:
                transaction.publish(self.topic, b"4")
                transaction.publish(self.queue, b"3")
        assert [bytes(each) for each in self.topic.read_oldest(9).samples] == [b"1", b"2", b"3", b"4", b"4"]
        assert [bytes(each) for each in self.queue.peek(9)] == [b"3", b"3"]
        xid = Xid(4711, self.tag.encode(), b"b")
        self.bus.xa.start(xid).publish(self.topic, b"5")
        self.bus.xa.end(xid)
        assert self.bus.xa.prepare(xid) == "ok"
        assert xid in self.bus.xa.recover()
        self.bus.xa.commit(xid)
        assert self.topic.read_newest(9).samples[-1].offset == 6


@pytest.mark.parametrize(("kind", "lie"), CASES)
def test_a_lie_is_noticed_and_changes_nothing(
    liar: Liar, kind: type[Any], lie: Lie, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    tag = str(CASES.index(next(each for each in CASES if each.values == (kind, lie))))
    liar.closed_for.clear()
    liar.lie(kind, lie)
    url = f"hawser://{liar.address}"
    with (
        caplog.at_level(logging.WARNING),
        hawser.connect(url, timeout=SECONDS, connect_timeout=SECONDS) as bus,
    ):
        Walk(bus, tag).run()
    # A member of a group asks again only after a while.
    assert liar.lies_told == LIES or (kind is wire.KeepAlive and liar.lies_told)
    noticed = [each for each in liar.closed_for if "malformed" in each]
    # Of two at the same time the second is lost with the link.
    assert 1 <= len(noticed) <= liar.lies_told, liar.closed_for
    if lie is not garbage:
        assert all(kind.__name__ in each for each in noticed), noticed
    assert all("node liar" in each and "version 1" in each for each in noticed), noticed
