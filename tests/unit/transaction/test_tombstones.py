"""What became of transactions is remembered: of lanes for certain, of others as long as there is room."""

from random import Random

import msgspec
import pytest

from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.part import BadState
from hawser.log.state.results import Expired, Finished, Outcome, Reason, Rejected, Staged
from hawser.transaction.commands import BranchForget, CoordinatorForget, to_fields
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.identity import ONCE, TransactionId, Xid
from hawser.transaction.participant import maintenance as k
from hawser.transaction.participant.branches import Branches
from hawser.transaction.register import Register
from tests.stateful.transaction_shard import Site, lane

ONE, TWO = lane(), lane(name=b"other")


def outside(number: int) -> TransactionId:
    return TransactionId(Xid(7, b"%d" % number, b""), 1)


def test_tombstones_are_bounded_and_lanes_stay() -> None:
    register: Register[str] = Register(most_tombstones=3)
    register.bury(lane(1), Outcome.COMMITTED)
    for number in range(1, 10):
        register.bury(outside(number), Outcome.ROLLED_BACK)
    kept = [transaction for transaction, _ in register.tombstones]
    assert kept == [lane(1), outside(7), outside(8), outside(9)]
    assert register.outcome(lane(1)) is Outcome.COMMITTED


def test_what_a_lane_has_committed_is_known_whoever_comes_behind_it() -> None:
    """Branches of applications are many; an answer that was lost is asked for again behind all of them."""
    site = Site()
    register = site.branches.register
    register._most = 10
    site.stage(ONE)
    assert site.commit(ONE, 1) == Finished(Outcome.COMMITTED)
    end = site.topic.end
    for number in range(20):
        site.abort(outside(number))
    assert site.abort(ONE) == Finished(Outcome.COMMITTED)
    assert site.stage(ONE, number=1) == Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert site.commit(ONE, 1) == Finished(Outcome.COMMITTED)
    assert site.topic.end == end


def test_where_there_are_too_many_lanes_no_other_begins_and_none_is_forgotten() -> None:
    site = Site()
    register = site.branches.register
    most = register._most_lanes = 4
    lanes = [lane(name=b"%d" % number) for number in range(3 * most)]
    for each in lanes[:most]:
        site.stage(each)
        assert site.commit(each, 1) == Finished(Outcome.COMMITTED)
    assert site.stage(lanes[most]) == Rejected(Reason.TOO_MANY_TRANSACTIONS, most)
    # A lane that is known goes on, and whoever asks for a rollback is answered as long as that is kept.
    again = TransactionId(lanes[0].xid, 2)
    assert site.stage(again) == Staged(1) and site.commit(again, 1) == Finished(Outcome.COMMITTED)
    for each in lanes[most : 2 * most]:
        assert site.abort(each) == Finished(Outcome.ROLLED_BACK)
    assert site.abort(lanes[-1]) == Rejected(Reason.TRANSACTION_OVER)
    assert site.abort(lanes[-1], decided=True) == Rejected(Reason.TRANSACTION_OVER)
    assert all(site.abort(each) == Finished(Outcome.COMMITTED) for each in lanes[1:most])
    old = BranchForget(tuple(to_fields(each) for each in lanes[1 : most + 2]))
    assert site.put(Kind.BRANCH_FORGET, encode_command(old)) == Expired(most + 1)
    assert site.stage(lanes[-1], number=1) == Staged(1)
    site.restart_equal()


def test_an_entry_forgets_what_was_not_used_since() -> None:
    site = Site()
    for transaction in (lane(1), TWO, lane(2)):
        site.stage(transaction)
        site.commit(transaction, 1)
    command = BranchForget((to_fields(lane(1)), to_fields(TWO)))
    assert site.put(Kind.BRANCH_FORGET, encode_command(command)) == Expired(1)
    assert [transaction for transaction, _ in site.branches.register.tombstones] == [lane(2)]


MARK = encode_command(BranchForget(()))
MARK_AT_HOME = encode_command(CoordinatorForget(()))


@pytest.mark.parametrize("seed", range(4))
def test_tombstones_are_forgotten_also_if_no_leader_lasts_for_long_and_none_too_early(seed: int) -> None:
    """Leaders change every few minutes, and each begins with a clock of its own."""
    random = Random(seed)
    site = Site()
    written: dict[TransactionId, int] = {}
    now, number, end = 0, 0, 8 * 3600
    while now < end:
        site.restart_equal()
        clock = random.random() * 1e6 - now
        branch_maintenance, coordinator = (
            k.BranchMaintenance(site.branches),
            c.Coordinator(site.decisions, "home"),
        )
        actions: list[k.Action | c.Effect] = [*coordinator.step(c.Began(now + clock))]
        for _ in range(random.choice([1, 20, 75, 150])):
            now += 20
            if now < end - 2 * KEEP_SECONDS and random.random() < 0.2:
                number += 1
                for transaction in (lane(name=b"%d" % number), outside(number)):
                    site.abort(transaction)
                    written[transaction] = now
            actions += branch_maintenance.tick(now + clock, lambda owner: False)
            actions += coordinator.step(c.Tick(now + clock))
            for each in actions:
                assert isinstance(each, k.Propose | c.Propose)
                site.put(each.kind, each.payload)
            actions.clear()
            kept = {transaction for transaction, _ in site.branches.register.tombstones}
            gone = [each for each in written if each not in kept]
            assert all(now - written.pop(each) >= KEEP_SECONDS for each in gone)
    assert number > 100 and not written


def test_applications_that_write_once_are_forgotten_under_many_leaders() -> None:
    site = Site()
    site.decide_batch(0, query=ONCE)
    marks = 0
    while site.decisions.applications:
        coordinator = c.Coordinator(site.decisions, "home")
        for seconds in (0.0, 301.0):
            for effect in coordinator.step(c.Tick(seconds)):
                assert isinstance(effect, c.Propose)
                marks += effect.payload == MARK_AT_HOME
                site.put(effect.kind, effect.payload)
        site.restart_equal()
    assert marks * 300 >= KEEP_SECONDS
    assert not site.decisions.is_remembering


def test_a_state_is_loaded_with_all_its_ages_or_not_at_all() -> None:
    site = Site()
    site.abort(ONE)
    site.decide_batch(0, query=ONCE)
    for part in (site.branches, site.decisions):
        saved = msgspec.msgpack.decode(part.digest())
        loaded = type(part)()
        loaded.load(part.digest())
        assert loaded.digest() == part.digest()
        with pytest.raises(BadState):
            type(part)().load(msgspec.msgpack.encode(saved[:-1]))
    coordinator = Decisions()
    coordinator.load(site.decisions.digest())
    assert list(coordinator.old(0)) and not list(coordinator.old(1))


@pytest.mark.parametrize("once", [{}, {b"another": 0}, {b"app": 1}])
def test_ages_of_applications_that_cannot_be_are_a_bad_state(once: dict[bytes, int]) -> None:
    site = Site()
    site.decide_batch(0, query=ONCE)
    saved = msgspec.msgpack.decode(site.decisions.digest())
    assert saved[-2] == {b"app": 0}
    saved[-2] = once
    with pytest.raises(BadState, match="ages"):
        Decisions().load(msgspec.msgpack.encode(saved))


@pytest.mark.parametrize("ages", [[(0, 2)], [(3, 1)]])
def test_ages_that_cannot_be_are_a_bad_state(ages: list[tuple[int, int]]) -> None:
    site = Site()
    site.abort(ONE)
    assert site.put(Kind.BRANCH_FORGET, MARK) == Expired(0)
    saved = msgspec.msgpack.decode(site.branches.digest())
    saved[-1] = ages
    with pytest.raises(BadState, match="ages"):
        Branches().load(msgspec.msgpack.encode(saved))
