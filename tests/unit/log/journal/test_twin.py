"""The journal against a list: any order of deeds, crashes included, by Hypothesis."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hawser.log.entry import Entry
from hawser.log.journal import Journal, Settings, StorageFull
from hawser.log.protocol.events import Promise
from hawser.testing.disk import SimDisk

SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=6)


class JournalAgainstList(RuleBasedStateMachine):
    """`entries` is the twin: what the journal holds. `first` and `synced` are what it has said of itself."""

    @initialize(segment_bytes=st.integers(32, 3000), tail_bytes=st.integers(0, 3000))
    def begin(self, segment_bytes: int, tail_bytes: int) -> None:
        self.settings = Settings(segment_bytes=segment_bytes, tail_bytes=tail_bytes)
        self.disk = SimDisk()
        self.journal = Journal.format(self.disk, "shard", "node.disk", self.settings)
        self.entries: list[Entry] = []
        self.epoch = 1
        self.synced = 0

    @property
    def covered(self) -> int:
        return self.journal.checkpoint.index if self.journal.checkpoint else 0

    def make(self, sizes: list[int]) -> list[Entry]:
        start = len(self.entries) + 1
        return [Entry.make(self.epoch, start + place, 1, bytes(size)) for place, size in enumerate(sizes)]

    @rule(sizes=SIZES)
    def append(self, sizes: list[int]) -> None:
        batch = self.make(sizes)
        self.journal.append(batch)
        self.entries += batch

    @rule(sizes=SIZES)
    def append_on_a_full_disk(self, sizes: list[int]) -> None:
        batch = self.make(sizes)
        self.disk.capacity_bytes = 0
        try:
            self.journal.append(batch)
            self.entries += batch
        except StorageFull:
            assert not self.journal.reserve(sum(len(entry.frame) for entry in batch))
        self.disk.capacity_bytes = None

    @rule()
    def sync(self) -> None:
        self.synced = self.journal.sync()
        assert self.synced == len(self.entries)

    @rule()
    def settle(self) -> None:
        self.journal.settle()
        self.synced = len(self.entries)

    @rule(by=st.integers(1, 3))
    def next_epoch(self, by: int) -> None:
        self.epoch += by
        self.journal.save_promise(Promise(self.epoch))

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        index = self.covered + int(share * (len(self.entries) - self.covered))
        self.journal.truncate(index)
        del self.entries[index:]
        self.synced = min(self.synced, index)
        self.epoch += 1

    @rule(share=st.floats(0, 1), state=st.binary(max_size=50))
    def checkpoint(self, share: float, state: bytes) -> None:
        index = self.covered + int(share * (self.synced - self.covered))
        self.journal.save_checkpoint(index, state, [])

    @rule(share=st.floats(0, 1))
    def retain(self, share: float) -> None:
        wanted = 1 + int(share * len(self.entries))
        before = self.journal.first
        first = self.journal.retain(wanted)
        assert before <= first <= max(before, min(wanted, self.covered + 1))

    @rule()
    def open_again(self) -> None:
        self.journal = Journal.open(self.disk, self.settings)
        self.synced = len(self.entries)

    @rule(seed=st.integers(0, 1 << 32))
    def crash(self, seed: int) -> None:
        self.disk.crash(Random(seed))
        self.journal = Journal.open(self.disk, self.settings)
        head = self.journal.head.index
        assert self.synced <= head <= len(self.entries)
        del self.entries[head:]
        self.synced = head
        self.epoch += 1

    @rule(data=st.data(), max_bytes=st.integers(0, 2000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        if self.journal.first > len(self.entries):
            return
        first = data.draw(st.integers(self.journal.first, len(self.entries)))
        last = data.draw(st.integers(first, len(self.entries)))
        found = self.journal.read(first, last, max_bytes)
        assert found == self.entries[first - 1 : first - 1 + len(found)]
        size = sum(len(entry.frame) for entry in found)
        assert len(found) == 1 or size <= max_bytes
        following = first + len(found)
        assert following > last or size + len(self.entries[following - 1].frame) > max_bytes

    @invariant()
    def is_the_same(self) -> None:
        if not hasattr(self, "journal"):
            return
        journal, count = self.journal, len(self.entries)
        assert journal.head.index == count
        assert journal.synced == self.synced
        assert journal.first - 1 <= self.covered <= journal.synced
        for entry in self.entries[-3:]:
            assert journal.epochs.epoch_of(entry.index) == entry.epoch


TestJournalAgainstList = JournalAgainstList.TestCase
TestJournalAgainstList.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
