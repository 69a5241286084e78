"""Each of the sixteen statements can fail: what it forbids raises, and names it."""

from collections.abc import Callable

import pytest

from hawser.log.entry import Entry, EntryId
from hawser.log.epochs import Epochs
from hawser.log.protocol.events import Tick
from hawser.log.protocol.messages import AddEntriesRequest, Change, ChangeKind, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status
from hawser.testing import checks
from hawser.testing.checks import STATEMENTS, Violation, Watch

MEMBERS = ("a", "b", "c")


def watch(member: str, epochs: list[int], synced: int | None = None, epoch: int = 5) -> Watch:
    made = Watch(member)
    made.epoch = epoch
    made.role = Role.FOLLOWER
    made.epochs = epochs
    made.synced = len(epochs) if synced is None else synced
    return made


def log(*epochs: int) -> Epochs:
    made = Epochs()
    made.extend(Entry.make(epoch, index) for index, epoch in enumerate(epochs, 1))
    return made


def steady(*members: str) -> Metadata:
    return Metadata(
        version=3, epoch=4, status=Status.STEADY, members=members, copies=len(members), leader=members[0]
    )


def committed(watch: Watch, commit: int) -> Watch:
    watch.commit = watch.applied = watch.committed = commit
    return watch


SWAP = Change(ChangeKind.SWAP, "c", "d")
ENTRY = Entry.make(2, 3, payload=b"x")
TWO_ENTRIES = AddEntriesRequest(2, EntryId(2, 2), (ENTRY, Entry.make(2, 4, payload=b"y")), 0)

BROKEN: list[tuple[int, Callable[[], None]]] = [
    (1, lambda: checks.epoch_grows(watch("a", []), 4, 4)),
    (1, lambda: checks.epoch_grows(watch("a", []), 6, 5)),
    (2, lambda: checks.one_leader({5: ("a", 1)}, 5, "b", 1)),
    (2, lambda: checks.one_leader({5: ("a", 1)}, 5, "a", 2)),
    (3, lambda: checks.metadata_grows(steady("a"), steady("a"))),
    (3, lambda: checks.metadata_grows(steady("a"), steady("a").next(epoch=3))),
    (3, lambda: checks.metadata_grows(steady("a"), steady("a").next(leader="b"))),
    (4, lambda: checks.one_entry_per_name({(2, 3): (1, Entry.make(2, 3, payload=b"y"))}, ENTRY, 1, "a")),
    (4, lambda: checks.trimmed_entry_is_known({}, ENTRY.id, 1, "a")),
    (5, lambda: checks.log_is_dense("a", 4, ENTRY, 1, log(1, 1, 2))),
    (5, lambda: checks.log_is_dense("a", 3, ENTRY, 3, log(1, 1, 2))),
    (6, lambda: checks.one_entry_per_name({(2, 3): (1, ENTRY)}, ENTRY, 2, "a")),
    (6, lambda: checks.trimmed_entry_is_known({(2, 3): (1, ENTRY)}, ENTRY.id, 2, "a")),
    (7, lambda: checks.cursor_is_true(watch("b", [1, 1]), watch("a", [1]), 2)),
    (7, lambda: checks.cursor_is_true(watch("b", [1, 2]), watch("a", [1, 3]), 2)),
    (7, lambda: checks.cursor_is_true(watch("b", [1, 1], synced=1), watch("a", [1, 1]), 2)),
    (8, lambda: checks.indices_are_ordered(committed(watch("a", [1, 1]), 2), 1, 1, 2)),
    (8, lambda: checks.indices_are_ordered(watch("a", [1, 1]), 3, 2, 2)),
    (8, lambda: checks.indices_are_ordered(watch("a", [1, 1]), 1, 2, 2)),
    (9, lambda: checks.commit_has_majority({}, watch("a", [4]), MEMBERS, EntryId(4, 1))),
    (9, lambda: checks.commit_has_majority({"a": watch("a", [5])}, watch("a", [5]), MEMBERS, EntryId(5, 1))),
    (10, lambda: checks.leader_has_committed("a", 5, EntryId(4, 2), log(1, 3))),
    (11, lambda: checks.truncation_is_harmless(committed(watch("a", [1, 1]), 2), 1)),
    (12, lambda: checks.said_is_on_disk("a", EntryId(1, 2), 1, log(1, 1), "have")),
    (12, lambda: checks.said_is_on_disk("a", EntryId(2, 2), 2, log(1, 1), "have")),
    (12, lambda: checks.disk_kept_its_word(watch("a", [1, 2]), 2, log(1))),
    (
        13,
        lambda: checks.committed_meets_voters(
            {"a": watch("a", [5]), "b": watch("b", []), "c": watch("c", [])},
            steady(*MEMBERS),
            set(),
            EntryId(5, 1),
        ),
    ),
    (14, lambda: checks.ensemble_is_admitted({5: {frozenset("ab")}}, "a", 5, MEMBERS)),
    (14, lambda: checks.steady_ensemble_is_the_leaders(steady(*MEMBERS), "a", ("a", "b"))),
    (15, lambda: checks.repeat_changes_nothing("a", "fence", 1, 2)),
    (16, lambda: checks.message_is_bounded("a", TWO_ENTRIES, 2 * len(ENTRY.frame) - 1)),
    (16, lambda: checks.reads_are_bounded("a", Tick(), 20, 11)),
]


@pytest.mark.parametrize("place", range(len(BROKEN)))
def test_what_a_statement_forbids_is_a_violation(place: int) -> None:
    number, breach = BROKEN[place]
    with pytest.raises(Violation) as caught:
        breach()
    assert caught.value.statement == number
    assert STATEMENTS[number] in str(caught.value)


def test_every_statement_is_broken_above() -> None:
    assert {number for number, _ in BROKEN} == set(STATEMENTS) == set(range(1, 17))


def test_what_they_allow_passes() -> None:
    checks.message_is_bounded("a", TWO_ENTRIES, 2 * len(ENTRY.frame))
    checks.message_is_bounded("a", AddEntriesRequest(2, EntryId(2, 2), (ENTRY,), 0), 1)
    checks.reads_are_bounded("a", Tick(), 20, 12)
    checks.epoch_grows(watch("a", []), 5, 5)
    checks.metadata_grows(steady("a"), steady("a").next(epoch=9))
    checks.one_entry_per_name({(2, 3): (1, ENTRY)}, ENTRY, 1, "a")
    checks.cursor_is_true(watch("b", [1], epoch=9), watch("a", [1, 3]), 2)
    checks.indices_are_ordered(committed(watch("a", [1, 1]), 1), 2, 1, 2)
    have = {"a": watch("a", [5]), "b": watch("b", [5])}
    checks.commit_has_majority(have, watch("a", [5]), MEMBERS, EntryId(5, 1))
    checks.committed_meets_voters(have, steady(*MEMBERS), set(), EntryId(5, 1))
    checks.truncation_is_harmless(committed(watch("a", [1, 1]), 1), 1)


# The smallest ensembles of which an operator makes the change.
SMALLEST = {None: 1, ChangeKind.EXPAND: 1, ChangeKind.CONTRACT: 2, ChangeKind.SWAP: 3}


@pytest.mark.parametrize(
    ("kind", "size"), [(kind, n) for kind, least in SMALLEST.items() for n in range(least, 8)]
)
@pytest.mark.parametrize("phase", Phase)
def test_the_quorums_of_every_configuration_meet(size: int, kind: ChangeKind | None, phase: Phase) -> None:
    members = tuple(f"m{number}" for number in range(size))
    if kind is None:
        checks.quorums_meet(steady(*members))
        return
    old = None if kind is ChangeKind.EXPAND else "m0"
    new = None if kind is ChangeKind.CONTRACT else "new"
    change = Change(kind, old, new)
    metadata = steady(*members).next(status=Status.RECONFIGURATION, change=change, phase=phase)
    checks.quorums_meet(metadata)


def test_quorums_that_do_not_meet_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metadata, "fencing_ensemble", property(lambda self: self.members))
    metadata = steady(*MEMBERS).next(status=Status.RECONFIGURATION, change=SWAP, phase=Phase.COMMIT)
    with pytest.raises(Violation, match="statement 13"):
        checks.quorums_meet(metadata)
