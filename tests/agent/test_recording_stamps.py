"""Recorders that share an id, over the real rules for producers: killed with batches under way that land at
any later moment, or side by side. Whatever happens, the log has each sample once, or says that it is gone."""

import random
import threading
from array import array
from collections.abc import Callable
from struct import pack
from typing import cast

import pytest

from hawser.agent.recording.blocks import Block
from hawser.agent.recording.source import Source
from hawser.agent.recording.stream import Counts, Stream
from hawser.agent.recording.target import Replaced, Target
from hawser.cluster.client.publish.stamped import AppendResult, Newest, ProducerState
from hawser.log.state.producers import Producers
from hawser.log.state.results import Rejected, Repeated
from hawser.record.batch import Batch
from hawser.record.recording import GAP_HEADER, Gap

Note = Callable[[str, object], None]
# A batch, and the sample that it follows.
Sent = tuple[Batch, int]


class Killed(BaseException):
    """What happens to a recorder at any moment."""


class Region:
    """Samples from 1 on, of which the oldest are overwritten."""

    uuid = "region"

    def __init__(self) -> None:
        self.oldest, self.head, self.mark = 1, 0, 0


class FakeSource:
    """As `Source`, of a region that a test writes. Blocks end anywhere."""

    def __init__(self, region: Region, chance: random.Random, stop: threading.Event) -> None:
        self.uuid = region.uuid
        self.mark = region.mark
        self._region = region
        self._cursor = region.mark
        self._random = chance
        self._stop = stop

    @property
    def next_offset(self) -> int:
        return max(self._cursor + 1, self._region.oldest)

    def take(self, timeout: float) -> Block | Gap | None:
        region = self._region
        first = self.next_offset
        if first > region.head:
            self._stop.set()
            return None
        last = min(region.head, first + self._random.randrange(6))
        self._cursor = last
        if first == last and self._random.random() < 0.1:
            return Gap(first, last)
        return self._block(first, last)

    def take_again(self, first: int, last: int) -> Block | Gap | None:
        first = max(first, self._region.oldest)
        if first > last:
            return None
        if self._random.random() < 0.1:
            return Gap(first, first)
        return self._block(first, min(last, first + self._random.randrange(6)))

    def _block(self, first: int, last: int) -> Block:
        numbers = range(first, last + 1)
        offsets = pack(f"<{len(numbers) + 1}i", *(8 * place for place in range(len(numbers) + 1)))
        return Block(first, array("q", numbers), offsets, b"".join(b"%08d" % each for each in numbers), None)

    def commit(self) -> None:
        self._region.mark = self.mark = self._cursor


class Partition:
    """What a leader does, with the real rules for producers."""

    def __init__(self) -> None:
        self.log: list[Batch] = []
        self.producers = Producers()
        self.end = 1

    def publish(self, batch: Batch, follows: int) -> AppendResult | None:
        newest = self.producers.newest(batch.stamp.producer) or (0, 0, 0)
        if follows and newest[0] < batch.stamp.incarnation and newest[0] + newest[2] != follows:
            return None
        verdict = self.producers.judge(*batch.stamp)
        if isinstance(verdict, Repeated):
            return AppendResult(verdict.first_offset, verdict.count, False)
        if verdict is not None:
            assert isinstance(verdict, Rejected)
            return None
        self.producers.accept(*batch.stamp, self.end, batch.count)
        self.log.append(batch)
        self.end += batch.count
        return AppendResult(self.end - batch.count, batch.count, True)

    def producer_state(self, producer: bytes) -> ProducerState:
        newest = self.producers.newest(producer)
        return ProducerState(1, None if newest is None else Newest(*newest))

    def restore(self, batches: int) -> None:
        """As a backup has it that was made when there were only so many."""
        kept = self.log[:batches]
        self.log, self.producers, self.end = [], Producers(), 1
        for batch in kept:
            self.publish(batch, 0)


class DeadlyTarget:
    """As `Target`, of a cluster far away: a recorder may be killed before a batch arrives or after it, and a
    batch that was under way then arrives at any later moment, more than once perhaps."""

    name = "topic t"
    uuid = "topic"

    def __init__(
        self, partition: Partition, chance: random.Random, under_way: list[Sent], restores: float = 0.0
    ) -> None:
        self._partition = partition
        self._random = chance
        self._under_way = under_way
        self._restores = restores
        self.restored = 0

    def producer_state(self) -> ProducerState:
        self._something_lands()
        return self._partition.producer_state(b"recorder:name/region")

    def publish(self, batch: Batch, follows: int) -> AppendResult | None:
        self._something_lands()
        if self._random.random() < self._restores:
            self.restored += 1
            self._partition.restore(self._random.randrange(len(self._partition.log) + 1))
        fate = self._random.random()
        if fate < 0.15:
            self._under_way.append((batch, follows))
            raise Killed
        landed = self._partition.publish(batch, follows)
        if fate < 0.3:
            raise Killed
        self._something_lands()
        return landed

    def _something_lands(self) -> None:
        while self._under_way and self._random.random() < 0.4:
            sent = self._random.choice(self._under_way)
            self._partition.publish(*sent)
            if self._random.random() < 0.7:
                self._under_way.remove(sent)


def judge(log: list[Batch], head: int) -> tuple[int, int, int]:
    """(samples, samples gone, how many of these are in two gaps) of a log that is right; AssertionError for
    any other."""
    samples: list[int] = []
    named = 0
    gone: set[int] = set()
    for batch in log:
        for record in batch.records():
            if GAP_HEADER in record.headers:
                gap = Gap.decode(record.headers[GAP_HEADER])
                gone.update(range(gap.first, gap.last + 1))
                named += gap.lost
            else:
                samples.append(int(record.value))
    assert samples == sorted(set(samples)), "a sample is there twice, or out of order"
    assert not gone.intersection(samples), "a sample is there and is said to be gone"
    assert gone.union(samples) == set(range(1, head + 1)), "a sample is missing, and nothing says so"
    return len(samples), len(gone), named - len(gone)


def storm(seed: int, kind: type[Stream], restores: float = 0.0) -> tuple[int, ...]:
    """(kills, samples, samples gone, those in two gaps, restores) of a region, recorded through kills, and
    through restores of the cluster, until its end."""
    chance = random.Random(seed)
    region, partition, under_way = Region(), Partition(), list[Sent]()
    kills = restored = 0
    while True:
        if kills < 12:
            region.head += chance.randrange(12)
            if chance.random() < 0.3:
                region.oldest = max(region.oldest, region.head - chance.randrange(8))
        stop = threading.Event()
        source = cast(Source, FakeSource(region, chance, stop))
        target = DeadlyTarget(partition, chance, under_way, restores if kills < 12 else 0.0)
        try:
            kind(source, cast(Target, target), "name", Counts()).record(stop)
        except Killed:
            kills += 1
            continue
        finally:
            restored += target.restored
        if kills >= 12:
            break
        kills += 1
    return kills, *judge(partition.log, region.head), restored


@pytest.mark.parametrize("restores", [0.0, 0.1])
def test_killed_recorders_leave_each_sample_once(restores: float, record_property: Note) -> None:
    totals = [0, 0, 0, 0, 0]
    for seed in range(1500):
        for place, count in enumerate(storm(seed, Stream, restores)):
            totals[place] += count
    names = ("kills", "samples", "samples gone", "in two gaps", "restores")
    for name, total in zip(names, totals, strict=True):
        record_property(name, total)


class LateTarget:
    """As `Target`, of a cluster whose answers are lost now and then: a batch that is there already is sent
    again, or the recorder gives up the connection and asks what is there."""

    name = "topic t"
    uuid = "topic"

    def __init__(self, partition: Partition, chance: random.Random) -> None:
        self._partition = partition
        self._random = chance

    def producer_state(self) -> ProducerState:
        return self._partition.producer_state(b"recorder:name/region")

    def publish(self, batch: Batch, follows: int) -> AppendResult | None:
        fate = self._random.random()
        if fate < 0.1:
            raise Replaced
        landed = self._partition.publish(batch, follows)
        if fate < 0.2:
            raise Replaced
        return self._partition.publish(batch, follows) if fate < 0.5 else landed


def test_what_was_never_answered_is_counted_all_the_same() -> None:
    for seed in range(300):
        chance, region, partition, counts = random.Random(seed), Region(), Partition(), Counts()
        for _ in range(12):
            region.head += chance.randrange(1, 12)
            if chance.random() < 0.5:
                region.oldest = max(region.oldest, region.head - chance.randrange(8))
            stop = threading.Event()
            source = cast(Source, FakeSource(region, chance, stop))
            Stream(source, cast(Target, LateTarget(partition, chance)), "name", counts).record(stop)
        samples, gone, twice = judge(partition.log, region.head)
        gaps = sum(GAP_HEADER in record.headers for batch in partition.log for record in batch.records())
        assert (counts.recorded, counts.lost, counts.gaps, twice) == (samples, gone, gaps, 0)


class TrustsItsMark(Stream):
    """Goes on where the region says that it was, and does not ask."""

    def _find_position(self) -> None:
        self.position = self._source.mark + 1

    def _publish(self, batch: Batch) -> bool:
        self._target.publish(batch, 0)
        self.position = batch.header.incarnation + batch.count
        return True


class WritesGapsAtOnce(Stream):
    """Does not let the first sample of a gap compete for its place."""

    def _put_gap(self, gap: Gap) -> None:
        self._put_part(gap)


class NamesNothingBefore(Stream):
    """Sends batches to be accepted whatever comes before them."""

    def _publish(self, batch: Batch) -> bool:
        self._follows = 0
        return super()._publish(batch)


class ForgetsWhatIsThere(Stream):
    """Believes that all it sent is there, when something is."""

    def _publish(self, batch: Batch) -> bool:
        is_new = super()._publish(batch)
        self.position = max(self.position, batch.header.incarnation + batch.count)
        return is_new


@pytest.mark.parametrize(
    ("planted", "restores"),
    [
        (TrustsItsMark, 0.0),
        (WritesGapsAtOnce, 0.0),
        (ForgetsWhatIsThere, 0.0),
        (NamesNothingBefore, 0.1),
    ],
)
def test_planted_bugs_are_found(planted: type[Stream], restores: float, record_property: Note) -> None:
    for seed in range(1500):
        try:
            storm(seed, planted, restores)
        except AssertionError as error:
            record_property("found", f"by seed {seed}: {str(error).splitlines()[0]}")
            return
    pytest.fail("the planted bug was not found")


# Side by side.


class Turns:
    """Lets one of several threads do one thing at a time, by a seed."""

    def __init__(self, seed: int, threads: int) -> None:
        self._random = random.Random(seed)
        self._condition = threading.Condition()
        self._waiting: list[int] = []
        self._busy = threads
        self._next: int | None = None

    def take(self, number: int) -> None:
        """Return when it is this thread's turn, which lasts until it takes another or leaves."""
        with self._condition:
            self._waiting.append(number)
            self._rest()
            self._condition.wait_for(lambda: self._next == number)
            self._waiting.remove(number)
            self._next = None
            self._busy += 1

    def leave(self) -> None:
        with self._condition:
            self._rest()

    def _rest(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self._waiting:
            self._next = self._random.choice(sorted(self._waiting))
            self._condition.notify_all()


class SharedTarget:
    """As `Target`, for one of several recorders that take turns."""

    uuid = "topic"

    def __init__(self, partition: Partition, turns: Turns, number: int) -> None:
        self._partition = partition
        self._turns = turns
        self._number = number

    def producer_state(self) -> ProducerState:
        self._turns.take(self._number)
        return self._partition.producer_state(b"recorder:name/region")

    def publish(self, batch: Batch, follows: int) -> AppendResult | None:
        self._turns.take(self._number)
        return self._partition.publish(batch, follows)


def side_by_side(seed: int, kind: type[Stream]) -> int:
    """How many batches two recorders that know nothing of each other wrote of the same samples."""
    region, partition, turns = Region(), Partition(), Turns(seed, 2)
    region.head = 60
    failures: list[BaseException] = []

    def run(number: int) -> None:
        stop = threading.Event()
        source = cast(Source, FakeSource(region, random.Random(seed * 2 + number), stop))
        try:
            kind(source, cast(Target, SharedTarget(partition, turns, number)), "name", Counts()).record(stop)
        except BaseException as error:
            failures.append(error)
        finally:
            turns.leave()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures, failures
    judge(partition.log, region.head)
    return len(partition.log)


def test_two_at_once_write_each_sample_once(record_property: Note) -> None:
    record_property("batches", sum(side_by_side(seed, Stream) for seed in range(150)))


def test_two_at_once_that_do_not_listen_are_found() -> None:
    with pytest.raises(AssertionError, match=r"twice|missing"):
        for seed in range(150):
            side_by_side(seed, ForgetsWhatIsThere)
