"""Recording: what is published in shared memory, once and in order in a cluster; topics, queues, the trace.

`recorder` waits for its topic or queue, `stream` records one region of it: a `source` takes `blocks` of
samples out of the region, `target` puts batches into the cluster and never gives up.
"""

from hawser.agent.recording.recorder import PayloadRecorder, Recorder, RecorderStatus, TraceRecorder

__all__ = ["PayloadRecorder", "Recorder", "RecorderStatus", "TraceRecorder"]
