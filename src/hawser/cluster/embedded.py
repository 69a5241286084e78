"""A whole cluster in one process: some nodes, an operator, SQLite. For one machine, demos and tests."""

import asyncio
from pathlib import Path

from hawser.cluster.node.service import Node, NodeSettings
from hawser.cluster.operator.service import OperatorService, OperatorSettings
from hawser.cluster.stores import open_store
from hawser.cluster.transport import Address

__all__ = ["EmbeddedCluster"]


class EmbeddedCluster:
    """Nodes `n1`, `n2`, ... in `directory`, all in the running event loop. With a port, the nodes listen at
    it and the ones after it; with port 0 the system chooses."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        listen: str = "127.0.0.1:0",
        node_settings: NodeSettings | None = None,
        operator_settings: OperatorSettings | None = None,
    ) -> None:
        self._directory = directory
        self._listen = Address.parse(listen)
        self._operator_settings = operator_settings
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.nodes = [Node(name, directory / name, node_settings) for name in names]
        self.operator: OperatorService | None = None

    @property
    def url(self) -> str:
        return "hawser://" + ",".join(node.address for node in self.nodes)

    async def start(self) -> None:
        """Returns when every node answers the operator."""
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
