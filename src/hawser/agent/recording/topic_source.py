"""The source of a topic in shared memory, in blocks. Publishers wait for the recorder.

The saved position in the region advances when a block is recorded, not when it is taken. It limits
publishers, and it is the start of a later run. The cluster alone knows exactly which samples are recorded.

Publishers do not wait for a tracer: a traced topic is taken at the tracer's own position, and samples that
are overwritten before they are taken are a gap.
"""

from itertools import takewhile
from typing import Final

from hawser.agent.recording.blocks import BLOCK_BYTES, Block, fits_in_batch
from hawser.agent.recording.source import Source
from hawser.errors import Closed, NotFound, SettingsMismatch
from hawser.memory import Domain, Region, Subscriber
from hawser.memory.names import group_record
from hawser.memory.trace_ring import trace_of
from hawser.record.recording import Gap

__all__ = ["TopicSource", "TracedTopicSource"]

_DURABLE: Final = 2
# The saved position of all tracers, so that the next tracer continues there under any name.
_TRACER_RECORD: Final = "hawser-tracer"
_BLOCK_SAMPLES: Final = 10_000


class TopicSource(Source):
    """The durable subscription of the recorder `name`, from the oldest sample on. NotFound if the topic does
    not exist, UsageError while another recorder of this name lives, SettingsMismatch if `max_lag` is more
    than the topic retains."""

    mark = 0

    def __init__(self, domain: str, topic: str, name: str, max_lag: int | None = None) -> None:
        self._region = Domain.of_url(domain).open(topic)
        try:
            settings = self._region.settings()
            self.uuid, self.schema = self._region.uuid, str(settings["schema"]) or None
            self._most_again = max(1, BLOCK_BYTES // int(settings["slot_size"]))
            history, kept = int(settings["history"]), int(settings["history"]) + int(settings["depth"])
            if max_lag is not None and max_lag > kept:
                raise SettingsMismatch(
                    f"--max-lag {max_lag} is more than the {kept} samples that topic {topic!r} retains; give "
                    "at most that, or create the topic with more history"
                )
            self._subscriber = self._join(name, history, max_lag)
        except BaseException:
            self._region.close()
            raise

    def _join(self, name: str, history: int, max_lag: int | None) -> Subscriber:
        record = group_record(name)
        self.mark = _saved_position(self._region, record)
        return self._region.subscriber(
            name, history=history, reliable=_DURABLE, record=record, commit=True, max_lag=max_lag or 0
        )

    @property
    def head(self) -> int:
        """The offset of the newest sample."""
        return self._subscriber.head

    @property
    def next_offset(self) -> int:
        """The offset of the next sample, if it is not overwritten before."""
        return self._subscriber.position + 1

    def take(self, timeout: float) -> Block | Gap | None:
        """The next samples, or a gap in place of one that is too large for a batch; None if there is none
        within `timeout` seconds. Closed if the topic was deleted."""
        columns = self._subscriber.take_columns(_BLOCK_SAMPLES, BLOCK_BYTES, timeout)
        if columns is None:
            return None
        if columns[1]:
            return Block.of(columns)
        sample = self._subscriber.take(0)
        if sample is None:
            return None
        with sample:
            return Block.of_samples([sample]) if fits_in_batch(sample) else Gap(sample.offset, sample.offset)

    def take_again(self, first: int, last: int) -> Block | Gap | None:
        samples, _, _ = self._region.read_oldest(min(self._most_again, last - first + 1), first - 1)
        found = [each for each in samples if each.offset <= last]
        fitting = list(takewhile(fits_in_batch, found))
        if fitting:
            return Block.of_samples(fitting)
        return Gap(found[0].offset, found[0].offset) if found else None

    def commit(self) -> None:
        """Save the position: all taken samples are recorded, and publishers may overwrite them."""
        self._subscriber.commit()
        self.mark = self._subscriber.position

    def close(self) -> None:
        self._subscriber.close()
        self._region.close()


class TracedTopicSource(TopicSource):
    """The subscription of the tracer `name` while the topic is traced with payloads. NotFound if it is not
    traced, Closed when tracing ends, UsageError while it has another tracer."""

    def _join(self, name: str, history: int, max_lag: int | None) -> Subscriber:
        if not self._is_traced():
            raise NotFound(f"topic {self._region.name!r} is not traced with payloads")
        self.mark = _saved_position(self._region, _TRACER_RECORD)
        return self._region.subscriber(name, history=history, record=_TRACER_RECORD, commit=True, tracer=True)

    def _is_traced(self) -> bool:
        return trace_of(self._region) == "payload"

    def take(self, timeout: float) -> Block | Gap | None:
        if not self._is_traced():
            raise Closed(f"topic {self._region.name!r} is no longer traced with payloads")
        return super().take(timeout)


def _saved_position(region: Region, record: str) -> int:
    """The saved position of an earlier run; 0 if there is none."""
    return next((each["mark"] for each in region.records() if each["name"] == record), 0)
