"""The batches that a recorder writes for one region, and the reason why each sample is in the cluster once.

The batches of a recorder tile the offsets of the region from 1 on: each begins after the last sample of the
batch before, and carries that offset in its stamp. A recorder does not store its position; it asks the
cluster. A batch that is still in flight from an earlier run, or from a recorder that was assumed dead,
therefore competes with the current batch for the same position. The cluster accepts one of them, and answers
the other sender with the accepted batch or a newer one, after which that sender continues.

Overwritten samples are a gap, which tiles like a batch. The stamp of a gap is its last offset. By that stamp
alone the cluster would accept a gap after a batch that begins at the gap's first offset. A gap is therefore
written in two parts: first its first sample, which competes for its position as a batch does, and after that
is accepted the rest. The rest of a dead recorder may arrive between the two parts of another gap; that gap
then names the same samples again, but never samples that are recorded.

A restored backup of the cluster may lack samples that were recorded. Each batch names the sample that it
follows, so the leader refuses a batch that would leave out samples. The recorder then asks for the position,
and records again the samples that the region still has; the others are a gap.

Messages that are missing in a queue were settled by consumers before the recorder started, so nothing is
written for them. A recorded message is no longer on the host, so messages that a restored queue lacks are
lost; the recorder logs them.
"""

import logging
import threading
from time import monotonic, time_ns
from typing import Final

from hawser.agent.recording.blocks import Block
from hawser.agent.recording.source import Source
from hawser.agent.recording.target import Replaced, Target
from hawser.record.batch import Batch
from hawser.record.record import Stamp
from hawser.record.recording import Gap, recorder_id

__all__ = ["Counts", "QueueStream", "Stream"]

_log = logging.getLogger("hawser.agent")

_TAKE_SECONDS: Final = 0.2
# The start of a partition of which nothing was trimmed.
_FIRST_OFFSET: Final = 1
# An idle recorder checks at this interval that the recorded samples are still in the cluster.
_LOOK_SECONDS: Final = 30.0


class Counts:
    """Counts since the start of a recorder: recorded samples, gap records, and samples in those gaps."""

    __slots__ = ("gaps", "lost", "recorded")

    def __init__(self) -> None:
        self.recorded = self.gaps = self.lost = 0


class Stream:
    """Records one region. `position` is the offset of the next sample."""

    def __init__(self, source: Source, target: Target, name: str, counts: Counts) -> None:
        self._source = source
        self._target = target
        self._producer = recorder_id(name, source.uuid)
        self._counts = counts
        self.position = 1
        # Samples before this offset were recorded once, as far as is known.
        self._reached = source.mark + 1
        # The next sample, and the next offset in the cluster, after the newest known batch; 0 without a
        # batch.
        self._follows = self._newest_end = 0
        self._uuid = ""

    def record(self, stop: threading.Event) -> None:
        """Record until `stop` is set. Closed when the region is deleted."""
        self._find_position()
        self._fill()
        looked = monotonic()
        while not stop.is_set():
            taken = self._source.take(_TAKE_SECONDS)
            if taken is not None:
                self._put(taken)
                self._source.commit()
                looked = monotonic()
            elif monotonic() >= looked + _LOOK_SECONDS:
                self._find_position()
                self._fill()
                looked = monotonic()

    def _fill(self) -> None:
        """Record what is missing before the next sample of the source."""
        if self.position < self._source.next_offset:
            self._put(Gap(self.position, self._source.next_offset - 1))

    def _find_position(self) -> None:
        """Ask the cluster for the position. The cluster forgets a recorder only when everything it wrote was
        trimmed; only then the saved position in the region is used."""
        producer_state = self._target.producer_state()
        if producer_state.newest is None and self._target.uuid != self._uuid:
            # A new topic: samples recorded into the earlier topic stay there, or were deleted on purpose.
            self._reached = 0
        self._uuid = self._target.uuid
        if producer_state.newest is not None:
            incarnation, first, records = producer_state.newest
            self._newest_end = first + records
            self.position = self._follows = incarnation + records
        else:
            is_trimmed = producer_state.start > _FIRST_OFFSET and producer_state.start >= self._newest_end
            self.position = self._source.mark + 1 if is_trimmed else 1
            self._follows = self._newest_end = 0
        if self.position < self._reached:
            _log.warning(
                "recording to %s: the log ends after sample %d, but samples up to %d were recorded before, "
                "as after a restored backup; recording the samples that the region still has again",
                self._target.name,
                self.position - 1,
                self._reached - 1,
            )
        self._reached = max(self._reached, self.position)

    def _put(self, taken: Block | Gap) -> None:
        """Return when the block or gap, and the gap before it, are in the cluster."""
        while self.position <= taken.last:
            before = max(self.position, taken.first)
            self._put_next(taken)
            if isinstance(taken, Block):
                # Counted by position, because the outcome of an unanswered attempt is unknown otherwise.
                self._counts.recorded += max(0, min(self.position, taken.last + 1) - before)

    def _put_next(self, taken: Block | Gap) -> None:
        if self.position < taken.first:
            self._put_missing(taken.first - 1)
        elif isinstance(taken, Gap):
            self._put_missing(taken.last)
        else:
            rest = taken.starting_at(self.position)
            self._publish(rest.batch(self._stamp(rest.first)))

    def _put_missing(self, last: int) -> None:
        """Write a part of the missing samples up to `last`: samples that were recorded before and are still
        in the region again, and a gap for the others."""
        again = min(last, self._reached - 1)
        found = self._source.take_again(self.position, again) if self.position <= again else None
        if found is None:
            self._put_gap(Gap(self.position, last))
        elif self.position < found.first:
            self._put_gap(Gap(self.position, found.first - 1))
        elif isinstance(found, Gap):
            self._put_gap(found)
        else:
            self._publish(found.batch(self._stamp(found.first)))
            self._counts.recorded += max(0, min(self.position, found.last + 1) - found.first)

    def _put_gap(self, gap: Gap) -> None:
        """Write the rest only if the first part was accepted as new: an older first part may be from another
        recorder that continues after it."""
        first = Gap(gap.first, gap.first)
        if self._put_part(first) and gap.last > gap.first:
            self._put_part(Gap(gap.first + 1, gap.last))

    def _put_part(self, gap: Gap) -> bool:
        """Write a part of a gap, and return whether it was accepted as new."""
        is_new = self._publish(Batch.of([gap.record(time_ns())], self._stamp(gap.last)))
        if self.position == gap.last + 1:
            # A part that is not new counts, too: an earlier attempt wrote it and was not answered.
            self._counts.gaps += 1
            self._counts.lost += gap.lost
        return is_new

    def _stamp(self, offset: int) -> Stamp:
        return Stamp(self._producer, offset, 1)

    def _publish(self, batch: Batch) -> bool:
        """Publish, and return whether the batch was accepted as new. Updates the position in any case."""
        try:
            landed = self._target.publish(batch, self._follows)
        except Replaced:
            landed = None
        if landed is None:
            self._find_position()
            return False
        self._newest_end = landed.first_offset + landed.records
        self.position = self._follows = batch.header.incarnation + landed.records
        self._reached = max(self._reached, self.position)
        return landed.is_new


class QueueStream(Stream):
    """Records one region of a queue, where gaps are settled messages."""

    def _put_gap(self, gap: Gap) -> None:
        lost = max(0, min(gap.last, self._reached - 1) - gap.first + 1)
        if lost:
            self._counts.lost += lost
            _log.error(
                "recording to %s: messages %d to %d were recorded before and are no longer in any queue",
                self._target.name,
                gap.first,
                gap.first + lost - 1,
            )
        self.position = gap.last + 1
