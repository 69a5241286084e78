"""etcd with its default sync of every write, called at its leader through grpcio.

The messages of its API are encoded by hand, because protobuf would make the client slower.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time, rate_in_flight, rate_of_futures
from hawser.bench.cluster.servers import Process, free_ports, place_on_disk, wait_until
from hawser.bench.processes import Gate

_PUT = "/etcdserverpb.KV/Put"
_TRANSACTION = "/etcdserverpb.KV/Txn"
# Keys are reused after this many, so that the index stays small.
_KEYS = 10_000
# The place where scripts/install_etcd.sh installs it in a checkout.
_UNPACKED = Path(__file__).resolve().parents[3] / "build" / "etcd" / "usr" / "bin"
_HEALTH_SECONDS = 5.0


def program() -> str | None:
    """The path of the server; None if it is not installed."""
    return shutil.which("etcd") or shutil.which("etcd", path=str(_UNPACKED))


def installed() -> bool:
    return program() is not None and importlib.util.find_spec("grpc") is not None


# The servers.


@contextmanager
def etcd_servers() -> Iterator[str]:
    """Three members with default settings; yields the address of the leader."""
    found = program()
    assert found is not None
    ports = free_ports(6)
    clients, peers = ([f"http://127.0.0.1:{port}" for port in half] for half in (ports[:3], ports[3:]))
    cluster = ",".join(f"e{number}={peer}" for number, peer in enumerate(peers))
    with place_on_disk() as directory:
        members = [
            Process(_command(found, number, directory, client, peer, cluster), directory / f"e{number}.log")
            for number, (client, peer) in enumerate(zip(clients, peers, strict=True))
        ]
        try:
            wait_until(lambda: all(map(_is_healthy, clients)), members, "etcd")
            yield next(filter(_leads, clients)).removeprefix("http://")
        finally:
            for member in members:
                member.kill()


def _command(found: str, number: int, directory: Path, client: str, peer: str, cluster: str) -> list[str]:
    return [
        found,
        f"--name=e{number}",
        f"--data-dir={directory / str(number)}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={cluster}",
    ]


def _is_healthy(client: str) -> bool:
    try:
        with urllib.request.urlopen(f"{client}/health", timeout=_HEALTH_SECONDS) as answer:
            return b"true" in answer.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _leads(client: str) -> bool:
    request = urllib.request.Request(f"{client}/v3/maintenance/status", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=_HEALTH_SECONDS) as answer:
        status = json.load(answer)
    return bool(status["leader"] == status["header"]["member_id"])


# The messages: each field is its number and type, then its length, then its bytes.


def _field(number: int, content: bytes) -> bytes:
    length, size = len(content), bytearray([number << 3 | 2])
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes(size) + content


def put_request(key: bytes, value: bytes) -> bytes:
    """PutRequest(key, value)."""
    return _field(1, key) + _field(2, value)


def transaction_request(puts: list[bytes]) -> bytes:
    """TxnRequest(success=[RequestOp(request_put=put), ...]), without a condition."""
    return b"".join(_field(2, _field(2, put)) for put in puts)


def _put(number: int) -> bytes:
    return put_request(b"measured-%d" % (number % _KEYS), VALUE)


def _transaction(number: int, batch: int) -> bytes:
    # A transaction may write a key only once.
    return transaction_request([_put(number * batch + place) for place in range(batch)])


# The measured loops.


def put_one_at_a_time(address: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each put."""
    grpc: Any = importlib.import_module("grpc")
    with grpc.insecure_channel(address) as channel:
        put = channel.unary_unary(_PUT)
        put(_put(0))
        gate.start()
        gate.finish(one_at_a_time(lambda number: put(_put(number)), load))


def put_in_flight(address: str, load: Load, gate: Gate) -> None:
    """Puts acknowledged per second."""
    asyncio.run(_put_in_flight(address, load, gate))


async def _put_in_flight(address: str, load: Load, gate: Gate) -> None:
    grpc_aio: Any = importlib.import_module("grpc.aio")
    async with grpc_aio.insecure_channel(address) as channel:
        put = channel.unary_unary(_PUT)
        await put(_put(0))
        gate.start()
        gate.finish(await rate_in_flight(lambda number: put(_put(number)), load))


def put_in_transactions(address: str, load: Load, gate: Gate) -> None:
    """Puts acknowledged per second, with a batch of them in each transaction."""
    grpc: Any = importlib.import_module("grpc")
    with grpc.insecure_channel(address) as channel:
        commit = channel.unary_unary(_TRANSACTION)
        commit(_transaction(0, load.batch))
        gate.start()
        gate.finish(rate_of_futures(lambda number: commit.future(_transaction(number, load.batch)), load))
