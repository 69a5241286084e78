"""Recording: copies topics, queues and the trace of a host into a cluster, once and in order.

A `recorder` waits for its topic or queue. A `stream` records one region of it: a `source` takes `blocks` of
samples from the region, and the `target` publishes them as batches to the cluster, with unlimited retries.
"""

from hawser.agent.recording.recorder import PayloadRecorder, Recorder, RecorderStatus, TraceRecorder

__all__ = ["PayloadRecorder", "Recorder", "RecorderStatus", "TraceRecorder"]
