"""The timeouts and bounds of a client."""

from typing import Final

import msgspec

from hawser.record.schema import described

__all__ = ["ClientSettings"]

_CONNECT_SECONDS: Final = 5.0


@described
class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `hawser.connect` for clusters."""

    timeout: float = 15.0
    """The longest that a call takes unless it has a timeout of its own, in seconds."""
    connect_timeout: float | None = None
    """How long to wait for the first node to answer, in seconds; None is 5, or `timeout` if that is
    shorter."""
    attempt_seconds: float = 1.5
    """A request without an answer is sent again after so many seconds."""
    batch_bytes: int = 1 << 20
    """The approximate size of a full batch of one partition."""
    batch_records: int = 10_000
    in_flight: int = 4
    """The most batches of one partition in flight."""
    queue_bytes: int = 64 << 20
    """The most bytes that wait for one partition; more are refused."""
    fetch_bytes: int = 4 << 20
    read_ahead_bytes: int = 16 << 20
    """The most bytes that a subscription fetches ahead of its takes."""
    fetch_wait_seconds: float = 2.0
    session_seconds: float = 6.0
    """A group member or a consumer without a heartbeat for so many seconds loses its session."""
    backoff_least_seconds: float = 0.02
    backoff_most_seconds: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value!r}")

    @property
    def connect_seconds(self) -> float:
        return min(_CONNECT_SECONDS, self.timeout) if self.connect_timeout is None else self.connect_timeout
