"""The benchmarks behind `hawser bench`: ratios to the peers that are installed, measured in one run.

Contestants take turns, repeat after repeat, and medians are compared, so that a machine that is slow
for a while is slow for all of them. Every measured process is pinned to a core. `run.run` yields one
`report.Row` for each figure; a row carries the targets it answers and whether they are met.
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
