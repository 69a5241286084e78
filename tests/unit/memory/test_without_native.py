"""An installation whose native module is missing: a cluster serves it, and shared memory says what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import RunningCluster
from tests.support.installations import REQUIRED, BarePython, copy_hawser

MISSING = "shared memory (shm://), nodes and agents need Hawser's native module, and there is none here"
CURE = "Run `pip install --force-reinstall hawser-bus` with this Python, or use a cluster (hawser://)"

ON_A_CLUSTER = """
import asyncio, sys
import hawser

def transact(transaction):
    message = transaction.get(bus.queue("jobs"), timeout=60)
    transaction.publish(bus.topic("orders"), b"from a queue: " + bytes(message.data))

with hawser.connect(sys.argv[1], name="bare", connect_timeout=60) as bus:
    topic = bus.topic("orders", partitions=1)
    assert topic.publish(b"one", key=b"k", headers={"h": b"v"}).first_offset == 1
    bus.queue("jobs").put(b"job")
    bus.run_transaction(transact, 10)
    samples = topic.subscribe(start="earliest")
    values = []
    while len(values) < 2:
        sample = samples.take(60)
        assert isinstance(sample, hawser.Sample)
        values.append(bytes(sample.data))
    assert values == [b"one", b"from a queue: job"], values

async def main():
    async with await hawser.aio.connect(sys.argv[1]) as bus:
        topic = await bus.topic("orders")
        print((await topic.publish(b"three")).first_offset)

asyncio.run(main())
"""

ON_ONE_HOST = """
import hawser
for attempt in (hawser.connect, lambda: hawser.connect("shm:///somewhere"), lambda: hawser.Loan):
    try:
        attempt()
    except hawser.UsageError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def bare(module_path: Path) -> BarePython:
    python = BarePython(module_path / "bare", REQUIRED)
    copy_hawser(python.packages)
    return python


@pytest.fixture(scope="module")
def url(module_path: Path) -> Iterator[str]:
    with RunningCluster(module_path / "cluster") as cluster:
        yield cluster.url


def test_a_cluster_is_used_in_full(bare: BarePython, url: str) -> None:
    assert bare.run("-c", ON_A_CLUSTER, url).stdout.strip().isdecimal()


def test_shared_memory_says_what_is_missing(bare: BarePython) -> None:
    lines = bare.run("-c", ON_ONE_HOST).stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(MISSING) and CURE in line


def test_commands_for_a_cluster_work(bare: BarePython, url: str) -> None:
    command = "-m", "hawser"
    bare.run(*command, "--help")
    bare.run(*command, "topic", "pub", "made", "hello", "--url", url)
    assert "made" in bare.run(*command, "topic", "list", "--url", url).stdout
    bare.run(*command, "cluster", "status", "--url", url)
    bare.run(*command, "doctor", "--url", url)


@pytest.mark.parametrize("words", [("topic", "list"), ("ps",), ("agent",), ("doctor",)])
def test_commands_for_one_host_say_what_is_missing(bare: BarePython, words: tuple[str, ...]) -> None:
    assert MISSING in bare.run("-m", "hawser", *words, code=2).stderr


def test_a_node_says_what_is_missing(bare: BarePython, tmp_path: Path) -> None:
    words = "-m", "hawser", "node", "--id", "a", "--dir", tmp_path
    assert MISSING in bare.run(*words, code=2).stderr
