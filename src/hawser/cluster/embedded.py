"""A whole cluster in one process, with nodes, an operator and SQLite: for one machine, demos and tests."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from hawser.cluster.health import Metric
from hawser.cluster.metrics import operator_metrics
from hawser.cluster.node.server import Node, NodeSettings
from hawser.cluster.operator.service import OperatorService, OperatorSettings
from hawser.cluster.stores import open_store
from hawser.cluster.transport import Address, BadAddress, Unreachable
from hawser.errors import UsageError

__all__ = ["EmbeddedCluster", "EmbeddedDaemon"]

_log = logging.getLogger("hawser.cluster.embedded")


class EmbeddedCluster:
    """Nodes `n1`, `n2`, ... in `directory`, all in the running event loop. The nodes listen at the port of
    `listen` and the following ones; with port 0 the system chooses."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        listen: str = "127.0.0.1:0",
        node_settings: NodeSettings | None = None,
        operator_settings: OperatorSettings | None = None,
    ) -> None:
        self._directory = directory
        try:
            self._listen = Address.parse(listen)
        except BadAddress as error:
            raise UsageError(str(error)) from error
        self._operator_settings = operator_settings
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.nodes = [Node(name, directory / name, node_settings) for name in names]
        self.operator: OperatorService | None = None

    @property
    def url(self) -> str:
        return "hawser://" + ",".join(node.address for node in self.nodes)

    async def start(self) -> None:
        """Returns when the operator has reached every node."""
        for place, node in enumerate(self.nodes):
            port = self._listen.port + place if self._listen.port else 0
            await node.start(str(Address(self._listen.host, port)))
        store = open_store(f"sqlite:{self._directory / 'metadata.sqlite'}")
        addresses = {node.name: node.address for node in self.nodes}
        self.operator = OperatorService("embedded", store, addresses, self._operator_settings)
        await self.operator.start()
        while len(self.operator.alive) < len(self.nodes):
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self.operator is not None:
            await self.operator.stop()
        await asyncio.gather(*(node.stop(drain=False) for node in self.nodes))


class EmbeddedDaemon:
    """An embedded cluster as a daemon; with `any_port` it takes free ports if the wanted ones are taken."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        listen: str,
        *,
        any_port: bool,
        node_settings: NodeSettings | None = None,
    ) -> None:
        self._directory = directory
        self._nodes = nodes
        self._listen = listen
        self._any_port = any_port
        self._node_settings = node_settings
        self._cluster: EmbeddedCluster | None = None

    async def start(self) -> str:
        try:
            return await self._start(self._listen)
        except Unreachable as error:
            if not self._any_port:
                raise
            _log.info("%s", error)
            await self.stop()
            return await self._start(str(Address(Address.parse(self._listen).host, 0)))

    async def _start(self, listen: str) -> str:
        self._cluster = EmbeddedCluster(self._directory, self._nodes, listen, self._node_settings)
        await self._cluster.start()
        return self._cluster.url

    async def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.stop()

    def why_not_ready(self) -> str | None:
        if self._cluster is None or self._cluster.operator is None:
            return "starting"
        silent = len(self._cluster.nodes) - len(self._cluster.operator.alive)
        return f"{silent} nodes do not answer yet" if silent else None

    def metrics(self) -> Iterable[Metric]:
        """The operator's, which tell of all nodes."""
        operator = self._cluster.operator if self._cluster is not None else None
        return () if operator is None else operator_metrics(operator)
