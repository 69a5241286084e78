"""Peers that send what no sound peer sends: each costs its own link, and nobody else anything."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from hawser.cluster import wire
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.transport import Identity, Link, PeerRole, TransportError, dial
from hawser.log.entry import Kind
from hawser.log.protocol import messages as m
from hawser.log.state.results import Accepted, decode_result
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.identity import Label, TransactionId, Xid

ATTEMPTS = 1500
ASK_SECONDS = 20.0
LABEL = Label(TransactionId(Xid(1, b"global", b"branch"), 1), 1).encode()


def _sound_requests(shard: str) -> list[bytes]:
    batch = bytes(Batch.of([Record(b"x" * 50)]).data)
    requests = [
        wire.GetMap("orders"),
        wire.Publish(shard, batch),
        wire.Execute(shard, Kind.TRIM, b"\x92\x01\x00"),
        wire.Fetch(shard, 1, 1000, 0.0),
        wire.Inspect(shard, 1, True),
        wire.Transact(
            shard, (wire.Labelled(Kind.BATCH, batch, LABEL), wire.Labelled(65, b"\x91\xc0", LABEL))
        ),
        wire.Transact(shard, (wire.Labelled(Kind.HOME_FORGET, b"\x91\x90"),)),
        wire.TransactionLook(shard, (1, b"global", b"branch"), 1),
        wire.Admin(wire.AdminKind.TRANSFER, shard, ("n9",)),
        wire.RollCall(),
        wire.Host("other@12345678/0"),
    ]
    return [wire.encode(each) for each in requests]


def _sound_tellings(shard: str) -> list[bytes]:
    fence = m.encode(m.FenceRequest(1 << 40))
    return [
        wire.encode(wire.Deliver(shard, "n1.0", "n2.0", fence)),
        wire.encode(wire.MapPushed(wire.Map("c", {}, {}, {}))),
    ]


def _changed(random: Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(random.randrange(1, 4)):
        kind = random.randrange(3)
        place = random.randrange(len(changed) or 1)
        if kind == 0 and changed:
            changed[place] = random.randrange(256)
        elif kind == 1:
            del changed[place:]
        else:
            changed[place:place] = random.randbytes(random.randrange(1, 20))
    return bytes(changed)


def test_strangers(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    counts = asyncio.run(_run(tmp_path, Random(7)))
    for name, value in counts.items():
        record_property(name, value)


async def _run(directory: Path, random: Random) -> dict[str, int]:
    cluster = EmbeddedCluster(directory)
    await cluster.start()
    counts = {"changed requests": 0, "answered": 0, "links closed": 0, "published meanwhile": 0}
    try:
        node = cluster.nodes[0]
        good = await _client(node.address)
        created = await _ask(good, wire.Admin(wire.AdminKind.CREATE, "orders", settings={"replication": 1}))
        assert isinstance(created, wire.AdminDone) and created.done
        found = await _ask(good, wire.GetMap("orders"))
        assert isinstance(found, wire.Map)
        ((shard, entry),) = found.shards.items()
        assert entry.leader is not None
        leader = next(each for each in cluster.nodes if entry.leader.startswith(f"{each.name}."))
        good = await _client(leader.address)
        bad = await _client(leader.address)
        for _ in range(ATTEMPTS):
            if not bad.is_open:
                counts["links closed"] += 1
                bad = await _client(leader.address)
            counts["changed requests"] += 1
            counts["answered"] += await _attack(bad, random, shard)
            if random.random() < 0.05:
                await _publish(good, shard)
                counts["published meanwhile"] += 1
        assert good.is_open
        await _publish(good, shard)
        assert not any(each.replica.halted for node in cluster.nodes for each in node.shards.values())
    finally:
        await cluster.stop()
    return counts


async def _client(address: str) -> Link:
    return await dial(address, Identity(role=PeerRole.CLIENT, name="stranger", run="1"))


async def _ask(link: Link, request: wire.Request) -> wire.Answer:
    return wire.decode_answer(await link.ask(wire.encode(request), ASK_SECONDS))


async def _attack(link: Link, random: Random, shard: str) -> bool:
    """Whether it was answered."""
    if random.random() < 0.1:
        link.tell(random.choice(_sound_tellings(shard)))
        return False
    body = _changed(random, random.choice(_sound_requests(shard)))
    try:
        answer = await link.ask(body, ASK_SECONDS)
    except TransportError:
        return False
    try:
        wire.decode_answer(answer)
    except msgspec.DecodeError as error:
        raise AssertionError(f"{body!r} was answered with {answer!r}") from error
    return True


async def _publish(link: Link, shard: str) -> None:
    answer = await _ask(link, wire.Publish(shard, bytes(Batch.of([Record(b"good")]).data)))
    assert isinstance(answer, wire.Executed), answer
    assert isinstance(decode_result(answer.result), Accepted)
