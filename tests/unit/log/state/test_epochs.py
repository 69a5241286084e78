"""Which epoch wrote which part of a log, against a list that has one epoch for each entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hawser.log.entry import NO_ENTRY, Entry, EntryId
from hawser.log.epochs import Epochs

histories = some.lists(some.integers(1, 9), max_size=40).map(sorted)


def built(history: list[int]) -> Epochs:
    epochs = Epochs()
    epochs.extend(Entry.make(epoch, index) for index, epoch in enumerate(history, 1))
    return epochs


def same(epochs: Epochs, history: list[int]) -> bool:
    """Whether they describe one log."""
    found = [epochs.epoch_of(index) for index in range(1, epochs.head.index + 1)]
    return found == history and epochs.epoch_of(0) == 0


def test_an_empty_log() -> None:
    epochs = Epochs()
    assert epochs.head == NO_ENTRY and epochs.pairs() == []
    assert NO_ENTRY in epochs and EntryId(1, 1) not in epochs
    assert epochs.highest_up_to(9) == NO_ENTRY
    epochs.cut(0)
    assert epochs.head == NO_ENTRY


@given(histories)
def test_grows_like_the_list(history: list[int]) -> None:
    epochs = built(history)
    assert same(epochs, history)
    assert epochs.head == (EntryId(history[-1], len(history)) if history else NO_ENTRY)
    assert [epoch for epoch, _ in epochs.pairs()] == sorted(set(history))
    assert [epochs.id_at(index) for index in range(1, len(history) + 1)] == [
        EntryId(epoch, index) for index, epoch in enumerate(history, 1)
    ]


@given(histories, some.data())
def test_cuts_like_the_list_and_grows_again(history: list[int], data: some.DataObject) -> None:
    epochs = built(history)
    index = data.draw(some.integers(0, len(history)))
    epochs.cut(index)
    assert same(epochs, history[:index])
    epochs.extend([Entry.make(10, index + 1)])
    assert same(epochs, [*history[:index], 10])


@given(histories, some.integers(0, 10), some.integers(-1, 41))
def test_contains_exactly_its_entries(history: list[int], epoch: int, index: int) -> None:
    expected = (epoch, index) == (0, 0) or (0 < index <= len(history) and history[index - 1] == epoch)
    assert (EntryId(epoch, index) in built(history)) == expected


@given(histories, some.integers(0, 10))
def test_the_highest_entry_up_to_an_epoch(history: list[int], epoch: int) -> None:
    count = sum(each <= epoch for each in history)
    assert built(history).highest_up_to(epoch) == (EntryId(history[count - 1], count) if count else NO_ENTRY)


@given(histories)
def test_pairs_and_head_are_all_there_is(history: list[int]) -> None:
    epochs = built(history)
    again = Epochs(epochs.pairs(), len(history))
    assert same(again, history) and again.head == epochs.head


def test_a_copy_goes_its_own_way() -> None:
    epochs = built([1, 1, 2])
    copy = epochs.copy()
    copy.cut(1)
    epochs.extend([Entry.make(2, 4)])
    assert same(copy, [1]) and same(epochs, [1, 1, 2, 2])


@pytest.mark.parametrize(
    ("pairs", "last"),
    [
        ([(1, 1)], 0),  # entries without an end
        ([], 3),  # an end without entries
        ([(1, 2)], 3),  # a beginning that is missing
        ([(1, 1), (1, 3)], 4),  # one epoch twice
        ([(2, 1), (1, 3)], 4),  # backwards
        ([(1, 1), (2, 1)], 4),  # an epoch without entries
        ([(1, 1), (2, 5)], 4),  # beyond the end
    ],
)
def test_impossible_histories_are_refused(pairs: list[tuple[int, int]], last: int) -> None:
    with pytest.raises(AssertionError):
        Epochs(pairs, last)


@pytest.mark.parametrize(("epoch", "index"), [(1, 3), (2, 3), (3, 5), (3, 3)])
def test_entries_come_in_order(epoch: int, index: int) -> None:
    epochs = built([1, 2, 2])
    with pytest.raises(AssertionError):
        epochs.extend([Entry.make(epoch, index)])


def test_nothing_is_cut_that_is_not_there() -> None:
    with pytest.raises(AssertionError):
        built([1]).cut(2)
    with pytest.raises(AssertionError):
        built([1]).epoch_of(2)
