"""The queue of a simulated cluster: what its consumers are promised when the leader changes under them."""

import pytest

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.queue.claims import NO_TOKEN, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import Delivery, Get, RefusalReason, Settlement, SettlementRefusal
from hawser.log.replica import Replica
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES
from hawser.log.state.results import Accepted, Repeated, Settled
from hawser.record.record import Stamp
from hawser.testing import Cluster, Violation
from hawser.testing.clients import Deliveries, Errand, Failure, Outcome, Reply, Request
from hawser.testing.node import SimNode
from hawser.testing.swarm import Swarm
from hawser.testing.workload import batch_command


class Person:
    """Somebody who asks the node that he is told to, once, and waits."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.puts = self.settled = self.requests = 0
        self.received = NO_TOKEN
        self.replies: list[Outcome] = []
        cluster.network.attach(name, self._receive)

    def _receive(self, sender: str, to: str, payload: object) -> None:
        assert isinstance(payload, Reply)
        self.replies.append(payload.outcome)

    def send(self, node: str, errand: Errand | None = None, command: Command | None = None) -> None:
        self.replies.clear()
        tag = (self.name, self.cluster.next_tag(), 0)
        commands = (Command(command.kind, command.payload, tag),) if command is not None else ()
        self.cluster.network.send(self.name, node, Request(tag, commands, errand=errand))

    def wait(self) -> Outcome:
        self.cluster.run_until(lambda: bool(self.replies), what=f"an answer for {self.name}")
        return self.replies[0]

    def put(self, node: str, *values: bytes) -> Outcome:
        self.puts += 1
        stamp = Stamp(self.name.encode(), 1, self.puts)
        self.send(node, command=batch_command(stamp, values, Kind.QUEUE_PUT))
        return self.wait()

    def ask(self, node: str, most: int = 9, subqueue: int = MESSAGES) -> None:
        self.requests += 1
        self.send(node, Errand(subqueue, Get(self.name, self.requests, self.received, most)))

    def get(self, node: str, most: int = 9, subqueue: int = MESSAGES) -> tuple[Delivery, ...]:
        self.ask(node, most, subqueue)
        outcome = self.wait()
        assert isinstance(outcome, Deliveries), outcome
        if outcome.deliveries:
            self.received = outcome.deliveries[-1].token
        return outcome.deliveries

    def accept(self, node: str, *deliveries: Delivery, again: bool = False) -> Outcome:
        """Accept these; `again` if the last request is repeated."""
        tokens = tuple(delivery.token for delivery in deliveries)
        return self.settle(node, Settlement(self.name, 1, self.settled + (not again), tokens))

    def reject(self, node: str, *deliveries: Delivery) -> Outcome:
        tokens = tuple(delivery.token for delivery in deliveries)
        return self.settle(node, Settlement(self.name, 1, self.settled + 1, rejected=tokens))

    def settle(self, node: str, wanted: Settlement) -> Outcome:
        self.send(node, Errand(MESSAGES, wanted))
        outcome = self.wait()
        self.settled += isinstance(outcome, Settled)
        return outcome


def leader_of(cluster: Cluster, other_than: str | None = None) -> str:
    """The leader, once it has applied what came before it."""

    def leads() -> bool:
        name = cluster.leader
        replica = cluster.nodes[name].replica if name is not None and name != other_than else None
        return replica is not None and replica.node.leadership is not None and replica.node.leadership.ready

    cluster.run_until(leads, what="a leader")
    assert cluster.leader is not None
    return cluster.leader


def running(cluster: Cluster) -> list[Replica]:
    return [node.replica for node in cluster.nodes.values() if node.replica is not None]


def move_on(cluster: Cluster, leader: str) -> str:
    """The leader crashes; the one after it."""
    cluster.crash(leader)
    return leader_of(cluster, other_than=leader)


def part_from_the_others(cluster: Cluster, node: str) -> str:
    """Nobody but its clients reaches the node any more; the leader after it."""
    cluster.network.isolate([node], [*cluster.nodes, *cluster.operators])
    return leader_of(cluster, other_than=node)


def values(deliveries: tuple[Delivery, ...]) -> list[bytes]:
    return [delivery.record.value for delivery in deliveries]


def test_what_was_accepted_elsewhere_is_not_lent_by_a_leader_that_was_deposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert delivered_by_the_deposed() == []

    def run_errand(self: SimNode, request: Request, errand: Errand) -> None:
        """It does not ask whether it still leads."""
        if isinstance(errand.wanted, Get) and self.replica is not None:
            outcome = self._dispatchers.get(self.replica, errand)
            self.cluster.network.send(self.name, request.tag[0], Reply(request.tag, outcome))
        else:
            careful(self, request, errand)

    careful = SimNode._run_errand
    monkeypatch.setattr(SimNode, "_run_errand", run_errand)
    assert delivered_by_the_deposed() == [b"a", b"b"]


def delivered_by_the_deposed() -> list[bytes]:
    cluster = Cluster(seed=1)
    first = leader_of(cluster)
    one, other = Person(cluster, "one"), Person(cluster, "other")
    assert one.put(first, b"a", b"b") == Accepted(1, 2)
    second = part_from_the_others(cluster, first)
    assert one.accept(second, *one.get(second)) == Settled(2, 0, 0, 0)
    assert cluster.nodes[first].is_leading
    other.ask(first)
    cluster.run_for(5_000)
    got = other.replies[:1]
    return values(got[0].deliveries) if got and isinstance(got[0], Deliveries) else []


def test_of_two_who_hold_a_message_one_accepts_it() -> None:
    cluster = Cluster(seed=2)
    first = leader_of(cluster)
    one, other = Person(cluster, "one"), Person(cluster, "other")
    one.put(first, b"a")
    held = one.get(first)
    assert [(each.delivery_count, each.redelivered) for each in held] == [(1, False)]
    second = part_from_the_others(cluster, first)
    again = other.get(second)
    assert [(each.delivery_count, each.redelivered) for each in again] == [(1, True)]
    assert one.accept(second, *held) == SettlementRefusal(RefusalReason.NOT_HELD, (held[0].token,))
    assert other.accept(second, *again) == Settled(1, 0, 0, 0)
    cluster.heal()
    cluster.run_until(lambda: not cluster.unsettled())
    assert cluster.truth.queue.is_empty
    cluster.compare()


def test_an_accept_whose_answer_was_lost_is_told_by_the_next_leader_what_it_did() -> None:
    cluster = Cluster(seed=3)
    first = leader_of(cluster)
    one = Person(cluster, "one")
    one.put(first, b"a", b"b")
    held = one.get(first)
    assert one.accept(first, *held) == Settled(2, 0, 0, 0)
    second = move_on(cluster, first)
    cluster.run_until(lambda: one.accept(second, *held, again=True) == Repeated(1, 2))


def test_whoever_does_not_lead_lends_nothing() -> None:
    cluster = Cluster(seed=4)
    first = leader_of(cluster)
    one = Person(cluster, "one")
    one.put(first, b"a")
    for node in cluster.nodes:
        if node != first:
            one.ask(node)
            assert isinstance(one.wait(), Failure)
            assert isinstance(one.accept(node, *one.get(first)), Failure)


def test_poison_comes_to_the_dead_letters_through_changes_of_leader() -> None:
    swarm = Swarm(policy=DeliveryPolicy(session_duration=8_000, max_deliveries=3))
    cluster = Cluster(seed=5, swarm=swarm)
    leader = leader_of(cluster)
    Person(cluster, "producer").put(leader, b"poison")
    for number in range(1, 4):
        # Each dies of it.
        victim = Person(cluster, f"victim{number}")
        (delivery,) = victim.get(leader)
        assert delivery.delivery_count == number
        cluster.run_for(30_000)
        last, leader = leader, move_on(cluster, leader)
        cluster.restart(last)
        cluster.run_until(lambda: not cluster.unsettled())
    undertaker = Person(cluster, "undertaker")
    assert undertaker.get(leader) == ()
    assert values(undertaker.get(leader, subqueue=DEAD_LETTERS)) == [b"poison"]


def test_letters_of_a_leader_that_was_deposed_do_not_come_twice_to_the_other_queue() -> None:
    swarm = Swarm(policy=DeliveryPolicy(session_duration=400_000), forwards=True)
    cluster = Cluster(seed=8, swarm=swarm)
    elsewhere = cluster.elsewhere
    assert elsewhere is not None
    other = elsewhere.values
    first = leader_of(cluster)
    one = Person(cluster, "one")
    one.put(first, b"a", b"b")
    cluster.network.cut_link(first, "elsewhere")
    one.reject(first, *one.get(first, most=1))
    cluster.run_until(lambda: all(each.node.applied == 3 for each in running(cluster)))
    second = part_from_the_others(cluster, first)
    cluster.run_until(lambda: other == [b"a"])
    one.reject(second, *one.get(second, most=1))
    cluster.run_until(lambda: other == [b"a", b"b"])
    assert cluster.nodes[first].is_leading
    cluster.network.heal()
    cluster.network.isolate([first], [*cluster.nodes, *cluster.operators])
    cluster.run_until(lambda: elsewhere.fenced > 0)
    cluster.heal()
    cluster.run_until(lambda: not cluster.unsettled() and cluster.truth.queue.is_empty)
    cluster.compare()
    assert other == [b"a", b"b"]


def test_a_forged_token_takes_nothing_from_who_holds_the_message() -> None:
    cluster = Cluster(seed=6)
    leader = leader_of(cluster)
    one, liar = Person(cluster, "one"), Person(cluster, "liar")
    one.put(leader, b"a")
    held = one.get(leader)
    forged = [held[0], *(_with_token(held[0], Token(epoch, 1)) for epoch in (0, 1, 2))]
    for delivery in forged:
        outcome = liar.accept(leader, delivery)
        why = (
            RefusalReason.NOT_HELD
            if delivery.token.epoch <= held[0].token.epoch
            else RefusalReason.OTHER_LEADER
        )
        assert isinstance(outcome, SettlementRefusal) and outcome.why is why
    assert one.accept(leader, *held) == Settled(1, 0, 0, 0)


def _with_token(delivery: Delivery, token: Token) -> Delivery:
    return Delivery(token, delivery.offset, delivery.record, 1, False)


def test_the_truth_knows_a_lie_when_it_is_told_one() -> None:
    """What clients hold the cluster to can fail."""
    cluster = Cluster(seed=7)
    leader = leader_of(cluster)
    one = Person(cluster, "one")
    one.put(leader, b"a")
    (held,) = one.get(leader)
    truth = cluster.truth.queue
    wanted = Settlement("one", 1, 1, (held.token,))
    now = cluster.clock.now
    with pytest.raises(Violation, match="said to be done"):
        truth.settled(MESSAGES, wanted, {held.token: 1}, now)
    truth.give(MESSAGES, held, now - 2, now - 1)
    with pytest.raises(Violation, match="not called redelivered"):
        truth.give(MESSAGES, held, now, now)
    one.accept(leader, held)
    truth.settled(MESSAGES, wanted, {held.token: 1}, now)
    with pytest.raises(Violation, match="asked after it was done"):
        truth.give(MESSAGES, held, now + 1, now + 2)
    with pytest.raises(Violation, match="said not to be done"):
        truth.turned(wanted)
    with pytest.raises(Violation, match="accepted by"):
        truth.settled(MESSAGES, Settlement("one", 1, 1, (Token(9, 9),)), {Token(9, 9): 1}, now)
    with pytest.raises(Violation, match="acknowledged as"):
        truth.acknowledge(Stamp(b"one", 1, 1), Accepted(2, 1))
    with pytest.raises(Violation, match="never put"):
        truth.give(
            MESSAGES, _with_token(held, held.token).__class__(held.token, 5, held.record, 1, True), 0, 0
        )
