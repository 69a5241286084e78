"""A cluster for tests: real sockets, real disks, three nodes and an operator in a thread of this process."""

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import hawser
from hawser.cluster import wire
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.node.server import Node, NodeSettings
from hawser.cluster.transport import Identity, PeerRole, dial
from tests.support.etcd import free_ports
from tests.support.processes import LIMIT_SECONDS

Result = TypeVar("Result")


class RunningCluster:
    """Runs until its block ends. Nodes can be stopped and started again at the same address."""

    def __init__(self, directory: Path, nodes: int = 3, settings: NodeSettings | None = None) -> None:
        self._settings = settings
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        # No ports of the kernel's choice: while a node is stopped, somebody else might be given its own.
        self._cluster = EmbeddedCluster(
            directory, nodes, f"127.0.0.1:{free_ports(nodes)[0]}", node_settings=settings
        )
        self.run(self._cluster.start())
        self._nodes = {node.name: node for node in self._cluster.nodes}
        self._addresses = {node.name: node.address for node in self._cluster.nodes}
        self.url = self._cluster.url
        self.buses: list[hawser.Bus] = []

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, done in the loop of the cluster."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """As `run`, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def connect(self, name: str | None = None, **options: Any) -> hawser.Bus:
        """A bus of this cluster, closed with it."""
        bus = hawser.connect(self.url, name=name, **{"connect_timeout": LIMIT_SECONDS, **options})
        self.buses.append(bus)
        return bus

    @property
    def nodes(self) -> list[str]:
        """Those that run."""
        return sorted(self._nodes)

    def stop(self, name: str) -> None:
        """Stop a node at once; what it leads is handed to nobody."""
        self.run(self._nodes.pop(name).stop(drain=False))

    def start(self, name: str) -> None:
        """Start a node that was stopped, with its disk and address."""

        async def start() -> Node:
            node = Node(name, self._directory / name, self._settings)
            await node.start(self._addresses[name])
            return node

        self._nodes[name] = self.run(start())

    def back_up(self, to: Path) -> None:
        """Copy nodes and metadata, as they are while everything is stopped; clients live on."""
        self.halt()
        shutil.copytree(self._directory, to)
        self.go_on()

    def restore(self, backup: Path) -> None:
        """Put back what `back_up` has copied, while everything is stopped; clients live on."""
        self.halt()
        self.put_back(backup)
        self.go_on()

    def put_back(self, backup: Path) -> None:
        """The files of a restore."""
        shutil.rmtree(self._directory)
        shutil.copytree(backup, self._directory)

    def halt(self) -> None:
        """Stop all nodes and the operator."""
        self._cluster.nodes[:] = list(self._nodes.values())
        self.run(self._cluster.stop())

    def go_on(self) -> None:
        """Start all nodes, at their addresses, and an operator."""
        first = self._addresses[min(self._addresses)]
        self._cluster = EmbeddedCluster(
            self._directory, len(self._addresses), first, node_settings=self._settings
        )
        self.run(self._cluster.start())
        self._nodes = {node.name: node for node in self._cluster.nodes}

    def ask(self, request: Any, node: str | None = None) -> Any:
        """The answer of a node, of any if none is named, to a request as clients send it."""
        return self.run(_asked(self._addresses[node or self.nodes[0]], request))

    def transfer(self, shard: str, node: str) -> None:
        """Let another node lead a shard."""
        answer = self.ask(wire.Admin(wire.AdminKind.TRANSFER, shard, (node,)))
        assert isinstance(answer, wire.AdminDone) and answer.done, answer

    def delete(self, name: str) -> Any:
        """The answer of an operator who is asked to delete what has this name now, if anything has."""
        known = self.ask(wire.GetMap(name)).topics.get(name)
        uuid = "unknown" if known is None else known.uuid
        return self.ask(wire.Admin(wire.AdminKind.DELETE, name, uuid=uuid))

    def close(self) -> None:
        while self.buses:
            self.buses.pop().close()
        self.halt()
        self.run(_idle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _asked(address: str, request: Any) -> wire.Answer:
    link = await dial(address, Identity(role=PeerRole.CLIENT, name="test", run="test"))
    try:
        answer: wire.Answer = wire.decode_answer(await link.ask(wire.encode(request), LIMIT_SECONDS))
        return answer
    finally:
        await link.close()


async def _idle() -> None:
    """Let what was cancelled end, so that the loop closes in peace."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
