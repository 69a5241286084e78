"""What is published on a shard that is not asked: it goes with the commit, and home delivers it, once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hawser.errors import TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.part import BadState
from hawser.log.state.results import Finished, Outcome, Prepared, Reason, Rejected, Result
from hawser.record.record import Stamp
from hawser.transaction.client import Request
from hawser.transaction.commands import MOST_DELIVERED_BYTES, BranchCommit, BranchForget, to_fields
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.coordinator import ledger
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.identity import Label, TransactionId
from hawser.transaction.participant import maintenance as k
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.observers import Observers
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import Site, lane
from tests.stateful.transaction_sites import Client
from tests.support.transactions import batch_of

COMMITTED = Finished(Outcome.COMMITTED)


def staged(client: Client, *names: str) -> list[Request]:
    """One operation is staged on the first; a batch for each of the others was not sent yet."""
    client.deliver(client.publish(names[0]))
    return [client.publish(name) for name in names[1:]]


def ends(client: Client, *names: str) -> list[int]:
    """How many records each topic has."""
    return [client.end(name) - 1 for name in names]


# What is not asked.


def test_small_batches_for_topics_go_with_the_commit_in_one_entry() -> None:
    client = Client("p", "q", "r")
    unsent = staged(client, "p", "q", "r")
    (commit,) = client.transaction.commit(unsent)
    assert (commit.shard, commit.kind, commit.commits) == ("p", Kind.BRANCH_COMMIT, True)
    batches = {each.shard: each.payload for each in unsent}
    assert commit.payload == encode_command(BranchCommit(((0, 1),), (), batches))
    assert client.transaction.coordinator == "p" and client.transaction.again("p") == [commit]
    client.deliver(commit)
    assert client.transaction.outcome is Outcome.COMMITTED
    assert ends(client, "p", "q", "r") == [1, 0, 0] and client.branches("p", "q", "r") == [0, 0, 0]
    assert client.spread() == ["q", "r"]
    assert ends(client, "p", "q", "r") == [1, 1, 1] and client.sites["p"].decisions.is_unused


def test_if_nobody_has_to_be_asked_one_of_them_decides() -> None:
    client = Client("p", "q", "r")
    requests = client.transaction.commit([client.publish(name) for name in ("p", "q", "r")])
    assert [(each.shard, each.kind) for each in requests] == [
        ("p", Kind.BATCH),
        ("p", Kind.BRANCH_COMMIT),
    ]
    client.deliver_all(requests)
    assert client.transaction.outcome is Outcome.COMMITTED and client.spread() == ["q", "r"]
    assert ends(client, "p", "q", "r") == [1, 1, 1]


def test_those_that_have_to_be_asked_are_and_the_others_hear_behind_them() -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish("p"), client.publish("q"), client.publish("q")])
    (vote,) = client.transaction.commit([client.publish("r")])
    assert (vote.shard, vote.kind) == ("q", Kind.BRANCH_PREPARE)
    (commit,) = client.deliver(vote)
    assert commit.payload == encode_command(BranchCommit(((0, 1),), ("q",), {"r": batch(1)}))
    client.deliver(commit)
    assert client.spread() == ["q", "r"] and ends(client, "p", "q", "r") == [1, 2, 1]


def test_a_vote_against_it_delivers_nothing() -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish("p"), client.publish("q"), client.publish("q")])
    (vote,) = client.transaction.commit([client.publish("r")])
    client.sites["q"].abort(lane(), Outcome.TIMED_OUT)
    client.deliver_all(client.deliver(vote))
    assert client.transaction.outcome is Outcome.TIMED_OUT
    assert client.spread() == ["q"] and ends(client, "p", "q", "r") == [0, 0, 0]


@pytest.mark.parametrize(
    "why", ["sent", "two", "several messages", "a queue", "large", "together large", "nobody leads it"]
)
def test_whatever_may_be_refused_or_is_much_is_asked_for(why: str) -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish("p")])
    unsent = []
    if why == "sent":
        client.deliver(client.publish("q"))
    elif why == "two":
        unsent = [client.publish("q"), client.accept_nothing("q")]
    elif why == "several messages":
        unsent = [client.transaction.operation("q", Kind.BATCH, batch_of(b"1", b"2"))]
    elif why == "a queue":
        unsent = [client.transaction.operation("q", Kind.QUEUE_PUT, batch(1))]
    elif why == "large":
        unsent = [client.transaction.operation("q", Kind.BATCH, batch_of(bytes(MOST_DELIVERED_BYTES)))]
    elif why == "together large":
        half = batch_of(bytes(MOST_DELIVERED_BYTES // 2))
        unsent = [client.transaction.operation(name, Kind.BATCH, half) for name in ("r", "q")]
    else:
        unsent = [client.publish("q")]
    led = {"p", "r"} if why == "nobody leads it" else {"p", "q", "r"}
    client.transaction.commit(unsent, lambda shard: shard if shard in led else None)
    decided = {client.transaction.coordinator} | client.transaction._voting
    assert decided == {"p", "q"}


def test_what_is_refused_where_it_is_decided_is_rolled_back() -> None:
    client = Client("p", "q")
    lock = client.accept_nothing("p")
    requests = client.transaction.commit([lock, client.publish("q")])
    assert [each.kind for each in requests] == [Kind.QUEUE_SETTLE, Kind.BRANCH_COMMIT]
    client.deliver_all(requests)
    error = client.transaction.error()
    assert isinstance(error, TransactionAborted) and "p says: the delivery" in str(error)
    assert client.spread() == [] and ends(client, "q") == [0]


@pytest.mark.parametrize("bound", ["MOST_UNDELIVERED", "MOST_UNDELIVERED_BYTES"])
def test_too_much_that_is_not_delivered_is_refused_and_rolled_back(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client("p", "q", "r")
    site = client.sites["p"]
    for number in range(3):
        other = lane(name=b"other %d" % number)
        site.stage(other)
        shard = "q" if number else "r"
        command = BranchCommit(((0, 1),), (), {shard: batch(1)})
        assert site.end(other, Kind.BRANCH_COMMIT, command) == COMMITTED
    unsent = staged(client, "p", "q")
    monkeypatch.setattr(ledger, bound, 2 if bound == "MOST_UNDELIVERED" else 3 * len(batch(1)) - 1)
    # Another shard has room.
    other = lane(name=b"another")
    site.stage(other)
    assert site.end(other, Kind.BRANCH_COMMIT, BranchCommit(((0, 1),), (), {"r": batch(1)})) == COMMITTED
    client.deliver_all(client.transaction.commit(unsent))
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert "takes no more transactional work" in str(client.transaction.error())
    assert client.spread() == ["r", "q", "q", "r"] and ends(client, "p", "q", "r") == [4, 2, 2]


@pytest.mark.parametrize("others", [(), ("q",)])
@pytest.mark.parametrize("deliveries", [{}, {"r": batch(1)}])
def test_whoever_commits_an_earlier_one_than_others_were_told_of_is_refused(
    others: tuple[str, ...], deliveries: dict[str, bytes]
) -> None:
    """Only a client that does not wait for its own answers does that; a replica bears it."""
    site = Site()
    site.stage(lane(4))
    site.abort(lane(5), others=("q",))
    result = site.end(lane(4), Kind.BRANCH_COMMIT, BranchCommit(((0, 1),), others, deliveries))
    assert result == (Rejected(Reason.OLD_INCARNATION, 5, 4) if others or deliveries else COMMITTED)
    assert site.topic.end == 1 + (not others and not deliveries)
    site.restart_equal()


def test_one_that_is_begun_again_while_home_still_has_it_is_refused() -> None:
    site = Site()
    commit = BranchCommit(((0, 1),), (), {"r": batch(1)})
    site.stage(lane())
    assert site.end(lane(), Kind.BRANCH_COMMIT, commit) == COMMITTED
    forget = BranchForget((to_fields(lane()),))
    site.put(Kind.BRANCH_FORGET, encode_command(forget))
    site.stage(lane(), number=1)
    assert site.end(lane(), Kind.BRANCH_COMMIT, commit) == Rejected(Reason.OLD_INCARNATION, 1, 1)
    assert site.topic.end == 2


@pytest.mark.parametrize("wrong", [b"no batch", b"", batch(1, Stamp(b"producer", 1, 1))])
def test_what_a_topic_would_refuse_is_not_committed(wrong: bytes) -> None:
    site = Site()
    site.stage(lane())
    commit = BranchCommit(((0, 1),), (), {"q": batch(1), "r": wrong})
    assert site.end(lane(), Kind.BRANCH_COMMIT, commit) == Rejected(Reason.BAD_PAYLOAD)
    assert site.topic.end == 1 and len(site.branches.register) == 1 and site.decisions.is_unused


# Nobody answers.


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_commit_that_comes_again_delivers_nothing_twice(told: bool, asked: bool) -> None:
    client = Client("p", "q")
    (commit,) = client.transaction.commit(staged(client, "p", "q"))
    client.deliver(commit, answered=False)
    if told:
        assert client.spread() == ["q"]
    client.sites["p"].restart_equal()
    for request in client.transaction.resolve() if asked else client.transaction.again("p"):
        client.deliver(request)
    client.deliver(commit)
    assert client.transaction.outcome is Outcome.COMMITTED
    client.spread()
    assert ends(client, "p", "q") == [1, 1] and client.sites["p"].decisions.is_unused


def test_that_it_is_over_is_not_believed_of_an_operation() -> None:
    """Whoever is told that it is committed is to find it where it was delivered."""
    client = Client("p", "q")
    first, commit = client.transaction.commit([client.publish("p"), client.publish("q")])
    client.deliver(first, answered=False)
    client.deliver(commit, answered=False)
    (asked,) = client.deliver(first)
    assert asked.kind == Kind.BRANCH_ABORT and client.transaction.outcome is None
    client.deliver(asked)
    assert client.transaction.outcome is Outcome.COMMITTED


# Delivering.


class Homes:
    """Two that decide, and a shard that they deliver to."""

    def __init__(self) -> None:
        self.sites = {"p": Site(), "other": Site()}
        self.target = Site()
        self.count = 0

    def commit(self, coordinator: str = "p") -> TransactionId:
        self.count += 1
        transaction = lane(name=b"lane %d" % self.count)
        site = self.sites[coordinator]
        site.stage(transaction)
        command = BranchCommit(((0, 1),), (), {"q": batch(1)})
        assert site.end(transaction, Kind.BRANCH_COMMIT, command) == COMMITTED
        return transaction

    def tells(self, coordinator: str = "p") -> list[c.Tell]:
        effects = c.Coordinator(self.sites[coordinator].decisions, coordinator).step(c.Began(0.0))
        return [each for each in effects if isinstance(each, c.Tell)]

    def deliver(self, tell: c.Tell) -> Result:
        return self.target.put(tell.kind, tell.payload, transaction=tell.label)

    @property
    def delivered(self) -> int:
        return self.target.topic.end - 1


def test_what_is_delivered_again_changes_nothing() -> None:
    homes = Homes()
    homes.commit()
    homes.commit("other")
    ours, theirs = *homes.tells(), *homes.tells("other")
    for _ in range(2):
        assert homes.deliver(ours) == homes.deliver(theirs) == COMMITTED
        homes.target.restart_equal()
    assert homes.delivered == 2
    label = Label.read(ours.label)
    assert label is not None and homes.target.branches.judge(label) == COMMITTED


def test_those_of_one_home_are_there_in_their_order() -> None:
    homes = Homes()
    for _ in range(3):
        homes.commit()
    first, second, third = homes.tells()
    for early in (second, third):
        assert homes.deliver(early) == Rejected(Reason.GAP, 0, _before(early))
    assert homes.delivered == 0
    assert [homes.deliver(each) for each in (first, second, first, third)] == [COMMITTED] * 4
    assert homes.delivered == 3


def _before(tell: c.Tell) -> int:
    label = Label.read(tell.label)
    assert label is not None and label.before
    return label.before


def test_what_home_knows_to_be_there_nobody_waits_for() -> None:
    homes = Homes()
    first = homes.commit()
    homes.deliver(*homes.tells())
    site = homes.sites["p"]
    site.tell(first, "q")
    homes.commit()
    (second,) = homes.tells()
    label = Label.read(second.label)
    assert label is not None and label.before == 0 and homes.deliver(second) == COMMITTED


@pytest.mark.parametrize("told", [(0,), (1,), (0, 2), (1, 2), (2, 1, 0)])
def test_a_copy_of_home_that_was_loaded_numbers_as_the_others_do(told: Sequence[int]) -> None:
    """Whichever of them home has heard of."""
    live, loaded = Homes(), Homes()
    for homes in (live, loaded):
        committed = [homes.commit() for _ in range(3)]
        for each in told:
            homes.sites["p"].tell(committed[each], "q")
        if homes is loaded:
            homes.sites["p"].restart_equal()
        homes.commit()
    assert live.sites["p"].machine.digest() == loaded.sites["p"].machine.digest()


def test_what_is_too_early_is_told_again_as_soon_as_the_one_before_it_is_there() -> None:
    homes = Homes()
    transactions = [homes.commit() for _ in range(3)]
    coordinator = c.Coordinator(homes.sites["p"].decisions, "p")
    first, *early = [each for each in coordinator.step(c.Began(0.0)) if isinstance(each, c.Tell)]
    for tag, transaction in enumerate(transactions):
        assert not coordinator.step(c.Await(0.0, tag, transaction, known=COMMITTED))
    for tell in early:
        assert coordinator.step(c.Heard(0.0, "q", tell.transaction, tell.kind, homes.deliver(tell))) == []
    heard = c.Heard(0.1, "q", first.transaction, first.kind, homes.deliver(first))
    effects = coordinator.step(heard)
    assert [each for each in effects if isinstance(each, c.Tell)] == early
    for tell in early:
        effects += coordinator.step(c.Heard(0.1, "q", tell.transaction, tell.kind, homes.deliver(tell)))
    assert [each.tag for each in effects if isinstance(each, c.Reply)] == [0, 1, 2] and homes.delivered == 3


def test_what_is_behind_one_that_is_lost_is_told_again_and_whoever_waits_hears_that_it_is_committed() -> None:
    homes = Homes()
    first, second = homes.commit(), homes.commit()
    coordinator = c.Coordinator(homes.sites["p"].decisions, "p")
    tells = [each for each in coordinator.step(c.Began(0.0)) if isinstance(each, c.Tell)]
    assert [each.transaction for each in tells] == [first, second]
    assert not coordinator.step(c.Await(0.0, "tag", second, known=COMMITTED))
    assert not coordinator.step(c.Heard(0.0, "q", second, Kind.BATCH, homes.deliver(tells[1])))
    assert coordinator.step(c.Lost(0.5, "q", first)) == [c.Reply("tag", COMMITTED)]
    # While nobody answers only the first one is sent, to see.
    assert [each for each in coordinator.step(c.Tick(1.0)) if isinstance(each, c.Tell)] == tells[:1]
    effects = coordinator.step(c.Heard(1.0, "q", first, Kind.BATCH, homes.deliver(tells[0])))
    assert [each for each in effects if isinstance(each, c.Tell)] == tells[1:]
    coordinator.step(c.Heard(1.0, "q", second, Kind.BATCH, homes.deliver(tells[1])))
    (report,) = coordinator.step(c.Tick(1.5))
    assert isinstance(report, c.Propose)
    homes.sites["p"].put(report.kind, report.payload)
    assert homes.delivered == 2 and homes.sites["p"].decisions.is_unused


def test_who_commits_for_a_shard_that_is_away_does_not_wait_for_the_next_try() -> None:
    homes = Homes()
    first = homes.commit()
    coordinator = c.Coordinator(homes.sites["p"].decisions, "p")
    coordinator.step(c.Began(0.0))
    coordinator.step(c.Lost(3.0, "q", first))
    coordinator.step(c.Tick(4.0))
    second = homes.commit()
    assert coordinator.step(c.Await(4.1, "tag", second, known=COMMITTED)) == [c.Reply("tag", COMMITTED)]


def test_what_waits_for_one_shard_keeps_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that something is rolled back, nor that something begins; also of what was loaded."""
    monkeypatch.setattr(ledger, "ENOUGH_TRANSACTIONS", 3)
    site = Site()
    for number in range(3):
        transaction = lane(name=b"lane %d" % number)
        site.stage(transaction)
        site.end(transaction, Kind.BRANCH_COMMIT, BranchCommit(((0, 1),), (), {"away": batch(1)}))
    copy = Site()
    copy.decisions.load(site.decisions.save()[0])
    for each in (site, copy):
        each.ledger.most = 3
        assert each.ledger.why_full() is None
        each.ledger.announce(lane(name=b"voted against"), Outcome.NO_ROOM, ("queue",))
        effects = c.Coordinator(each.decisions, "p").step(c.Began(0.0))
        assert {tell.shard for tell in effects if isinstance(tell, c.Tell)} == {"away", "queue"}
    told = {transaction: record.waiting for transaction, record in site.ledger.register}
    site.ledger.tell(told)
    assert not len(site.ledger.register) and not site.ledger._count


def test_so_many_are_on_their_way_at_a_time() -> None:
    """And while nobody answers one."""
    homes = Homes()
    count = 2 * c.MOST_UNDER_WAY + 5
    transactions = [homes.commit() for _ in range(count)]
    coordinator = c.Coordinator(homes.sites["p"].decisions, "p")

    def step(event: c.Event) -> list[c.Tell]:
        return [each for each in coordinator.step(event) if isinstance(each, c.Tell)]

    under_way = step(c.Began(0.0))
    assert [each.transaction for each in under_way] == transactions[: c.MOST_UNDER_WAY]
    assert step(c.Tick(5.0)) == []
    for tell in under_way:
        assert step(c.Lost(6.0, "q", tell.transaction)) == []
    assert step(c.Tick(6.1)) == under_way[:1] and step(c.Tick(6.9)) == []
    assert step(c.Lost(7.0, "q", transactions[0])) == []
    under_way = step(c.Tick(7.2))
    assert [each.transaction for each in under_way] == transactions[:1]
    while under_way:
        tell = under_way.pop(0)
        under_way += step(c.Heard(9.0, "q", tell.transaction, tell.kind, homes.deliver(tell)))
        assert len(under_way) <= c.MOST_UNDER_WAY
    assert homes.delivered == count


def test_a_shard_that_is_gone_has_heard() -> None:
    homes = Homes()
    transaction = homes.commit()
    coordinator = c.Coordinator(homes.sites["p"].decisions, "p")
    coordinator.step(c.Began(0.0))
    coordinator.step(c.Heard(0.0, "q", transaction, Kind.BATCH, Rejected(Reason.TRANSACTION_OVER)))
    (report,) = coordinator.step(c.Tick(0.5))
    assert isinstance(report, c.Propose)
    homes.sites["p"].put(report.kind, report.payload)
    assert homes.sites["p"].decisions.is_unused


def test_nothing_but_a_batch_is_delivered() -> None:
    homes = Homes()
    homes.commit()
    (tell,) = homes.tells()
    for kind, payload in (
        (Kind.QUEUE_PUT, batch(1)),
        (Kind.BATCH, b"no batch"),
        (Kind.GROUP_COMMIT, b"\x90"),
    ):
        result = homes.target.put(kind, payload, transaction=tell.label)
        assert result == Rejected(Reason.BAD_PAYLOAD)
    assert homes.deliver(tell) == COMMITTED and homes.delivered == 1


def test_a_delivery_meets_no_branch() -> None:
    """Whatever was staged there under the same id, and whatever became of it."""
    homes = Homes()
    transaction = homes.commit()
    homes.target.stage(transaction)
    homes.target.prepare(transaction, 1)
    (tell,) = homes.tells()
    assert homes.deliver(tell) == COMMITTED and homes.delivered == 1
    assert homes.target.prepare(transaction, 1) == Prepared(1)


def test_observers_are_told_of_the_transaction() -> None:
    seen: list[Any] = []

    class Observer:
        def __init__(self, transaction: TransactionId, shard: str) -> None:
            seen.append((transaction, shard))

        def publish(self, target: str, records: int, index: int) -> None:
            seen.append(("publish", target, records))

        def accept(self, *told: Any) -> None: ...
        def commit_offsets(self, *told: Any) -> None: ...
        def prepare(self) -> None: ...

        def commit(self) -> None:
            seen.append("commit")

        def rollback(self, outcome: Outcome) -> None: ...

    homes = Homes()
    transaction = homes.commit()
    homes.target.branches.observers = Observers(
        "orders@1/0", lambda for_queue: "orders", [Observer], lambda transaction, error: None
    )
    (tell,) = homes.tells()
    for _ in range(2):
        homes.deliver(tell)
    assert seen == [(transaction, "orders@1/0"), ("publish", "orders", 1), "commit"]


@pytest.mark.parametrize("leader_seconds", [600, 100_000])
def test_what_a_deleted_home_has_delivered_is_forgotten_after_a_while(leader_seconds: int) -> None:
    """Also if no leader lasts for long: the log knows when the first one saw that the home was deleted."""
    homes = Homes()
    homes.commit()
    homes.commit("other")
    homes.deliver(*homes.tells())
    homes.deliver(*homes.tells("other"))
    site, now = homes.target, 0.0
    while "other" in site.branches.delivered and now < 4 * KEEP_SECONDS:
        branch_maintenance, until = k.BranchMaintenance(site.branches), now + leader_seconds
        while now < until and "other" in site.branches.delivered:
            for each in branch_maintenance.tick(now, lambda owner: False, lambda shard: shard == "other"):
                assert isinstance(each, k.Propose)
                site.put(each.kind, each.payload)
            now += 60.0
        site.restart_equal()
    assert KEEP_SECONDS <= now <= 3 * KEEP_SECONDS
    assert list(site.branches.delivered) == ["p"] and not site.branches.deleted


@pytest.mark.parametrize("deleted", [{"unknown": 0}, {"other": 1}])
def test_deleted_homes_that_cannot_be_are_a_bad_state(deleted: dict[str, int]) -> None:
    homes = Homes()
    homes.commit("other")
    homes.deliver(*homes.tells("other"))
    branches = homes.target.branches
    note = encode_command(BranchForget((), (), ("other", "unknown")))
    homes.target.put(Kind.BRANCH_FORGET, note)
    saved = msgspec.msgpack.decode(branches.digest())
    assert saved[4] == {"other": 0}
    saved[4] = deleted
    with pytest.raises(BadState, match="deleted"):
        Branches().load(msgspec.msgpack.encode(saved))
