"""The limits and time-outs of a link, and its counters."""

from typing import Final

import msgspec

from hawser.cluster.transport.frames import MAX_FRAME_BYTES

__all__ = ["DEFAULT_SETTINGS", "Counters", "LinkSettings"]


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a link; usually all links of a process have the same."""

    connect_seconds: float = 5.0
    """How long a dialer waits for a connection and a welcome, and a listener for a hello."""
    ping_seconds: float = 1.0
    """The silence after which the peer is pinged."""
    silence_seconds: float = 5.0
    """The silence after which the link is closed."""
    goodbye_seconds: float = 1.0
    """How long a close waits for queued frames before it cuts the connection."""
    most_outgoing_bytes: int = 16 << 20
    """With more than this in the queue, messages are dropped and requests wait."""
    most_requests: int = 4096
    """How many requests of the peer are served at a time; the peer is told, and holds back the others."""
    most_frame_bytes: int = MAX_FRAME_BYTES
    backoff_least_seconds: float = 0.05
    backoff_most_seconds: float = 2.0

    def __post_init__(self) -> None:
        assert 0 < self.ping_seconds < self.silence_seconds
        assert 0 < self.most_requests < 1 << 31
        assert 0 < self.most_frame_bytes <= MAX_FRAME_BYTES
        assert 0 < self.backoff_least_seconds <= self.backoff_most_seconds


DEFAULT_SETTINGS: Final = LinkSettings()


class Counters(msgspec.Struct):
    """The counters of the links that share it. The last three are gauges."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    tells_dropped: int = 0
    asks: int = 0
    asks_timed_out: int = 0
    requests: int = 0
    links_opened: int = 0
    links_refused: int = 0
    links_malformed: int = 0
    links_silent: int = 0
    links: int = 0
    asks_in_flight: int = 0
    requests_in_progress: int = 0
