"""Whoever can elect meets whoever can have committed: each row of the table in `metadata.py`, every subset.

A set of members decides if it may be all that has a committed entry; a set elects if it is a majority of the
fencing ensemble. The leader comes from the electing set's part of the final ensemble, so that part must meet
every deciding set.
"""

from collections.abc import Callable, Iterator

import pytest

from hawser.log.protocol.messages import Change, ChangeKind, Member
from hawser.log.protocol.metadata import Metadata, Phase, Status, majority

Record = Callable[[str, object], None]

SIZES = range(1, 8)
KINDS = tuple(ChangeKind)


def named(size: int) -> tuple[Member, ...]:
    return tuple(f"n{each}.d" for each in range(size))


def bits(members: tuple[Member, ...]) -> int:
    """The set as a mask; the new member is one behind the last."""
    return sum(1 << int(member[1:].split(".")[0]) for member in members)


def subsets(mask: int, at_least: int) -> Iterator[int]:
    """Every subset of `mask` with so many members."""
    subset = mask
    while subset:
        if subset.bit_count() >= at_least:
            yield subset
        subset = (subset - 1) & mask


def change_of(kind: ChangeKind, size: int) -> Change:
    old = None if kind is ChangeKind.EXPAND else named(size)[-1]
    new = None if kind is ChangeKind.CONTRACT else named(size + 1)[-1]
    return Change(kind, old, new)


def stalled(kind: ChangeKind, phase: Phase, size: int) -> Metadata:
    return Metadata(
        version=3,
        epoch=2,
        status=Status.RECONFIGURATION,
        members=named(size),
        copies=size,
        leader=named(size)[0],
        change=change_of(kind, size),
        phase=phase,
    )


def electing(fenced: int, final: int) -> Iterator[int]:
    """From whom a leader may be chosen, for every majority that may answer."""
    for answers in subsets(fenced, majority(fenced.bit_count())):
        yield answers & final


def disjoint(deciding: set[int], candidates: set[int]) -> list[tuple[int, int]]:
    return [(one, other) for one in deciding for other in candidates if not one & other]


def deciding(metadata: Metadata) -> set[int]:
    """Every set that can hold what is committed while the change is where the metadata says.

    In PREPARE the leader's members are the old ones. In COMMIT it may have either; the old member has not
    counted since the change was prepared, and what was committed before that is on a majority without it, in
    a swap because no snapshot is given out earlier, in a contraction because the leader would call it unsafe.
    """
    before, change = bits(metadata.members), metadata.change
    sets = set(subsets(before, majority(len(metadata.members))))
    if change is None or metadata.phase is Phase.PREPARE:
        return sets
    if change.kind is ChangeKind.SWAP:
        sets = set(subsets(before & ~bits((change.old or "",)), majority(len(metadata.members))))
    after = change.applied_to(metadata.members)
    return sets | set(subsets(bits(after), majority(len(after))))


def changes() -> Iterator[tuple[ChangeKind, Phase, int]]:
    for kind in KINDS:
        for phase in Phase:
            for size in SIZES:
                if size > 1 or kind is ChangeKind.EXPAND:
                    yield kind, phase, size


@pytest.mark.parametrize("size", SIZES)
def test_majorities_meet(size: int) -> None:
    metadata = Metadata.initial(named(size))
    fenced, final = bits(metadata.fencing_ensemble), bits(metadata.final_ensemble)
    assert fenced == final == bits(metadata.members)
    assert not disjoint(deciding(metadata), set(electing(fenced, final)))


def test_elections_meet_what_a_stalled_change_committed(record_property: Record) -> None:
    pairs = 0
    for kind, phase, size in changes():
        metadata = stalled(kind, phase, size)
        candidates = set(electing(bits(metadata.fencing_ensemble), bits(metadata.final_ensemble)))
        decided = deciding(metadata)
        assert not disjoint(decided, candidates), metadata
        pairs += len(decided) * len(candidates)
    record_property("pairs of sets", pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_elections_meet_what_was_committed_before_a_completed_change(kind: ChangeKind) -> None:
    """After the change, before anything is committed under the new members."""
    for size in SIZES:
        if size == 1 and kind is not ChangeKind.EXPAND:
            continue
        metadata = stalled(kind, Phase.COMMIT, size)
        change = change_of(kind, size)
        after = bits(change.applied_to(metadata.members))
        decided = deciding(metadata)
        if kind is ChangeKind.CONTRACT:
            # The leader only agrees when what is committed is on a majority of those who remain.
            decided = {each & after for each in decided if (each & after).bit_count() >= majority(size - 1)}
        assert decided and not disjoint(decided, set(electing(after, after)))


def test_two_elections_over_one_stalled_change_meet() -> None:
    """A leader that an election appointed may commit before the next election, which starts where it did."""
    for kind, phase, size in changes():
        metadata = stalled(kind, phase, size)
        final = metadata.final_ensemble
        candidates = set(electing(bits(metadata.fencing_ensemble), bits(final)))
        assert not disjoint(set(subsets(bits(final), majority(len(final)))), candidates), metadata


@pytest.mark.parametrize("size", range(2, 8))
def test_contraction_rolled_forward_loses_if_the_ensemble_is_odd(size: int) -> None:
    """The seed's words taken literally; this is why the table rolls it back."""
    metadata = stalled(ChangeKind.CONTRACT, Phase.COMMIT, size)
    remaining = bits(change_of(ChangeKind.CONTRACT, size).applied_to(metadata.members))
    lost = disjoint(deciding(metadata), set(electing(bits(metadata.members), remaining)))
    assert bool(lost) == (size % 2 == 1)


@pytest.mark.parametrize("size", range(3, 8))
def test_canary_fencing_the_old_ensemble_loses(size: int) -> None:
    for kind in (ChangeKind.SWAP, ChangeKind.EXPAND):
        metadata = stalled(kind, Phase.COMMIT, size)
        old = bits(metadata.members)
        lost = disjoint(deciding(metadata), set(electing(old, bits(metadata.final_ensemble) & old)))
        # After an expansion it would only take longer; the model shows an election that never ends.
        assert bool(lost) == (kind is ChangeKind.SWAP and size % 2 == 1)


@pytest.mark.parametrize("size", range(3, 8))
def test_canary_a_swap_with_the_old_member_counted_loses(size: int) -> None:
    """An entry that the old member helped to commit, and that the new member's snapshot lacks."""
    metadata = stalled(ChangeKind.SWAP, Phase.COMMIT, size)
    counted = set(subsets(bits(metadata.members), majority(size)))
    candidates = set(electing(bits(metadata.fencing_ensemble), bits(metadata.final_ensemble)))
    assert disjoint(counted, candidates)


@pytest.mark.parametrize("size", (3, 5))
def test_canary_a_swap_right_after_an_expansion_loses(size: int) -> None:
    """Nothing committed under the expanded members yet: a majority of those before is too few, even with the
    snapshot of the new one."""
    swapping = stalled(ChangeKind.SWAP, Phase.COMMIT, size + 1)
    just_joined, new = 1 << (size - 1), 1 << (size + 1)
    before = bits(swapping.members) & ~just_joined
    counted = {each | new for each in subsets(before, majority(size))}
    candidates = set(electing(bits(swapping.fencing_ensemble), bits(swapping.final_ensemble)))
    assert disjoint(counted, candidates)
