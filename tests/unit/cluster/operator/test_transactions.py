"""What an operator does for transactions: their homes, queues that live with topics, and deletions."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.node import maintenance
from hawser.cluster.node.maintenance import Maintenance
from hawser.cluster.node.retention import Retention
from hawser.cluster.node.transaction import peer_client
from hawser.cluster.node.transaction.peer_client import PeerClient
from hawser.cluster.operator.catalog import (
    claim_shard,
    create_topic,
    is_orphaned_queue,
    list_topics,
    mark_deleted,
)
from hawser.cluster.operator.creation import coordinators_of, create
from hawser.cluster.operator.deletion import TransactionGate
from hawser.cluster.operator.validation import check_creation
from hawser.cluster.shard_map import ShardMap, owned_shards
from hawser.cluster.stores import open_store
from hawser.cluster.stores.store import Store
from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Receive
from hawser.log.replica import Replica, Settings
from hawser.log.state.commands import TrimTo, encode_command
from hawser.log.state.producers import Producers
from hawser.log.state.results import Finished, Outcome, Prepared, Reason, Rejected, Staged, decode_result
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import recorder_id
from hawser.testing import LocalBus
from hawser.testing.disk import SimDisk
from hawser.transaction.commands import BranchLimit
from hawser.transaction.identity import TransactionId
from hawser.transaction.participant.branches import DEFAULT_LIMIT, Branches, transactional_parts
from tests.agent.recorded import recording, until_recorded, until_state
from tests.agent.test_recording_forgotten import known_after, leading_replica, propose
from tests.support.cluster import RunningCluster
from tests.support.processes import hawser_command, until
from tests.support.transactions import Peer, lane

COMMITTED = Finished(Outcome.COMMITTED)
DAY_SECONDS = 86_400.0


def unused(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def peer(cluster: RunningCluster) -> Iterator[Peer]:
    peer = Peer(cluster, "client")
    yield peer
    peer.leave()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:{tmp_path / 'metadata.sqlite'}")
    yield store
    store.close()


def delete(cluster: RunningCluster, name: str) -> Any:
    return cluster.delete(name)


# Homes.


def test_homes_are_the_operators_to_make_and_nobodys_to_delete(cluster: RunningCluster, peer: Peer) -> None:
    peer.create(wire.HOMES, "homes")
    peer.create(wire.HOMES, "homes")
    (entry,) = cluster.ask(wire.GetMap(wire.HOMES)).topics.values()
    assert (entry.kind, entry.partitions, entry.settings) == ("homes", 4, {"replication": 3})
    bus = cluster.connect()
    assert not [name for name in bus.topics() + bus.queues() if name.startswith("__")]
    refused = delete(cluster, wire.HOMES)
    assert refused.code is wire.Code.REJECTED and "cannot be deleted" in refused.text
    shard = peer.shard(wire.HOMES)
    batch = bytes(Batch.of([Record(b"x")]).data)
    for request in (wire.Publish(shard, batch), wire.QueuePut(shard, batch), wire.QueueLook(shard)):
        answer = peer.ask(request)
        assert isinstance(answer, wire.Failed) and answer.code is wire.Code.BAD_REQUEST, answer


def test_homes_wait_for_their_nodes(store: Store) -> None:
    homes = coordinators_of(
        wire.Admin(wire.AdminKind.CREATE, wire.HOMES, topic_kind="homes"), 4, ["a", "b", "c", "d"]
    )
    with pytest.raises(hawser.Unavailable, match="3 nodes, and 2 are alive"):
        create(store, homes, ["a", "b"])
    made = create(store, homes, ["a", "b", "d"])
    assert (made.partitions, made.settings) == (4, {"replication": 3})
    assert create(store, homes, []) == made


def test_names_of_the_clusters_own_are_refused(cluster: RunningCluster) -> None:
    bus = cluster.connect()
    for opening in (
        lambda: bus.topic("__mine"),
        lambda: bus.queue("__mine"),
        lambda: bus.topic(wire.HOMES),
        lambda: bus.queue(unused("jobs"), dead_letter="__graves"),
        lambda: bus.queue(unused("jobs"), colocate=wire.HOMES),
    ):
        with pytest.raises(hawser.UsageError, match="begins with '__'"):
            opening()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.Admin(wire.AdminKind.CREATE, "__mine"), "begins with '__'"),
        (wire.Admin(wire.AdminKind.CREATE, "__tx"), "begins with '__'"),
        (wire.Admin(wire.AdminKind.CREATE, "mine", topic_kind="homes"), "are named '__tx'"),
        (wire.Admin(wire.AdminKind.CREATE, "__tx", partitions=2, topic_kind="homes"), "partitions=2"),
        (
            wire.Admin(wire.AdminKind.CREATE, "__tx", settings={"replication": 1}, topic_kind="homes"),
            "setting",
        ),
        (
            wire.Admin(wire.AdminKind.CREATE, "q", settings={"dead_letter": "__q"}, topic_kind="queue"),
            "'__q'",
        ),
        (wire.Admin(wire.AdminKind.CREATE, "q", settings={"colocate": "q"}, topic_kind="queue"), "itself"),
        (wire.Admin(wire.AdminKind.CREATE, "q", settings={"colocate": 3}, topic_kind="queue"), "colocate=3"),
        (wire.Admin(wire.AdminKind.CREATE, "t", settings={"colocate": "u"}), "colocate"),
    ],
)
def test_an_operator_refuses_them_from_anybody(message: wire.Admin, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_creation(message)


# Queues that live with topics.


def wanted(name: str, **settings: wire.Setting) -> wire.Admin:
    return wire.Admin(wire.AdminKind.CREATE, name, settings=settings, topic_kind="queue")


def test_of_two_queues_one_gets_the_place(store: Store) -> None:
    topic = create_topic(store, "results", 1, {"replication": 1}, "topic")
    jobs = create(store, wanted("jobs", colocate="results"), ())
    assert jobs.shard == wire.shard_of("results", topic.uuid, 0)
    assert jobs.settings == {"colocate": "results", "replication": 1}
    assert list_topics(store)["results"].guest == "jobs"
    assert create(store, wanted("jobs", colocate="results"), ()) == jobs
    with pytest.raises(ValueError, match="another queue is colocated with"):
        create(store, wanted("more", colocate="results"), ())


def test_a_claim_that_nobody_followed_up_is_taken_over(store: Store) -> None:
    """Its operator died, or sleeps: what it makes when it wakes up has no home, and is deleted."""
    uuid = create_topic(store, "results", 1, {}, "topic").uuid
    shard = claim_shard(store, "results", uuid, "slow")
    assert shard is not None
    assert claim_shard(store, "results", uuid, "quick") == shard
    create_topic(store, "quick", 1, {}, "queue", shard)
    create_topic(store, "slow", 1, {}, "queue", shard)
    topics = list_topics(store)
    assert [name for name, entry in topics.items() if is_orphaned_queue(name, entry, topics)] == ["slow"]
    assert claim_shard(store, "results", uuid, "third") is None
    mark_deleted(store, "results", uuid)
    topics = list_topics(store)
    assert is_orphaned_queue("quick", topics["quick"], topics)
    assert claim_shard(store, "results", uuid, "quick") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"colocate": "nothing"}, "no topic has that name"),
        ({"colocate": "wide"}, "2 partitions"),
        ({"colocate": "other"}, "is a queue"),
        ({"colocate": "results", "replication": 2}, "leave replication out"),
    ],
)
def test_a_place_that_is_none_is_refused(store: Store, settings: dict[str, wire.Setting], words: str) -> None:
    create_topic(store, "results", 1, {"replication": 3}, "topic")
    create_topic(store, "wide", 2, {}, "topic")
    create_topic(store, "other", 1, {}, "queue")
    with pytest.raises(ValueError, match=words):
        create(store, wanted("jobs", **settings), ())
    assert list_topics(store)["results"].guest == ""


def test_the_map_knows_both_who_live_on_a_shard() -> None:
    uuid = "a" * 32
    shard = wire.shard_of("results", uuid, 0)
    topic = wire.TopicEntry(1, uuid, 1, {}, guest="jobs")
    queue = wire.TopicEntry(2, "b" * 32, 1, {}, kind="queue", shard=shard)
    told = wire.Map("c", {}, {"results": topic, "jobs": queue}, {shard: wire.ShardEntry(1, 1, "", None, ())})
    shards = ShardMap()
    shards.merge(told)
    assert {kind: name for kind, (name, _) in shards.on(shard).items()} == {
        "topic": "results",
        "queue": "jobs",
    }
    assert list(shards.extract("jobs").shards) == [shard]
    assert (wire.shards_of("jobs", queue), owned_shards("jobs", queue)) == ([shard], [])
    # The queue is gone: the topic's shard stays.
    gone = wire.TopicEntry(3, "b" * 32, 1, {}, deleted=True, kind="queue", shard=shard)
    shards.merge(wire.Map("c", {}, {"jobs": gone}, {}))
    assert list(shards.shards) == [shard] and list(shards.on(shard)) == ["topic"]


def test_a_queue_and_a_topic_on_one_shard(cluster: RunningCluster, peer: Peer) -> None:
    bus = cluster.connect()
    name, jobs = unused("results"), unused("jobs")
    topic = bus.topic(name)
    queue: hawser.Queue[Any] = bus.queue(jobs, colocate=name)
    assert peer.shard(name) == peer.shard(jobs)
    topic.publish(b"first")
    queue.put_many([b"1", b"2", b"3"])
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"first"]
    assert [part.end for part in topic.info().partitions] == [2]
    assert queue.info().head == 3 and queue.info().settings["colocate"] == name
    message = queue.get(timeout=30)
    assert message is not None and bytes(message) == b"1"
    message.accept()
    # One entry for both.
    shard, tx = peer.shard(name), lane(unused("tx"))
    entries = (peer.publish(tx, 1, b"second"), peer.put(tx, 2, b"4"), peer.commit(tx, 2))
    assert peer.transact(shard, *entries) == [Staged(1), Staged(2), COMMITTED]
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"first", b"second"]
    assert [bytes(each) for each in queue.peek(9)] == [b"2", b"3", b"4"]
    with bus.transaction() as work:
        message = work.get(queue, timeout=30)
        assert message is not None
        work.publish(topic, b"third")
        work.accept(message)
    assert [bytes(each) for each in topic.read_newest(1).samples] == [b"third"]
    assert bus.queue(jobs).info().ready == 2
    with pytest.raises(hawser.SettingsMismatch, match="colocate"):
        bus.queue(jobs, colocate=unused("other"))
    with pytest.raises(hawser.Rejected, match="another queue is colocated with"):
        bus.queue(unused("more"), colocate=name)
    with pytest.raises(hawser.Rejected, match="is deleted with it"):
        queue.delete()
    topic.delete()
    assert name not in bus.topics()
    until(lambda: jobs not in bus.queues(), "the queue to go with its topic")
    with pytest.raises(hawser.Closed):
        queue.put(b"5")
    bus.queue(jobs).put(b"of its own")
    assert peer.shard(jobs) != shard


def test_the_command_line_shows_who_lives_where(cluster: RunningCluster, peer: Peer) -> None:
    name, jobs = unused("results"), unused("jobs")
    peer.create(name)
    peer.create(wire.HOMES, "homes")
    hawser_command("queue", "put", jobs, "hello", "--colocate", name, "--url", cluster.url)
    status = msgspec.json.decode(
        hawser_command("cluster", "status", "-o", "json", "--url", cluster.url).stdout
    )
    (shard,) = [each for each in status["shards"] if name == each.get("topic")]
    assert (shard["id"], shard["queue"], shard["partition"]) == (peer.shard(jobs), jobs, 0)
    assert sorted(each["partition"] for each in status["shards"] if each.get("homes")) == [0, 1, 2, 3]
    lines = hawser_command("cluster", "status", "--url", cluster.url).stdout.splitlines()
    assert [line for line in lines if line.startswith(f"{name}/0, with queue {jobs} ")]
    assert [line for line in lines if line.startswith("__tx/3, a coordinator shard ")]
    hawser_command("cluster", "elect", f"{jobs}/0", "--url", cluster.url)
    said = hawser_command("queue", "delete", jobs, "--yes", "--url", cluster.url, code=1).stderr
    assert f"colocated with topic '{name}'" in said


def test_two_ask_for_the_same_place_at_once(cluster: RunningCluster, peer: Peer) -> None:
    name = unused("results")
    peer.create(name)
    asked = [cluster.begin(_asked(cluster, wanted(unused("jobs"), colocate=name))) for _ in range(4)]
    answers = [each.result() for each in asked]
    assert sum(isinstance(each, wire.AdminDone) and each.done for each in answers) == 1, answers
    assert sum("another queue is colocated with" in getattr(each, "text", "") for each in answers) == 3, (
        answers
    )


async def _asked(cluster: RunningCluster, request: wire.Admin) -> wire.Answer:
    operator = cluster._cluster.operator
    assert operator is not None
    answer: wire.Answer = wire.decode_answer(await operator._answered(request))
    return answer


def test_dead_letters_leave_a_queue_that_lives_with_a_topic(cluster: RunningCluster) -> None:
    bus = cluster.connect()
    name, graves = unused("results"), unused("graves")
    bus.topic(name)
    queue: hawser.Queue[Any] = bus.queue(unused("jobs"), colocate=name, dead_letter=graves)
    queue.put(b"bad")
    message = queue.get(timeout=30)
    assert message is not None
    message.reject()
    until(lambda: graves in bus.queues() and bus.queue(graves).info().ready == 1, "the dead letter")


def test_on_one_host_a_queue_lives_alone() -> None:
    with LocalBus() as local, local.connect() as bus:
        assert bus.queue("jobs", colocate="results").info().unused == {"colocate": "results"}


def test_a_topic_and_a_queue_are_recorded_onto_one_shard(cluster: RunningCluster) -> None:
    name, jobs, bus = unused("results"), unused("jobs"), cluster.connect()
    topic, queue = bus.topic(name), bus.queue(jobs, colocate=name)
    with LocalBus() as local:
        there = local.connect("producer")
        samples, messages = there.topic("t"), there.queue("q")
        # The second ones go on where the first have stopped.
        for target, source, position in ((name, "t", 1), (jobs, "q", 2), (name, "t", 3), (jobs, "q", 4)):
            with recording(local.url, source, cluster.url, target=target) as recorder:
                until_state(recorder, "recording")
                samples.publish(b"sample")
                messages.put(b"message")
                until_recorded(recorder, position)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"sample"] * 3
    assert [bytes(each) for each in queue.peek(9)] == [b"message"] * 4


def test_a_recorder_of_a_queue_is_not_judged_by_the_topics_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10 * DAY_SECONDS
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: now))
    replica, branch_maintenance, recorder = leading_replica(), Maintenance(), recorder_id("r", "region")
    propose(replica, Kind.QUEUE_PUT, bytes(Batch.of([Record(b"x")], Stamp(recorder, 1, 1)).data))
    propose(replica, Kind.BATCH, bytes(Batch.of([Record(b"x"), Record(b"y")], Stamp(b"p", 1, 1)).data))
    propose(replica, Kind.TRIM, encode_command(TrimTo(3)))
    known_after(replica, branch_maintenance)
    now += 8 * DAY_SECONDS
    assert known_after(replica, branch_maintenance) == {recorder}
    assert replica.machine.part(Producers).newest(recorder) is not None


# Deletions.


def test_a_topic_with_an_open_transaction_is_not_deleted(cluster: RunningCluster, peer: Peer) -> None:
    name, tx = unused("orders"), lane(unused("tx"))
    peer.create(name, partitions=2)
    shards = peer.shard(name, 0), peer.shard(name, 1)
    assert peer.transact(shards[1], peer.publish(tx, 1, b"x")) == [Staged(1)]
    with pytest.raises(hawser.Rejected, match="1 open, 0 prepared and 0 committed"):
        cluster.connect().topic(name).delete()
    # It goes on, and so may others.
    other = lane(unused("tx"))
    for shard in shards:
        assert peer.transact(shard, peer.publish(other, 1, b"y"), peer.commit(other, 1)) == [
            Staged(1),
            COMMITTED,
        ]
    assert peer.transact(shards[1], peer.publish(tx, 2, b"z"), peer.commit(tx, 2)) == [Staged(2), COMMITTED]
    assert delete(cluster, name).done


def test_a_prepared_transaction_keeps_its_queue(cluster: RunningCluster, peer: Peer) -> None:
    name, other, tx = unused("jobs"), unused("orders"), lane(unused("tx"))
    peer.create(name, "queue")
    peer.create(other)
    shard, coordinator = peer.shard(name), peer.shard(other)
    assert peer.transact(shard, peer.put(tx, 1, b"x"), peer.prepare(tx, 1, coordinator)) == [
        Staged(1),
        Prepared(1),
    ]
    refused = delete(cluster, name)
    assert isinstance(refused, wire.Failed) and "0 open, 1 prepared and 0 committed" in refused.text, refused
    assert peer.transact(coordinator, peer.publish(tx, 1, b"y"), peer.commit(tx, 1, shard)) == [
        Staged(1),
        COMMITTED,
    ]
    assert delete(cluster, name).done


class Held:
    """Nobody tells this shard what was decided, until that is let go."""

    def __init__(self, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_let_go = False
        self.told = 0
        real = PeerClient.tell

        def tell(peers: PeerClient, request: Any, heard: Any) -> None:
            if request.shard != shard or not isinstance(request, wire.Transact) or self.is_let_go:
                real(peers, request, heard)
                return
            self.told += 1
            heard(wire.Failed(wire.Code.UNAVAILABLE, "held back", True))

        monkeypatch.setattr(PeerClient, "tell", tell)


def decide(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> tuple[TransactionId, str, str, Held]:
    """A transaction; the topic whose shard has decided it; the shard that has not heard so."""
    name, other, tx = unused("orders"), unused("orders"), lane(unused("tx"))
    for each in (name, other):
        peer.create(each)
    coordinator, shard = peer.shard(name), peer.shard(other)
    peer.transact(shard, peer.publish(tx, 1, b"x"), peer.prepare(tx, 1, coordinator))
    held = Held(shard, monkeypatch)
    end = peer.commit(tx, 1, shard) if outcome is Outcome.COMMITTED else peer.abort(tx, shard)
    # Who cannot be reached is not waited for.
    assert peer.transact(coordinator, peer.publish(tx, 1, b"y"), end) == [Staged(1), Finished(outcome)]
    assert held.told and peer.look(coordinator, tx).records[0].waiting == (shard,)
    return tx, name, shard, held


def test_what_others_have_not_heard_keeps_the_shard_that_decided(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, name, shard, held = decide(peer, monkeypatch, Outcome.COMMITTED)
    coordinator = peer.shard(name)
    operator = cluster._cluster.operator
    assert operator is not None
    monkeypatch.setattr(operator._transaction_gate, "_seconds", 2.0)
    with pytest.raises(hawser.Rejected, match="0 open, 0 prepared and 1 committed"):
        cluster.connect().topic(name).delete()
    held.is_let_go = True
    until(lambda: not peer.look(coordinator, tx).records, "the other one has heard")
    assert peer.look(shard, tx).outcome == Outcome.COMMITTED and not peer.look(shard, tx).branches
    assert peer.values(shard) == [b"x"]
    assert delete(cluster, name).done


def test_a_rollback_that_others_have_not_heard_of_keeps_nothing(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, name, shard, _ = decide(peer, monkeypatch, Outcome.ROLLED_BACK)
    monkeypatch.setattr(peer_client, "GONE_SECONDS", 1.0)
    assert delete(cluster, name).done
    # Whose home is deleted was not committed.
    until(lambda: not peer.look(shard, tx).branches, "the other one has found out")
    assert peer.look(shard, tx).outcome == Outcome.ROLLED_BACK and peer.values(shard) == []


def test_a_deletion_waits_until_others_have_heard(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx, name, shard, held = decide(peer, monkeypatch, Outcome.COMMITTED)
    look, seen = TransactionGate._look, list[wire.TransactionsSeen]()

    async def looking(self: TransactionGate, shard: str, deadline: float) -> Any:
        seen.append(await look(self, shard, deadline))
        held.is_let_go = True
        return seen[-1]

    monkeypatch.setattr(TransactionGate, "_look", looking)
    assert delete(cluster, name).done
    assert seen[0].records and not seen[-1].records
    assert peer.look(shard, tx).outcome is not None and not peer.look(shard, tx).branches


@pytest.mark.parametrize("moment", ["before it is closed", "before the look", "after the look"])
def test_operations_that_come_while_a_deletion_looks(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Either they are seen, and nothing is deleted, or they are refused."""
    staged, answer = _race(cluster, peer, monkeypatch, moment)
    if moment == "before it is closed":
        assert staged == Staged(1) and "1 open" in answer.text
    else:
        assert isinstance(staged, Rejected) and staged.reason is Reason.TOO_MANY_TRANSACTIONS
        assert isinstance(answer, wire.AdminDone) and answer.done


def test_the_race_is_lost_without_closing(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: an operator that only looks deletes what a transaction has staged."""

    async def nothing(self: TransactionGate, shard: str, limit: BranchLimit, deadline: float) -> None:
        pass

    monkeypatch.setattr(TransactionGate, "_limit", nothing)
    staged, answer = _race(cluster, peer, monkeypatch, "after the look")
    assert staged == Staged(1) and isinstance(answer, wire.AdminDone) and answer.done


def _race(
    cluster: RunningCluster, peer: Peer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> tuple[Any, Any]:
    """What an operation gets that comes at this moment of a deletion, and what the deletion gets."""
    name, tx = unused("orders"), lane(unused("tx"))
    peer.create(name)
    shard = peer.shard(name)
    close, look = TransactionGate.close, TransactionGate._look
    results: list[Any] = []

    async def stage() -> None:
        answer = await peer.asked(wire.Transact(shard, (peer.publish(tx, 1, b"x"),)))
        results.extend(map(decode_result, answer.results))

    async def closing(self: TransactionGate, shards: Any) -> Any:
        if moment == "before it is closed":
            await stage()
        return await close(self, shards)

    async def looking(self: TransactionGate, shard: str, deadline: float) -> Any:
        if moment == "before the look":
            await stage()
        seen = await look(self, shard, deadline)
        if moment == "after the look":
            await stage()
        return seen

    monkeypatch.setattr(TransactionGate, "close", closing)
    monkeypatch.setattr(TransactionGate, "_look", looking)
    answer = delete(cluster, name)
    (staged,) = results
    return staged, answer


def test_a_leader_lets_transactions_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an operator has closed a shard, and was killed before it could delete the topic."""
    now = 1.0
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: now))
    replica, branch_maintenance = leading_replica(), Maintenance()
    propose(replica, Kind.BRANCH_LIMIT, encode_command(BranchLimit(0, 1, 1, 1)))

    def looked_after(learned: float) -> BranchLimit:
        for kind, payload in branch_maintenance.due(replica, Retention(), learned=learned):
            propose(replica, kind, payload)
        return replica.machine.part(Branches).limit

    assert looked_after(now).most_open == 0
    now += maintenance._CLOSED_SECONDS
    assert looked_after(now).most_open == 0
    now += 1
    # Perhaps it has deleted it, and nobody was there to say so.
    assert looked_after(now - 1).most_open == 0
    assert looked_after(now) == DEFAULT_LIMIT


def test_a_leader_limits_transactions_as_its_node_is_set_to() -> None:
    replica, wanted = leading_replica(), msgspec.structs.replace(DEFAULT_LIMIT, most_bytes=1 << 20)
    branch_maintenance = Maintenance(wanted)
    for _ in range(2):
        for kind, payload in branch_maintenance.due(replica, Retention()):
            propose(replica, kind, payload)
    branches = replica.machine.part(Branches)
    assert branches.limit == wanted and branch_maintenance.due(replica, Retention()) == []
    closed = msgspec.structs.replace(DEFAULT_LIMIT, most_open=0)
    propose(replica, Kind.BRANCH_LIMIT, encode_command(closed))
    assert branch_maintenance.due(replica, Retention()) == [] and branches.limit == closed, (
        "not while it is deleted"
    )


def test_a_shard_on_a_full_disk_can_be_closed() -> None:
    """Deleting topics is how one makes room."""
    disk = SimDisk()
    disk.capacity_bytes = 256 << 10
    journal = JournalSettings(segment_bytes=4096, ballast_bytes=4096)
    replica = Replica.create(disk, "s", "n1.a", 1, Settings(journal=journal, parts=transactional_parts))
    replica.step(Receive("o", m.FenceRequest(1)))
    replica.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    batch = bytes(Batch.of([Record(bytes(100))]).data)
    end = 0
    while replica.machine.part(Topic).end > end:
        end = replica.machine.part(Topic).end
        propose(replica, Kind.BATCH, batch)
    propose(replica, Kind.BRANCH_LIMIT, encode_command(BranchLimit(0, 1, 1, 1)))
    assert end > 100 and replica.machine.part(Branches).limit.most_open == 0


def test_a_shard_without_a_majority_is_deleted_when_its_nodes_are_given_up(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        assert cluster.ask(wire.Admin(wire.AdminKind.CREATE, "orders")).done
        operator = cluster._cluster.operator
        assert operator is not None
        operator._transaction_gate._seconds = 0.5
        for name in cluster.nodes[1:]:
            cluster.stop(name)
        refused = delete(cluster, "orders")
        assert isinstance(refused, wire.Failed) and refused.retryable, refused
        assert refused.code is wire.Code.UNAVAILABLE and "shard orders@" in refused.text
        for name in set(operator._nodes) - set(cluster.nodes):
            del operator._nodes[name]
        assert delete(cluster, "orders").done
