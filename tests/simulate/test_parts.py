"""The clock, the network and the store of a simulated cluster, each by itself."""

from random import Random

from hawser.log.entry import EntryId
from hawser.log.protocol.messages import (
    FenceRequest,
    FenceResponse,
    ReadSnapshotRequest,
    ReadSnapshotResponse,
)
from hawser.log.protocol.metadata import Metadata, Status
from hawser.testing import SimClock, SimNetwork, SimStore
from hawser.testing.network import NetworkFaults
from hawser.testing.store import StoreFaults

HOSTS = ("a", "b", "c")


class Stage:
    """A network of three hosts that note what they get."""

    def __init__(self, faults: NetworkFaults | None = None, encoded_share: float = 0.0) -> None:
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, Random(1), faults, encoded_share)
        self.got: list[tuple[str, str, object]] = []
        for host in HOSTS:
            self.network.attach(host, lambda sender, to, payload: self.got.append((sender, to, payload)))

    def run(self) -> list[object]:
        while self.clock.step():
            pass
        got, self.got = self.got, []
        return [payload for _, _, payload in got]


def test_what_was_asked_first_happens_first_at_the_same_time() -> None:
    clock = SimClock()
    happened: list[str] = []
    for delay, name in ((5, "late"), (1, "first"), (1, "second")):
        clock.after(delay, happened.append, name)
    assert clock.next_time == 1
    while clock.step():
        pass
    assert happened == ["first", "second", "late"]
    assert (clock.now, clock.events, len(clock)) == (5, 3, 0)


def test_a_message_reaches_the_host_of_its_address() -> None:
    stage = Stage()
    stage.network.send("a", "b.d1", "hello")
    assert stage.run() == ["hello"]
    stage.network.send("a", "nobody", "hello")
    assert stage.run() == []


def test_a_network_that_loses_everything() -> None:
    stage = Stage(NetworkFaults(loss=1.0))
    stage.network.send("a", "b", "hello")
    assert stage.run() == []
    assert stage.network.lost == 1


def test_a_network_that_repeats_and_reorders() -> None:
    stage = Stage(NetworkFaults(duplication=1.0, delay_most=100_000))
    for number in range(20):
        stage.network.send("a", "b", number)
    got = stage.run()
    assert sorted(got, key=str) == sorted([*range(20), *range(20)], key=str)
    assert got != sorted(got, key=str)


def test_a_cut_is_one_way_and_heals() -> None:
    stage = Stage()
    stage.network.cut_link("a", "b")
    stage.network.send("a", "b.d1", "lost")
    stage.network.send("b.d1", "a", "back")
    assert stage.run() == ["back"]
    stage.network.heal()
    stage.network.send("a", "b.d1", "again")
    assert stage.run() == ["again"]


def test_a_partition_cuts_both_ways_and_not_within() -> None:
    stage = Stage()
    stage.network.isolate(["a", "b"])
    for sender, to in (("a", "b"), ("a", "c"), ("c", "b")):
        stage.network.send(sender, to, (sender, to))
    assert stage.run() == [("a", "b")]


def test_what_is_for_a_paused_host_waits() -> None:
    stage = Stage()
    stage.network.pause("b")
    stage.network.send("a", "b", 1)
    stage.network.send("a", "b", 2)
    assert stage.run() == []
    stage.network.resume("b")
    assert sorted(stage.run(), key=str) == [1, 2]


def test_what_waited_for_a_dead_host_is_gone() -> None:
    stage = Stage()
    stage.network.pause("b")
    stage.network.send("a", "b", 1)
    assert stage.run() == []
    stage.network.forget("b")
    stage.network.resume("b")
    assert stage.run() == []


def test_a_clogged_link_delivers_late() -> None:
    stage = Stage()
    stage.network.clog("a", "b", 1_000_000)
    stage.network.send("a", "b", "late")
    assert stage.run() == ["late"]
    assert stage.clock.now >= 1_000_000


def test_messages_of_the_protocol_go_through_their_bytes() -> None:
    stage = Stage(encoded_share=1.0)
    message = FenceResponse(3, EntryId(2, 7))
    stage.network.send("a", "b", message)
    (got,) = stage.run()
    assert got == message
    assert got is not message
    assert stage.network.encoded == 1


def test_what_was_sent_comes_again_much_later() -> None:
    stage = Stage()
    stage.network.remembered_most = 2
    first, rare = FenceResponse(1, EntryId(1, 1)), FenceRequest(1)
    for message in (first, rare):
        stage.network.send("a", "b", message)
    stage.run()
    stage.network.recalled_share = 1.0
    for epoch in range(2, 200):
        stage.network.send("a", "b", FenceResponse(epoch, EntryId(1, 1)))
    got = stage.run()
    assert len(got) == 2 * 198
    assert stage.network.recalled == 198
    assert got.count(rare) > 50


def test_a_snapshot_is_preceded_by_the_pieces_of_the_last_one() -> None:
    stage = Stage()
    stage.network.remembered_most = 10
    pieces = [ReadSnapshotResponse(1, 7, part, 0, b"", True, False) for part in range(3)]
    for piece in pieces:
        stage.network.send("a", "b", piece)
        stage.run()
    stage.network.recalled_share = 1e-9
    for _ in range(20):
        stage.network.send("b", "a", ReadSnapshotRequest(1, 0, 0, 0))
    got = [each for each in stage.run() if isinstance(each, ReadSnapshotResponse)]
    assert got and set(got) == set(pieces)
    assert got[0] == pieces[0]


def metadata(store: SimStore, **changes: object) -> Metadata:
    return store.metadata.next(**changes)


def a_store(faults: StoreFaults | None = None) -> tuple[SimClock, SimStore]:
    clock = SimClock()
    return clock, SimStore(clock, Random(1), Metadata.initial(("n1.d1",)), faults)


def run(clock: SimClock) -> None:
    while clock.step():
        pass


def test_of_two_writes_of_one_version_the_second_comes_too_late() -> None:
    clock, store = a_store()
    answers: list[Metadata] = []
    first = metadata(store, epoch=1, writer="a")
    second = metadata(store, epoch=1, writer="b")
    store.store("o1", first, answers.append)
    run(clock)
    store.store("o2", second, answers.append)
    run(clock)
    assert answers == [first, first]
    assert store.metadata == first
    assert (store.writes, store.conflicts) == (1, 1)


def test_whoever_is_cut_off_gets_no_answer() -> None:
    clock, store = a_store()
    answers: list[Metadata] = []
    store.cut_off.add("o1")
    store.load("o1", answers.append)
    run(clock)
    assert answers == []
    store.cut_off.clear()
    store.load("o1", answers.append)
    run(clock)
    assert answers == [store.metadata]


def test_a_lost_answer_does_not_undo_the_write() -> None:
    clock, store = a_store(StoreFaults(lost_answers=1.0))
    answers: list[Metadata] = []
    seen: list[str] = []
    store.observers.append(lambda old, new, writer: seen.append(writer))
    store.store("o1", metadata(store, status=Status.STEADY), answers.append)
    run(clock)
    assert answers == []
    assert store.metadata.status is Status.STEADY
    assert seen == ["o1"]
