"""An operator: what it stores, whom it asks, whom it believes. The store here is a variable."""

from typing import Any

import msgspec
import pytest

from hawser.log.entry import NO_ENTRY, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Contract,
    Effect,
    Elect,
    Expand,
    Load,
    Loaded,
    Order,
    Receive,
    Reconfigure,
    Report,
    Send,
    Store,
    Swap,
    Tick,
    Transfer,
)
from hawser.log.protocol.messages import Change, ChangeKind, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status
from hawser.log.protocol.operator import Operator
from hawser.log.protocol.tables import Activity

THREE = ("n1", "n2", "n3")
PATIENCE = 3
HEAD = EntryId(1, 4)


class Harness:
    """An operator and a store that answers at once; `sent` is what the last event brought."""

    def __init__(self, metadata: Metadata, name: str = "o1") -> None:
        self.metadata = metadata
        self.operator = Operator(name, PATIENCE)
        self.sent: list[Send] = []
        self.reports: list[Report] = []
        self.stored: list[Metadata] = []

    def step(self, event: Any) -> None:
        self.sent.clear()
        self.stored.clear()
        self.reports.clear()
        self._carry_out(self.operator.step(event))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Report):
                self.reports.append(effect)
            else:
                if isinstance(effect, Store) and effect.metadata.version == self.metadata.version + 1:
                    assert effect.metadata.epoch >= self.metadata.epoch
                    self.metadata = effect.metadata
                    self.stored.append(effect.metadata)
                self._carry_out(self.operator.step(Loaded(self.metadata)))

    def hear(self, sender: str, message: m.Message) -> None:
        self.step(Receive(sender, message))

    def to(self, member: str) -> list[m.Message]:
        """What was sent there, health probes left out."""
        found = [each.message for each in self.sent if each.to == member]
        return [message for message in found if not isinstance(message, m.StatusRequest)]

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.step(Tick())


def steady(members: tuple[str, ...] = THREE, **changes: object) -> Metadata:
    metadata = Metadata(
        version=7,
        epoch=3,
        status=Status.STEADY,
        members=members,
        copies=len(members),
        leader="n1",
        writer="o0",
    )
    return msgspec.structs.replace(metadata, **changes)


def watching(members: tuple[str, ...] = THREE, **changes: object) -> Harness:
    harness = Harness(steady(members, **changes))
    harness.tick()
    assert harness.operator.activity is Activity.WATCHING
    return harness


def electing(metadata: Metadata | None = None) -> Harness:
    harness = Harness(metadata or steady())
    harness.tick()
    if harness.operator.activity is Activity.WATCHING:
        harness.step(Elect("e"))
    else:
        while harness.operator.activity is Activity.WAITING:
            harness.tick()
    assert harness.operator.activity is Activity.FENCING
    return harness


def status(role: Role, epoch: int, led: bool = False, **changes: object) -> m.StatusResponse:
    response = m.StatusResponse(epoch, 1, role, led, False, HEAD, 4, 4, 0, 0, THREE, None, {})
    return msgspec.structs.replace(response, **changes)


def doing(harness: Harness) -> Activity:
    return harness.operator.activity


# Elections.


def test_a_new_shard_is_elected_at_once() -> None:
    harness = Harness(Metadata.initial(THREE))
    harness.tick()
    assert harness.metadata.epoch == 1 and harness.metadata.writer == "o1"
    assert [harness.to(member) for member in THREE] == [[m.FenceRequest(1)]] * 3


def test_a_minority_decides_nothing() -> None:
    harness = electing()
    harness.hear("n2", m.FenceResponse(4, HEAD))
    assert harness.sent == []
    harness.hear("n2", m.FenceResponse(4, HEAD))
    assert harness.sent == []


def test_the_highest_head_leads_by_epoch_first() -> None:
    harness = electing()
    harness.hear("n2", m.FenceResponse(4, EntryId(1, 90)))
    harness.hear("n3", m.FenceResponse(4, EntryId(2, 5)))
    lead = m.BecomeLeaderRequest(4, THREE, {"n2": EntryId(1, 90)})
    assert harness.to("n3") == [lead]
    harness.hear("n3", m.BecomeLeaderResponse(4))
    assert (harness.metadata.status, harness.metadata.leader) == (Status.STEADY, "n3")


def test_answers_of_another_epoch_or_from_strangers_do_not_count() -> None:
    harness = electing()
    for sender, epoch in (("n1", 3), ("n2", 5), ("n9", 4), ("n3", 4)):
        harness.hear(sender, m.FenceResponse(epoch, HEAD))
        assert harness.sent == []


def test_only_the_chosen_one_makes_it_steady_and_only_once() -> None:
    harness = electing()
    harness.hear("n1", m.FenceResponse(4, HEAD))
    harness.hear("n2", m.FenceResponse(4, HEAD))
    harness.hear("n2", m.BecomeLeaderResponse(4))
    harness.hear("n1", m.BecomeLeaderResponse(3))
    assert harness.stored == [] and harness.metadata.status is Status.ELECTION
    harness.hear("n1", m.BecomeLeaderResponse(4))
    assert [each.leader for each in harness.stored] == ["n1"]
    harness.hear("n1", m.BecomeLeaderResponse(4))
    assert harness.stored == []


def test_a_late_answer_becomes_an_added_follower() -> None:
    harness = electing()
    harness.hear("n1", m.FenceResponse(4, HEAD))
    harness.hear("n2", m.FenceResponse(4, HEAD))
    harness.hear("n3", m.FenceResponse(4, NO_ENTRY))
    assert harness.to("n1") == [m.AddFollowerRequest(4, "n3", NO_ENTRY)]
    harness.hear("n1", m.BecomeLeaderResponse(4))
    harness.hear("n3", m.FenceResponse(4, NO_ENTRY))
    assert harness.to("n1") == [m.AddFollowerRequest(4, "n3", NO_ENTRY)]


def test_who_did_not_answer_is_fenced_again() -> None:
    harness = electing()
    harness.hear("n1", m.FenceResponse(4, HEAD))
    harness.tick()
    assert harness.to("n1") == []
    assert harness.to("n2") == harness.to("n3") == [m.FenceRequest(4)]


def test_one_that_cannot_lead_is_not_chosen_twice() -> None:
    harness = electing()
    for member in THREE:
        harness.hear(member, m.FenceResponse(4, HEAD))
    assert harness.operator.activity is Activity.APPOINTING
    harness.tick(PATIENCE + 1)
    assert harness.metadata.epoch == 5
    for member in THREE:
        harness.hear(member, m.FenceResponse(5, HEAD))
    harness.tick()
    assert harness.to("n1") == [] and len(harness.to("n2")) == 1


@pytest.mark.parametrize(
    ("change", "phase", "fenced", "final"),
    [
        (Change(ChangeKind.SWAP, "n3", "n4"), Phase.PREPARE, THREE, THREE),
        (Change(ChangeKind.SWAP, "n3", "n4"), Phase.COMMIT, (*THREE, "n4"), ("n1", "n2", "n4")),
        (Change(ChangeKind.EXPAND, None, "n4"), Phase.PREPARE, THREE, THREE),
        (Change(ChangeKind.EXPAND, None, "n4"), Phase.COMMIT, (*THREE, "n4"), (*THREE, "n4")),
        (Change(ChangeKind.CONTRACT, "n3", None), Phase.PREPARE, THREE, THREE),
        (Change(ChangeKind.CONTRACT, "n3", None), Phase.COMMIT, THREE, THREE),
    ],
)
def test_a_stalled_change(
    change: Change, phase: Phase, fenced: tuple[str, ...], final: tuple[str, ...]
) -> None:
    """D2 and D7: everybody who may have counted is fenced, and the final ensemble goes on."""
    harness = electing(steady(status=Status.RECONFIGURATION, change=change, phase=phase, leader=None))
    asked = {each.to for each in harness.sent if isinstance(each.message, m.FenceRequest)}
    assert asked == set(fenced)
    for member in fenced[: len(fenced) // 2 + 1]:
        harness.hear(member, m.FenceResponse(4, HEAD))
    assert harness.to("n1") == [m.BecomeLeaderRequest(4, final, harness.to("n1")[0].followers)]  # type: ignore[attr-defined]
    harness.hear("n1", m.BecomeLeaderResponse(4))
    assert harness.metadata.members == final
    assert harness.metadata.change is None and harness.metadata.phase is None
    # Whoever does not belong to it any more deletes what it has, the new member of a dropped change too.
    known = (*THREE, *([change.new] if change.new else []))
    assert harness.metadata.removed == tuple(member for member in known if member not in final)


def test_a_leader_comes_from_the_final_ensemble() -> None:
    change = Change(ChangeKind.SWAP, "n3", "n4")
    harness = electing(steady(status=Status.RECONFIGURATION, change=change, phase=Phase.COMMIT, leader=None))
    harness.hear("n3", m.FenceResponse(4, EntryId(9, 9)))
    harness.hear("n2", m.FenceResponse(4, HEAD))
    harness.hear("n4", m.FenceResponse(4, NO_ENTRY))
    assert harness.to("n2") == [m.BecomeLeaderRequest(4, ("n1", "n2", "n4"), {"n4": NO_ENTRY})]


# Watching.


def test_a_leader_whose_reads_wait_is_as_stuck_as_one_whose_writes_do() -> None:
    harness = watching()
    for _ in range(PATIENCE * 9):
        harness.hear("n1", status(Role.LEADER, 3, reading=7))
        harness.tick()
    assert harness.metadata.status is Status.ELECTION


def test_a_silent_leader_is_replaced() -> None:
    harness = watching()
    harness.tick(PATIENCE)
    assert harness.metadata == steady()
    harness.tick(2)
    assert harness.metadata.status is Status.ELECTION


def test_a_leader_that_answers_is_left_alone() -> None:
    harness = watching()
    for _ in range(5 * PATIENCE):
        harness.hear("n1", status(Role.LEADER, 3, led=True))
        harness.tick()
    assert harness.metadata == steady()


def test_a_leader_that_was_restarted_is_replaced_at_once() -> None:
    harness = watching()
    harness.hear("n1", status(Role.FENCED, 3, led=True))
    assert harness.metadata.epoch == 4 and harness.metadata.status is Status.ELECTION


def test_what_the_leader_said_before_it_led_is_no_reason() -> None:
    harness = watching()
    harness.hear("n1", status(Role.FENCED, 2, led=True))
    harness.hear("n1", status(Role.FENCED, 3))
    harness.hear("n2", status(Role.FENCED, 3, led=True))
    assert harness.metadata == steady()


def test_a_change_that_the_store_does_not_have_is_aborted() -> None:
    change = Change(ChangeKind.EXPAND, None, "n4")
    harness = watching()
    harness.hear("n1", status(Role.LEADER, 3, led=True, change=change))
    assert harness.to("n1") == [m.AbortReconfigurationRequest(3, change)]


def test_a_hand_over_that_nobody_wants_is_called_off() -> None:
    harness = watching()
    harness.hear("n1", status(Role.LEADER, 3, led=True, handing_over=True))
    assert harness.to("n1") == [m.HandOverRequest(3, None)]


def test_removed_members_are_retired_and_forgotten_when_they_say_so() -> None:
    harness = watching(removed=("n8", "n9"))
    harness.tick()
    assert harness.to("n8") == harness.to("n9") == [m.RetireRequest(3)]
    harness.hear("n9", m.RetireResponse(3))
    assert harness.metadata.removed == ("n8",)
    harness.hear("n9", m.RetireResponse(3))
    assert harness.stored == []


# Reconfigurations.


def test_a_swap_from_its_order_to_its_report() -> None:
    change = Change(ChangeKind.SWAP, "n3", "n4")
    harness = watching()
    harness.step(Swap("n3", "n4", "s"))
    assert (harness.metadata.epoch, harness.metadata.phase) == (4, Phase.PREPARE)
    assert harness.to("n1") == [m.PrepareReconfigurationRequest(4, change)]
    prepared = m.PrepareReconfigurationResponse(4, change)
    harness.hear("n1", prepared)
    assert harness.to("n4") == [m.SnapshotRequest(4, "n1")]
    harness.hear("n1", prepared)
    assert harness.sent == []
    harness.hear("n2", m.SnapshotResponse(4, HEAD))
    assert harness.stored == []
    harness.hear("n4", m.SnapshotResponse(4, HEAD))
    assert (harness.metadata.phase, harness.metadata.new_head) == (Phase.COMMIT, HEAD)
    assert harness.to("n1") == [m.CommitReconfigurationRequest(4, change, HEAD)]
    harness.hear("n4", m.SnapshotResponse(4, HEAD))
    assert harness.stored == []
    committed = m.CommitReconfigurationResponse(4, change, True)
    harness.hear("n1", committed)
    assert harness.metadata.members == ("n1", "n2", "n4")
    assert harness.metadata.removed == ("n3",) and harness.metadata.status is Status.STEADY
    assert harness.reports == [Report("s", True, "the members are n1, n2, n4")]
    harness.hear("n1", committed)
    assert harness.stored == []


def test_answers_of_another_epoch_move_nothing() -> None:
    change = Change(ChangeKind.SWAP, "n3", "n4")
    harness = watching()
    harness.step(Swap("n3", "n4", "s"))
    before = harness.metadata
    for message in (
        m.PrepareReconfigurationResponse(3, change),
        m.SnapshotResponse(3, HEAD),
        m.SnapshotResponse(4, HEAD),
        m.CommitReconfigurationResponse(3, change, True),
        m.CommitReconfigurationResponse(4, change, True),
    ):
        harness.hear("n4" if isinstance(message, m.SnapshotResponse) else "n1", message)
        assert harness.metadata == before and harness.operator.activity is Activity.PREPARING


@pytest.mark.parametrize(
    ("order", "had", "has"),
    [
        (Contract("n3"), 3, 2),
        (Contract("n3"), 5, 2),
        (Contract("n3", is_repair=True), 3, 3),
        (Expand("n4"), 3, 4),
        (Expand("n4"), 5, 5),
        (Expand("n4", is_repair=True), 4, 4),
        (Swap("n3", "n4"), 3, 3),
    ],
)
@pytest.mark.parametrize("is_elected", [False, True])
def test_how_many_copies_there_are_to_be_after_a_change(
    order: Reconfigure, had: int, has: int, is_elected: bool
) -> None:
    """Also if an election completes it; a contraction is undone then."""
    change = order.change
    harness = watching(copies=had)
    harness.step(order)
    harness.hear("n1", m.PrepareReconfigurationResponse(4, change))
    harness.hear("n4", m.SnapshotResponse(4, HEAD))
    assert (harness.metadata.phase, harness.metadata.copies) == (Phase.COMMIT, had)
    if is_elected:
        while doing(harness) is not Activity.FENCING:
            harness.tick()
        for member in ("n1", "n2", "n4"):
            harness.hear(member, m.FenceResponse(5, HEAD))
        harness.hear("n1", m.BecomeLeaderResponse(5))
    else:
        harness.hear("n1", m.CommitReconfigurationResponse(4, change, True))
    assert harness.metadata.status is Status.STEADY
    assert harness.metadata.copies == (had if is_elected and change.kind is ChangeKind.CONTRACT else has)


def test_a_contraction_is_asked_for_until_it_is_safe() -> None:
    change = Change(ChangeKind.CONTRACT, "n3", None)
    harness = watching()
    harness.step(Contract("n3", "c"))
    harness.hear("n1", m.PrepareReconfigurationResponse(4, change))
    commit = m.CommitReconfigurationRequest(4, change, NO_ENTRY)
    assert harness.to("n1") == [commit]
    harness.hear("n1", m.CommitReconfigurationResponse(4, change, False))
    assert harness.metadata.status is Status.RECONFIGURATION
    harness.tick()
    assert harness.to("n1") == [commit]
    harness.hear("n1", m.CommitReconfigurationResponse(4, change, True))
    assert harness.metadata.members == ("n1", "n2")


@pytest.mark.parametrize(
    ("members", "order", "words"),
    [
        (THREE, Swap("n9", "n4"), "n9 is not a member"),
        (THREE, Swap("n3", "n2"), "n2 is a member already"),
        (THREE, Swap("n3", "n8"), "n8 was removed"),
        (("n1", "n2"), Swap("n2", "n4"), "a swap needs three members"),
        (THREE, Expand("n1"), "n1 is a member already"),
        (THREE, Expand("n4", is_repair=True), "a repair is not needed any more"),
        (THREE, Contract("n9"), "n9 is not a member"),
        (("n1",), Contract("n1"), "the last member cannot be removed"),
        (THREE, Transfer("n9"), "n9 is not a member"),
    ],
)
def test_an_impossible_order_is_refused_and_says_why(
    members: tuple[str, ...], order: Order, words: str
) -> None:
    harness = watching(members, removed=("n8",))
    before = harness.metadata
    harness.step(order)
    assert harness.metadata == before
    assert len(harness.reports) == 1 and not harness.reports[0].done
    assert harness.reports[0].text.startswith(words)


def test_a_repair_that_waited_for_an_expansion_adds_no_further_copy() -> None:
    harness = watching(("n1",), copies=2)
    harness.step(Expand("n2", "ordered"))
    harness.step(Expand("n3", "repair", is_repair=True))
    harness.hear("n1", m.PrepareReconfigurationResponse(4, Change(ChangeKind.EXPAND, None, "n2")))
    harness.hear("n2", m.SnapshotResponse(4, HEAD))
    harness.hear("n1", m.CommitReconfigurationResponse(4, Change(ChangeKind.EXPAND, None, "n2"), True))
    assert [(report.tag, report.done) for report in harness.reports] == [("ordered", True), ("repair", False)]
    assert (harness.metadata.members, harness.metadata.copies) == (("n1", "n2"), 2)
    assert harness.metadata.status is Status.STEADY


def test_orders_wait_for_each_other() -> None:
    harness = watching()
    harness.step(Elect("first"))
    harness.step(Transfer("n2", "second"))
    assert harness.reports == [] and harness.to("n1") == []
    harness.hear("n1", m.FenceResponse(4, HEAD))
    harness.hear("n2", m.FenceResponse(4, HEAD))
    harness.hear("n1", m.BecomeLeaderResponse(4))
    assert [report.tag for report in harness.reports] == ["first"]
    assert harness.to("n1") == [m.HandOverRequest(4, "n2")]


# Handing over.


def test_a_transfer_elects_the_successor_when_the_leader_says_so() -> None:
    harness = watching()
    harness.step(Transfer("n3", "t"))
    assert harness.to("n1") == [m.HandOverRequest(3, "n3")]
    harness.hear("n1", m.HandOverResponse(3, "n2"))
    harness.hear("n1", m.HandOverResponse(2, "n3"))
    assert harness.metadata == steady()
    harness.hear("n1", m.HandOverResponse(3, "n3"))
    assert harness.metadata.epoch == 4
    harness.hear("n1", m.FenceResponse(4, HEAD))
    harness.hear("n2", m.FenceResponse(4, HEAD))
    assert harness.sent == []
    harness.hear("n3", m.FenceResponse(4, HEAD))
    assert len(harness.to("n3")) == 1
    harness.hear("n3", m.BecomeLeaderResponse(4))
    assert harness.reports == [Report("t", True, "the leader is n3")]


def test_answers_of_an_earlier_change_are_not_taken_for_this_one() -> None:
    """The same change was asked for before, given up, and asked for again."""
    change = Change(ChangeKind.EXPAND, None, "n4")
    harness = watching(epoch=5)
    harness.step(Expand("n4", "e"))
    harness.hear("n1", m.PrepareReconfigurationResponse(6, change))
    assert doing(harness) is Activity.INSTALLING
    harness.hear("n4", m.SnapshotResponse(4, HEAD))
    assert not harness.stored
    harness.hear("n4", m.SnapshotResponse(6, HEAD))
    assert doing(harness) is Activity.COMMITTING
    harness.hear("n1", m.CommitReconfigurationResponse(4, change, True))
    assert not harness.stored
    harness.hear("n1", m.CommitReconfigurationResponse(6, change, True))
    assert harness.metadata.members == (*THREE, "n4")


def test_a_leader_hands_over_before_it_is_swapped_out() -> None:
    harness = watching()
    harness.hear("n1", status(Role.LEADER, 3, led=True, lag={"n2": 5, "n3": 0}))
    harness.step(Swap("n1", "n4", "s"))
    assert harness.to("n1") == [m.HandOverRequest(3, "n3")]


def test_a_transfer_ends_while_the_store_is_away() -> None:
    harness = watching()
    harness.step(Transfer("n3", "t"))
    effects = harness.operator.step(Receive("n1", m.HandOverResponse(3, "n3")))
    assert [type(each) for each in effects] == [Store]
    effects = []
    ticks = 0
    while not any(isinstance(each, Report) for each in effects):
        effects = harness.operator.step(Tick())
        assert effects[0] == Load()
        ticks += 1
        assert ticks < 1000
    (report,) = (each for each in effects if isinstance(each, Report))
    assert report.tag == "t" and not report.done and "metadata store" in report.text
    assert Send("n1", m.HandOverRequest(3, None)) in effects
    # The election that was to be written may come through yet, and is followed to its end.
    harness.tick()
    assert doing(harness) is Activity.FENCING
    for member in THREE:
        harness.hear(member, m.FenceResponse(4, HEAD))
    harness.hear("n3", m.BecomeLeaderResponse(4))
    assert harness.reports == [] and harness.metadata.leader == "n3"
    harness.step(Transfer("n3", "again"))
    assert harness.reports == [Report("again", True, "the leader is n3")]


def test_every_order_ends_while_the_store_is_away() -> None:
    harness = watching()
    effects = harness.operator.step(Elect("e"))
    assert [type(each) for each in effects] == [Store]
    reports: list[Report] = []
    for _ in range(100):
        reports += [each for each in harness.operator.step(Tick()) if isinstance(each, Report)]
    assert [each.tag for each in reports] == ["e"]


# The store decides.


def test_nothing_is_done_before_the_store_has_it() -> None:
    operator = Operator("o1", PATIENCE)
    operator.step(Loaded(steady()))
    effects = operator.step(Elect())
    assert [type(effect) for effect in effects] == [Store]
    assert operator.step(Receive("n1", m.FenceResponse(4, HEAD))) == []


def test_a_write_that_was_lost_is_repeated() -> None:
    operator = Operator("o1", PATIENCE)
    operator.step(Loaded(steady()))
    stored = operator.step(Elect())
    assert operator.step(Tick()) == [Load()]
    assert operator.step(Loaded(steady())) == stored


def test_the_same_intention_of_another_operator_is_not_mine() -> None:
    """Two that start from one version want the same epoch; only the writer fences it."""
    operator = Operator("o1", PATIENCE)
    operator.step(Loaded(steady()))
    effects = operator.step(Elect("e"))
    assert isinstance(effects[0], Store)
    theirs = msgspec.structs.replace(effects[0].metadata, writer="o2")
    answer = operator.step(Loaded(theirs))
    assert [type(effect) for effect in answer] == [Report]
    assert operator.activity is Activity.WAITING


def test_an_older_version_changes_nothing() -> None:
    harness = watching()
    harness.step(Elect())
    before = harness.metadata
    harness.step(Loaded(steady()))
    assert harness.operator.metadata == before and harness.sent == []


def test_anothers_work_gets_time_and_then_an_election_ends_it() -> None:
    harness = Harness(steady(status=Status.ELECTION, leader=None))
    harness.tick(PATIENCE)
    assert harness.metadata.epoch == 3
    harness.tick(3)
    assert harness.metadata.epoch == 4 and harness.metadata.writer == "o1"


def test_a_node_that_knows_a_higher_epoch_sends_the_operator_to_the_store() -> None:
    operator = Operator("o1", PATIENCE)
    operator.step(Loaded(steady()))
    assert operator.step(Receive("n2", status(Role.FENCED, 9))) == [Load()]
