"""Recording what is traced: the ring of a domain, and the payloads of topics that are traced with them."""

from hawser.agent.recording.recorder import Recorder
from hawser.agent.recording.source import Source
from hawser.agent.recording.topic_source import TracedTopicSource
from hawser.agent.recording.trace_source import TraceSource
from hawser.memory import Domain
from hawser.memory.domain import TRACE_NAME
from hawser.memory.tracing import TraceNames

__all__ = ["PayloadRecorder", "TraceRecorder"]


class TraceRecorder(Recorder):
    """Records the trace ring of a domain into the topic `target` of the cluster `to`, as a Recorder records a
    topic; it waits for a ring that is not there."""

    def __init__(self, domain_url: str, target: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, TRACE_NAME, to, name=name, target=target)
        # Here, not with the ring: names outlive it.
        self._names = TraceNames(Domain.of_url(domain_url))

    def _open(self) -> Source:
        return TraceSource(self._domain, self._names)


class PayloadRecorder(Recorder):
    """Records a topic of a domain into the one of its name of the cluster `to`, while it is traced with
    payloads. Nobody waits for it: what is overwritten before it comes is a gap."""

    def __init__(self, domain_url: str, topic: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, topic, to, name=name)

    def _open(self) -> Source:
        return TracedTopicSource(self._domain, self._topic, self._name)
