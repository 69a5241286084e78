"""What a recorder writes of one region, and why everything is there once.

The batches of a recorder tile the offsets of the region from 1 on: each begins at the sample behind the last
one of the batch before, and says so in its stamp. Where the next one begins is never remembered beyond a run,
it is asked of the cluster. So whatever is still under way, of a former run or of a copy that was thought
dead, competes for the same place as the batch that is sent now: one of them is accepted, and whoever sent
another is told how much is there instead, or that there is something newer, and goes on behind that.

Samples that are gone are a gap, which tiles like a batch. The stamp of a gap is its last offset, and by
that alone it would be accepted although a batch that begins at its first offset came before. Therefore a gap
is written in two: its first sample, which competes for its place as any batch does, and once that is accepted
the rest. A rest that is still under way when its recorder is dead may land between the two parts of another
gap, which then names the same samples again; what is there is never named.

The log may go back behind what was recorded, when the cluster is restored from a backup. Each batch says
which sample it follows, so the leader refuses a batch that would leave samples out. The recorder then asks
where to go on, and records again what the region still has; the rest is a gap.

Messages of a queue that are not there to be taken were settled by others before there was a recorder: nothing
is missing, and nothing is written for them. A recorded message is no longer on the host, so what a restored
queue lacks is lost, and only reported.
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
# Where a partition begins as long as nothing was trimmed.
_FIRST_OFFSET: Final = 1
# A recorder with nothing to record looks this often whether what it recorded is still there.
_LOOK_SECONDS: Final = 30.0


class Counts:
    """What a recorder has done since it was started: samples recorded, gap records written, and the samples
    that those stand for."""

    __slots__ = ("gaps", "lost", "recorded")

    def __init__(self) -> None:
        self.recorded = self.gaps = self.lost = 0


class Stream:
    """Records one region. `position` is the offset of the sample that comes next."""

    def __init__(self, source: Source, target: Target, name: str, counts: Counts) -> None:
        self._source = source
        self._target = target
        self._producer = recorder_id(name, source.uuid)
        self._counts = counts
        self.position = 1
        # Everything before this was recorded once, as far as is known.
        self._reached = source.mark + 1
        # Behind the newest batch, as far as is known: the next sample, and the next offset in the cluster; 0
        # if there is no batch.
        self._follows = self._newest_end = 0
        self._uuid = ""

    def record(self, stop: threading.Event) -> None:
        """Until `stop` is set; Closed when the region is deleted."""
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
        """Nothing before what is taken next is left out."""
        if self.position < self._source.next_offset:
            self._put(Gap(self.position, self._source.next_offset - 1))

    def _find_position(self) -> None:
        """Ask where to go on. A cluster forgets a recorder only when all it wrote was trimmed: then, and only
        then, the position kept in the region has to do."""
        producer_state = self._target.producer_state()
        if producer_state.newest is None and self._target.uuid != self._uuid:
            # Another topic: what was recorded into the former one stays there, or was deleted on purpose.
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
                "recording to %s: the log ends behind sample %d, and samples up to %d were recorded before, "
                "as after a restored backup; recording again what is still there",
                self._target.name,
                self.position - 1,
                self._reached - 1,
            )
        self._reached = max(self._reached, self.position)

    def _put(self, taken: Block | Gap) -> None:
        """Return when all of it, and what is missing before it, is in the cluster."""
        while self.position <= taken.last:
            before = max(self.position, taken.first)
            self._put_next(taken)
            if isinstance(taken, Block):
                # By how far we are: what an attempt became that was never answered is not known otherwise.
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
        """Something of what is missing up to there: what was recorded once and is still in the region again,
        and a gap for the rest."""
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
        """The rest only behind a first part that was accepted: one that was there before may be somebody's
        who goes on behind it."""
        first = Gap(gap.first, gap.first)
        if self._put_part(first) and gap.last > gap.first:
            self._put_part(Gap(gap.first + 1, gap.last))

    def _put_part(self, gap: Gap) -> bool:
        """Whether it was accepted."""
        is_new = self._publish(Batch.of([gap.record(time_ns())], self._stamp(gap.last)))
        if self.position == gap.last + 1:
            # Also count it if it is not new: then an earlier attempt wrote it and was never answered.
            self._counts.gaps += 1
            self._counts.lost += gap.lost
        return is_new

    def _stamp(self, offset: int) -> Stamp:
        return Stamp(self._producer, offset, 1)

    def _publish(self, batch: Batch) -> bool:
        """Whether it was accepted; in any case we know where to go on."""
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
    """Records one region of a queue."""

    def _put_gap(self, gap: Gap) -> None:
        lost = max(0, min(gap.last, self._reached - 1) - gap.first + 1)
        if lost:
            self._counts.lost += lost
            _log.error(
                "recording to %s: messages %d to %d were recorded before and are in no queue any more",
                self._target.name,
                gap.first,
                gap.first + lost - 1,
            )
        self.position = gap.last + 1
