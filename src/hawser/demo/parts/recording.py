"""Recording: the agent records the topic and its trace into a cluster of three nodes and an operator. The
agent, the operator and the leader are killed.

Proof: each sample of the region from 1 to the head is in the recorded topic once, in order, and nothing else
is.
"""

from collections.abc import Sequence
from typing import Final

import hawser
from hawser.demo.messages import AGENT, TOPIC, TRACE
from hawser.demo.parts.part import Environment, KillPoint, Part, Row
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, compare
from hawser.memory import Domain
from hawser.memory.trace_ring import open_ring
from hawser.record.recording import GAP_HEADER, Gap, recorder_id
from hawser.record.trace import trace_records

__all__ = ["RecordingPart", "prove_recording"]

_NODES: Final = ("n1", "n2", "n3")


class RecordingPart(Part):
    title = "recorded by a majority"
    verb = "recorded"
    sign = "recording resumes"
    # The leader stays away until another node leads.
    kill_points = (
        KillPoint(0.25, "agent"),
        KillPoint(0.45, "operator"),
        KillPoint(0.50, "leader", 3.0),
        KillPoint(0.65, "agent"),
    )

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._nodes = [self._node(name) for name in _NODES]
        self._operator = Process("operator", environment.directory, "hawser", "operator")
        self._agent = Process(AGENT, environment.directory, "hawser", "agent")
        self._leader: str | None = None
        self._ring = open_ring(Domain.of_url(environment.url))
        # The number of positions of the ring in the recorded trace.
        self._traced = 0
        self.processes = [self._agent, self._operator, *self._nodes]

    def _node(self, name: str) -> Process:
        directory = self.environment.directory
        place = ["--listen", "127.0.0.1:0", "--dir", str(directory / name)]
        return Process(name, directory, "hawser", "node", "--id", name, *place)

    @property
    def expected(self) -> int:
        return self.environment.messages

    def start(self) -> None:
        environment = self.environment
        environment.use_cluster(self._start_cluster())
        self._agent.arguments += ["--url", environment.url, "--name", AGENT]
        self._agent.arguments += ["--record", TOPIC, "--trace", TRACE, "--to", environment.cluster_url]
        self._agent.start()
        self._agent.wait_ready()
        recorded, trace = (environment.cluster.topic(name, create=False) for name in (TOPIC, TRACE))

        def look() -> int:
            info = recorded.info()
            self._leader = info.partitions[0].leader
            self._traced = max(self._traced, *map(_position, trace.read_newest(1).samples), 0)
            return info.head

        environment.watch.add(self.gauge, look)

    @property
    def is_done(self) -> bool:
        return super().is_done and self._traced >= self._ring.head

    def _start_cluster(self) -> str:
        for node in self._nodes:
            node.start()
        self._operator.arguments += ["--metadata", f"sqlite:{self.environment.directory / 'metadata.sqlite'}"]
        addresses = []
        for node in self._nodes:
            address = node.wait_ready()
            addresses.append(address)
            # The same address at every start.
            node.arguments[node.arguments.index("--listen") + 1] = address
            self._operator.arguments += ["--node", f"{node.name}={address}"]
        self._operator.start()
        self._operator.wait_ready()
        return "hawser://" + ",".join(addresses)

    def victim(self, what: str) -> Process | None:
        leaders = (node for node in self._nodes if node.name == self._leader)
        chosen = {"agent": self._agent, "operator": self._operator, "leader": next(leaders, None)}[what]
        return chosen if chosen is not None and chosen.alive else None

    def proof(self) -> Proof:
        end = self.environment.topic.info()
        return prove_recording(end.head, recorder_id(AGENT, end.uuid).decode(), self.environment.rows(TOPIC))


def _position(newest: hawser.Sample) -> int:
    """The position in the ring, from 1 on, of the newest trace record or gap."""
    gap = newest.headers.get(GAP_HEADER)
    return next(trace_records(bytes(newest))).position + 1 if gap is None else Gap.decode(gap).last


def prove_recording(published: int, producer: str, rows: Sequence[Row]) -> Proof:
    """Compare the rows with the offsets up to `published`. `producer` is the recorder's name."""
    found = [row.sequence if row.producer == producer else (row.producer, row.sequence) for row in rows]
    return compare("messages of shared memory in the recorded topic", range(1, published + 1), found)
