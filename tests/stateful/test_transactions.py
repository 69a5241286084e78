"""Transactions over several shards, from one seed: in any order, repeated, lost, with leaders replaced and
clients that die; every entry is held against what was meant, and in the end every token is in its place."""

from collections.abc import Callable

import pytest

from hawser.log.entry import Kind
from hawser.log.queue.claims import NO_TOKEN
from hawser.log.state.commands import GroupJoin, encode_command
from hawser.log.state.queue import Queue
from hawser.log.state.results import Outcome

from .transaction_clients import Driver, Mover, Outsider, complete, is_quiet, meddle
from .transaction_world import GROUP, MEMBER, World, batch, reached

Record_property = Callable[[str, object], None]
TOKENS = 6
STEPS = 4000


def run(seed: int, steps: int) -> World:
    """A whole life: faults, then none, then the books are closed."""
    world = World(seed)
    for number in range(TOKENS):
        shard = world.shards[world.names[number % len(world.names)]]
        shard.propose(Kind.QUEUE_PUT, batch(f"t{number}"))
    for name in world.names:
        world.shards[name].propose(Kind.GROUP_JOIN, encode_command(GroupJoin(GROUP, MEMBER)))
    actors: list[Mover | Outsider | Driver] = [Mover(world, f"mover {number}") for number in range(4)]
    actors += [Outsider(world, f"outsider {number}") for number in range(2)]
    actors.append(Driver(world, "application"))
    chance = world.chance
    for _ in range(steps):
        fate = chance.random()
        if fate < 0.25:
            chance.choice(actors).step()
        elif fate < 0.90:
            world.deliver()
        elif fate < 0.95:
            world.now += chance.choice((0.1, 0.3, 1.0))
            world.shards[chance.choice([*world.names, *world.homes])].tick()
        elif fate < 0.955:
            world.publish_plain()
        elif fate < 0.965:
            world.trim()
            world.limit()
        elif fate < 0.968:
            world.cut()
        elif fate < 0.985:
            chance.choice(list(world.shards.values())).save()
        elif fate < 0.989:
            chance.choice(list(world.shards.values())).fail_over()
        elif fate < 0.9975:
            meddle(world)
        elif fate < 0.998:
            world.restart()
        else:
            world.now += chance.choice((6.0, 6.0, 70.0))
    close(world, actors)
    return world


def close(world: World, actors: "list[Mover | Outsider | Driver]") -> None:
    world.faults = False
    world.mend()
    for turn in range(200):
        while world.deliver():
            pass
        if turn % 3 == 0:
            for actor in actors:
                actor.wind_up()
        elif turn > 100:
            complete(world)
        world.now += 6.0
        for shard in world.shards.values():
            shard.tick()
        if is_quiet(world) and all(actor.transaction is None for actor in actors):
            break
    else:
        raise AssertionError("something was never finished")
    audit(world)


def audit(world: World) -> None:
    assert world.tokens() == {f"t{number}": 1 for number in range(TOKENS)}
    for transaction, committed in world.outcomes.items():
        meant = {name for name, values in world.meant.get(transaction, {}).items() if values}
        assert world.visible.get(transaction, set()) == (meant if committed else set()), transaction
    for transaction, outcome in world.told.items():
        assert world.outcomes[transaction] == (outcome is Outcome.COMMITTED)
    for batch_number, wanted in world.batches.items():
        found = {each for each in world.visible if each.xid.branch_id.startswith(b"%d appl" % batch_number)}
        assert not found or found in wanted, "a batch is what no decision named"
    for name in world.names:
        queue = world.shards[name].part(Queue)
        assert queue.reserved_bytes == 0
        subqueue = queue.messages
        assert not any(subqueue.is_locked(offset) for offset in range(subqueue.start, subqueue.end))
        delivered = world.shards[name].claims.deliver("auditor", 1, NO_TOKEN, 99, int(world.now))
        left = [
            offset
            for offset in range(subqueue.start, subqueue.end)
            if subqueue.deliveries(offset) is not None
        ]
        assert [claim.offset for claim in delivered] == left, "a message is lent to nobody"


def test_tokens_move_in_a_ring(record_property: Record_property) -> None:
    reached.clear()
    worlds = [run(seed, STEPS) for seed in range(60)]
    record_property("entries", sum(len(shard.log) for world in worlds for shard in world.shards.values()))
    record_property("transactions", sum(len(world.outcomes) for world in worlds))
    for name, number in sorted(reached.items()):
        record_property(name, number)
    wanted = (
        "committed branch", "prepared ended", "asked home", "leader from a snapshot", "carried",
        "decided for others", "withheld for the commit", "told of a commit when its lane had gone on",
        "session with ended work died", "joined session died",
    )  # fmt: skip
    assert min(reached[name] for name in wanted) > 0


@pytest.mark.soak
@pytest.mark.slow
def test_soak(soak_seconds: float, record_property: Record_property) -> None:
    lives = max(1, int(soak_seconds * 4))
    for seed in range(1000, 1000 + lives):
        run(seed, STEPS)
    record_property("lives", lives)
    assert lives > 0
