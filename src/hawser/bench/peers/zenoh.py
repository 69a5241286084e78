"""zenoh between two peers over a Unix socket, blocking on congestion, received through a FIFO channel."""

from __future__ import annotations

import importlib
import json
import time
from typing import Any

from hawser.bench.contest import Stream
from hawser.bench.processes import Gate, now_ns

QUEUED = 16_384
KEY = "hawser/bench"


def _session(shared: str, *, listen: bool) -> Any:
    library: Any = importlib.import_module("zenoh")
    configuration = library.Config()
    configuration.insert_json5("mode", json.dumps("peer"))
    configuration.insert_json5("scouting/multicast/enabled", "false")
    configuration.insert_json5("listen/endpoints", "[]")
    endpoint = json.dumps([f"unixsock-stream/{shared}/zenoh"])
    configuration.insert_json5("listen/endpoints" if listen else "connect/endpoints", endpoint)
    return library.open(configuration)


def receive(shared: str, stream: Stream, gate: Gate) -> None:
    library: Any = importlib.import_module("zenoh")
    session = _session(shared, listen=True)
    subscriber = session.declare_subscriber(KEY, library.handlers.FifoChannel(QUEUED))
    take = subscriber.recv
    last = b""
    gate.start()
    for _ in range(stream.count):
        last = bytes(take().payload)
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)
    session.close()


def send(shared: str, stream: Stream, gate: Gate) -> None:
    library: Any = importlib.import_module("zenoh")
    session = _session(shared, listen=False)
    publisher = session.declare_publisher(KEY, congestion_control=library.CongestionControl.BLOCK)
    while not publisher.matching_status.matching:
        time.sleep(0.01)
    put, message = publisher.put, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        put(message)
    put(stream.last_message())
    gate.finish(started)
    session.close()
