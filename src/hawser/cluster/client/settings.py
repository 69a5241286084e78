"""How patient and how generous a client is."""

from typing import Final

import msgspec

from hawser.record.schema import described

__all__ = ["ClientSettings"]

_CONNECT_SECONDS: Final = 5.0


@described
class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `hawser.connect` for clusters."""

    timeout: float = 15.0
    """So many seconds a call takes at most, if it is not told otherwise."""
    connect_timeout: float | None = None
    """So many seconds until the first node has to answer; None is 5, or `timeout` if that is shorter."""
    attempt_seconds: float = 1.5
    """After so long without an answer a request is sent again."""
    batch_bytes: int = 1 << 20
    """What waits for a partition is sent together, up to about so much."""
    batch_records: int = 10_000
    in_flight: int = 4
    """So many batches of one partition are under way at a time."""
    queue_bytes: int = 64 << 20
    """So much may wait for a partition; what is more is refused."""
    fetch_bytes: int = 4 << 20
    read_ahead_bytes: int = 16 << 20
    """So much a subscription fetches before it is taken."""
    fetch_wait_seconds: float = 2.0
    session_seconds: float = 6.0
    """A member of a group that is silent for so long is replaced."""
    backoff_least_seconds: float = 0.02
    backoff_most_seconds: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r} is not above 0")

    @property
    def connect_seconds(self) -> float:
        """As `connect_timeout` says."""
        return min(_CONNECT_SECONDS, self.timeout) if self.connect_timeout is None else self.connect_timeout
