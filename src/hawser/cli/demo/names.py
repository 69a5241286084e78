"""What the topics and the queue of the demo are called, and who records."""

from typing import Final

__all__ = ["AGENT", "DONE", "JOBS", "LANDED", "RESULTS", "TOPIC", "TOTALS", "TRACE"]

AGENT: Final = "demo-agent"
# Of the shared memory, and of the cluster it is recorded into.
TOPIC: Final = "demo"
RESULTS: Final = "demo/results"
JOBS: Final = "demo/jobs"
DONE: Final = "demo/done"
TOTALS: Final = "demo/totals"
TRACE: Final = "demo/trace"
LANDED: Final = (TOPIC, RESULTS, DONE)
