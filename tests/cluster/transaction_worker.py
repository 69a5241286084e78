"""A client process that moves tokens in transactions, and notes everything.

    python -m tests.cluster.transaction_worker ROLE URL NAME FILE

The roles are plain, replay, aio, xa, copy, recopy, aiocopy and read. It goes on until its standard input
ends, or dies by its own hand in the middle of a transaction. `tests.cluster.transaction_verdict`
says what the notes mean. A note is written before a commit is asked for and after it was answered; a
transaction that is to be rolled back is noted as such beforehand.

An `xa` worker is a coordinator with a log of its own, `FILE.log`: under its old name it goes on where it was
killed, and completes what it left.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import hawser
from hawser import aio
from hawser.xa import XAError
from tests.cluster.transaction_coordinator import Decisions, complete, xid_of
from tests.cluster.transaction_copier import copy, copy_in_a_loop, copy_with_replay
from tests.cluster.transaction_scene import ECHO, OPTIONS, QUEUES, TRAIL, Notes, Orders, ring_queue
from tests.cluster.transaction_verdict import COLOCATED, token_of

__all__ = ["main", "replay"]

_MOST_TOKENS: Final = 3
# Of those who may die, and of transactions: one in so many.
_DEATHS: Final = 150
_ROLLBACKS: Final = 8
# Between taking, working and ending. Some are longer than a client keeps operations back.
_PAUSES_SECONDS: Final = (*[0.0] * 12, 0.04, 0.04, 0.4)


class Plan(NamedTuple):
    """What a transaction does: what it takes, what it makes of that, and for which queue; and how it ends."""

    id: str
    moves: list[tuple[str, str, int]]
    echo: bool
    fate: str
    first_pause_seconds: float
    last_pause_seconds: float


class Planner:
    """Makes the transactions of one worker, and notes them. Their ids begin with its name."""

    def __init__(self, name: str, notes: Notes, first: int = 0) -> None:
        self.random = Random(f"{name}/{first}")
        self.notes = notes
        self._name = name
        self._number = first

    def source(self) -> int:
        return self.random.randrange(QUEUES)

    def most(self) -> int:
        return self.random.randint(1, _MOST_TOKENS)

    def new_id(self) -> str:
        self._number += 1
        return f"{self._name}.{self._number}"

    def plan(self, messages: Iterable[Any], source: int, kind: str, identity: str = "") -> Plan:
        """Of the messages that were taken; to be carried out, and ended as its fate says."""
        texts = [bytes(each).decode() for each in messages]
        identity = identity or self.new_id()
        moves = []
        for text in texts:
            token, hop, _ = token_of(text)
            stays = source == COLOCATED and self.random.random() < 0.4
            moves.append((text, f"{token}:{hop + 1}:{identity}", source if stays else (source + 1) % QUEUES))
        echo = self.random.random() < 0.5
        fate = "rollback" if self.random.randrange(_ROLLBACKS) == 0 else "commit"
        self.notes.write("got", values=texts)
        self.notes.write("begin", id=identity, moves=moves, echo=echo, kind=kind)
        if fate == "rollback":
            self.ended(identity, "aborted")
        pauses = [self.random.choice(_PAUSES_SECONDS) for _ in range(2)]
        return Plan(identity, moves, echo, fate, pauses[0], pauses[1])

    def ended(self, identity: str, state: str, why: str = "") -> None:
        self.notes.write("end", id=identity, state=state, why=why)

    def failed(self, plan: Plan, error: hawser.HawserError) -> None:
        state = "aborted" if error.outcome == "none" or plan.fate == "rollback" else "unknown"
        self.ended(plan.id, state, f"{type(error).__name__}: {error}"[:300])

    def perhaps_die(self) -> None:
        """Now, or in the middle of what comes next."""
        if self.random.randrange(_DEATHS) == 0:
            seconds = self.random.choice((0, self.random.uniform(0, 0.02)))
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


class Ring:
    """The queues and topics, as one bus has them."""

    def __init__(self, bus: Any) -> None:
        self.queues = [bus.queue(ring_queue(each), create=False) for each in range(QUEUES)]
        self.trail = bus.topic(TRAIL, create=False)
        self.echo = bus.topic(ECHO, create=False)

    def publications(self, plan: Plan) -> Iterator[tuple[Any, bytes, bytes]]:
        """Where to publish what, with which key."""
        for _, line, destination in plan.moves:
            data, key = line.encode(), token_of(line)[0].encode()
            for target in (self.queues[destination], self.trail, *([self.echo] if plan.echo else [])):
                yield target, data, key

    def carry_out(self, transaction: Any, messages: Any, plan: Plan) -> None:
        """Everything but the end."""
        time.sleep(plan.first_pause_seconds)
        for target, data, key in self.publications(plan):
            transaction.publish(target, data, key=key)
        transaction.accept(messages)
        time.sleep(plan.last_pause_seconds)

    async def carry_out_in_a_loop(self, transaction: Any, messages: Any, plan: Plan) -> None:
        await asyncio.sleep(plan.first_pause_seconds)
        await transaction.accept(messages)
        for target, data, key in self.publications(plan):
            await transaction.publish(target, data, key=key)
        await asyncio.sleep(plan.last_pause_seconds)


class Undone(Exception):
    """Raised in a transaction to have it rolled back."""


def plain(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """One transaction after the other, in `with` blocks, in two threads of one bus."""
    with hawser.connect(url, name=name, **OPTIONS) as bus, ThreadPoolExecutor(2) as threads:
        ring = Ring(bus)
        planners = [Planner(f"{name}-{number}", notes) for number in range(2)]
        for each in [threads.submit(_move, bus, ring, planner, goes_on) for planner in planners]:
            each.result()


def _move(bus: hawser.Bus, ring: Ring, planner: Planner, goes_on: Orders) -> None:
    while goes_on:
        goes_on.rest()
        plan = None
        try:
            with bus.transaction(timeout=20) as transaction:
                source = planner.source()
                messages = transaction.get_many(ring.queues[source], planner.most(), timeout=0.1)
                if messages:
                    plan = planner.plan(messages, source, "plain")
                    planner.perhaps_die()
                    ring.carry_out(transaction, messages, plan)
                    planner.perhaps_die()
                    if plan.fate == "rollback":
                        raise Undone
        except Undone:
            continue
        except hawser.HawserError as error:
            if plan is not None:
                planner.failed(plan, error)
        else:
            if plan is not None:
                planner.ended(plan.id, "committed")


def replay(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """`run_transaction`: of several attempts none but the last may have happened."""
    planner = Planner(name, notes)
    plans: list[Plan] = []

    def attempt(transaction: Any) -> Plan | None:
        for earlier in plans:
            planner.ended(earlier.id, "aborted")
        plans.clear()
        source = planner.source()
        messages = transaction.get_many(ring.queues[source], planner.most(), timeout=0.1)
        if not messages:
            return None
        plan = planner.plan(messages, source, "replay")
        plans.append(plan)
        ring.carry_out(transaction, messages, plan)
        if plan.fate == "rollback":
            raise Undone
        return plan

    with hawser.connect(url, name=name, **OPTIONS) as bus:
        ring = Ring(bus)
        while goes_on:
            goes_on.rest()
            plans.clear()
            try:
                plan = bus.run_transaction(attempt, retries=3)
            except Undone:
                continue
            except hawser.HawserError as error:
                for each in plans:
                    planner.failed(each, error)
            else:
                assert plan == (plans[0] if plans else None)
                if plan is not None:
                    planner.ended(plan.id, "committed")


def in_a_loop(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """Several transactions at a time, in one event loop."""
    asyncio.run(_in_a_loop(url, name, notes, goes_on))


async def _in_a_loop(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    async with aio.connect(url, name=name, **OPTIONS) as bus, asyncio.TaskGroup() as tasks:
        ring = Ring(bus)
        for number in range(3):
            planner = Planner(f"{name}-{number}", notes)
            tasks.create_task(_move_in_a_loop(bus, ring, planner, goes_on))


async def _move_in_a_loop(bus: aio.AsyncBus, ring: Ring, planner: Planner, goes_on: Orders) -> None:
    """Some are cancelled, wherever they are."""
    while goes_on:
        await goes_on.rest_in_a_loop()
        plans: list[Plan] = []
        is_patient = planner.random.random() < 0.9
        try:
            async with asyncio.timeout(None if is_patient else planner.random.uniform(0, 0.2)):
                await _move_one(bus, ring, planner, plans)
        except Undone:
            continue
        except TimeoutError:
            for plan in plans:
                planner.ended(plan.id, "aborted" if plan.fate == "rollback" else "unknown", "cancelled")
        except hawser.HawserError as error:
            for plan in plans:
                planner.failed(plan, error)
        else:
            for plan in plans:
                planner.ended(plan.id, "committed")


async def _move_one(bus: aio.AsyncBus, ring: Ring, planner: Planner, plans: list[Plan]) -> None:
    """What it is about to do is in `plans` before it does it."""
    async with bus.transaction(timeout=20) as transaction:
        source = planner.source()
        messages = await transaction.get_many(ring.queues[source], planner.most(), timeout=0.1)
        if messages:
            plans.append(planner.plan(messages, source, "aio"))
            await ring.carry_out_in_a_loop(transaction, messages, plans[0])
            if plans[0].fate == "rollback":
                raise Undone


def coordinate(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """Transactions in one and in two phases, as the coordinator of them. After an error it begins anew, with
    another session."""
    while goes_on:
        decisions = Decisions(Path(f"{sys.argv[4]}.log"))
        planner = Planner(name, notes, len(decisions.begun))
        with suppress(hawser.HawserError), hawser.connect(url, name=name, **OPTIONS) as bus:
            complete(bus, decisions, notes)
            ring = Ring(bus)
            while goes_on:
                goes_on.rest()
                _coordinate_one(bus, ring, planner, decisions)
        decisions.close()


def _coordinate_one(bus: hawser.Bus, ring: Ring, planner: Planner, decisions: Decisions) -> None:
    identity = planner.new_id()
    two_phases = planner.random.random() < 0.8
    decisions.write("begin" if two_phases else "alone", identity)
    try:
        _work_and_end(bus, ring, planner, decisions, identity, two_phases)
    except XAError as error:
        if not error.code.startswith("rb-"):
            raise
        planner.ended(identity, "aborted", str(error)[:300])
        bus.xa.rollback(xid_of(identity))
    decisions.write("over", identity)


def _work_and_end(
    bus: hawser.Bus, ring: Ring, planner: Planner, decisions: Decisions, identity: str, two_phases: bool
) -> None:
    xid, source = xid_of(identity), planner.source()
    branch = bus.xa.start(xid)
    messages = branch.get_many(ring.queues[source], planner.most(), timeout=0.1)
    if not messages:
        bus.xa.end(xid)
        assert bus.xa.prepare(xid) == "readonly"
        return
    plan = planner.plan(messages, source, f"xa in {1 + two_phases}", identity)
    ring.carry_out(branch, messages, plan)
    planner.perhaps_die()
    bus.xa.end(xid)
    if plan.fate == "rollback":
        bus.xa.rollback(xid)
    elif two_phases:
        _in_two_phases(bus, planner, decisions, plan)
    else:
        try:
            bus.xa.commit(xid, one_phase=True)
        except hawser.HawserError as error:
            planner.failed(plan, error)
            raise
        planner.ended(identity, "committed")


def _in_two_phases(bus: hawser.Bus, planner: Planner, decisions: Decisions, plan: Plan) -> None:
    assert bus.xa.prepare(xid_of(plan.id)) == "ok"
    planner.perhaps_die()
    decisions.write("commit", plan.id)
    planner.perhaps_die()
    bus.xa.commit(xid_of(plan.id))
    planner.ended(plan.id, "committed")


def read(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """Follow the trail."""
    with hawser.connect(url, name=name, **OPTIONS) as bus:
        subscription = bus.topic(TRAIL, create=False).subscribe(start="earliest")
        while goes_on:
            samples = subscription.take_many(1000, timeout=0.2)
            if samples:
                notes.write("read", records=[(each.offset, bytes(each).decode()) for each in samples])


_ROLES: Final[dict[str, Callable[[str, str, Notes, Orders], None]]] = {
    "plain": plain,
    "replay": replay,
    "aio": in_a_loop,
    "xa": coordinate,
    "copy": copy,
    "recopy": copy_with_replay,
    "aiocopy": copy_in_a_loop,
    "read": read,
}


def main() -> None:
    role, url, name, file = sys.argv[1:]
    _ROLES[role](url, name, Notes(file), Orders(file))


if __name__ == "__main__":
    main()
