"""The epochs of a log's entries: the only information about entries that is kept after they are removed."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Self

from hawser.log.entry import NO_ENTRY, Entry, EntryId

__all__ = ["Epochs"]


class Epochs:
    """The epochs of a log's entries from index 1 to its head, as (epoch, first index) in order.

    Epochs and indices only grow, so a few pairs describe millions of entries. Two logs that agree on the
    epoch of an entry agree on all entries before it.
    """

    __slots__ = ("_epochs", "_firsts", "head")

    def __init__(self, pairs: Iterable[tuple[int, int]] = (), last: int = 0) -> None:
        self._epochs: list[int] = []
        self._firsts: list[int] = []
        for epoch, first in pairs:
            assert not self._epochs or (epoch > self._epochs[-1] and first > self._firsts[-1])
            self._epochs.append(epoch)
            self._firsts.append(first)
        assert (last > 0) == bool(self._firsts)
        assert not self._firsts or (self._firsts[0] == 1 and last >= self._firsts[-1])
        self.head = EntryId(self._epochs[-1], last) if last else NO_ENTRY

    def pairs(self) -> list[tuple[int, int]]:
        """(epoch, first index) of each epoch with entries."""
        return list(zip(self._epochs, self._firsts, strict=True))

    def copy(self) -> Self:
        return type(self)(self.pairs(), self.head.index)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add consecutive entries behind the head; the last is the new head."""
        epoch, index = self.head
        for entry in entries:
            assert entry.index == index + 1 and entry.epoch >= epoch
            index += 1
            if entry.epoch > epoch:
                epoch = entry.epoch
                self._epochs.append(epoch)
                self._firsts.append(index)
        self.head = EntryId(epoch, index)

    def extend_through(self, epoch: int, index: int) -> None:
        """Add entries of `epoch` behind the head through `index`, the new head."""
        assert index > self.head.index and epoch >= self.head.epoch
        if epoch > self.head.epoch:
            self._epochs.append(epoch)
            self._firsts.append(self.head.index + 1)
        self.head = EntryId(epoch, index)

    def cut(self, index: int) -> None:
        """Make `index` the head and remove later entries."""
        assert 0 <= index <= self.head.index
        while self._firsts and self._firsts[-1] > index:
            self._firsts.pop()
            self._epochs.pop()
        self.head = EntryId(self._epochs[-1], index) if index else NO_ENTRY

    def epoch_of(self, index: int) -> int:
        """The epoch of the entry at `index`; 0 for index 0."""
        assert 0 <= index <= self.head.index
        return self._epochs[bisect_right(self._firsts, index) - 1] if index else 0

    def id_at(self, index: int) -> EntryId:
        return EntryId(self.epoch_of(index), index)

    def __contains__(self, entry: EntryId) -> bool:
        return 0 <= entry.index <= self.head.index and self.epoch_of(entry.index) == entry.epoch

    def highest_up_to(self, epoch: int) -> EntryId:
        """The last entry that was written in `epoch` or before."""
        place = bisect_right(self._epochs, epoch)
        if place == len(self._epochs):
            return self.head
        return self.id_at(self._firsts[place] - 1)
