"""The benchmarks of `hawser bench`: ratios to the installed peers, measured in one run.

Contestants take turns, and their medians are compared, so that a slow phase of the machine affects all of
them. Each measured process is pinned to a core. `suite.run` yields one `report.Row` per figure, with its
targets and whether they are met.
"""

PARTS = (
    "small",
    "spinning",
    "blocking",
    "lent",
    "copies",
    "subscribers",
    "memory",
    "recovery",
    "start",
    "queue",
    "cluster",
    "cluster-queue",
    "transactions",
    "recorder",
    "spark",
    "spark-sink",
    "audit",
)
PEERS = ("iceoryx2", "pyzmq", "zenoh", "Queue", "Pipe", "faster-fifo", "Redis", "etcd", "JetStream")
