"""Histories of processes that read and replace the same keys of a store, some of them killed on the way."""

import random
from collections.abc import Callable
from pathlib import Path

from hawser.cluster.stores import Store, StoreUnavailable, Value, open_store
from tests.contract.store_attacks import Careless
from tests.history.events import Operation, Outcome, Recorder, operations, read_events
from tests.history.linearizability import Verdict, judge
from tests.support.children import Channel, Child

KEYS = ("a", "b")


class Forgetful(Careless):
    """Planted: reads that come from a memory, as those of a replica that is behind would."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._memory: dict[str, Value | None] = {}
        self._reads = 0

    def get(self, key: str) -> Value | None:
        self._reads += 1
        if self._reads % 4 == 0:
            self._memory[key] = super().get(key)
        return self._memory.get(key)


def use(url: str, path: Path, name: str, count: int, client: Callable[[Store], Store | Careless]) -> None:
    """Do `count` operations on the keys, and write them down. Every value is written once only, so a version
    and a value stand for each other."""
    generator = random.Random(name)
    recorder = Recorder(path / name, name)
    store = client(open_store(url, 2))
    for number in range(count):
        key = generator.choice(KEYS)
        reading = recorder.invoke("get", key)
        try:
            current = store.get(key)
        except StoreUnavailable:
            recorder.end(reading, "fail")
            continue
        old = None if current is None else current.data.decode()
        recorder.end(reading, "ok", value=old)
        new = f"{name}/{number}"
        writing = recorder.invoke("swap", key, expected=old, value=new)
        try:
            result = store.put(key, new.encode(), None if current is None else current.version)
        except StoreUnavailable as error:
            recorder.end(writing, "info" if error.outcome == "unknown" else "fail")
            continue
        recorder.end(writing, "ok", done=isinstance(result, Value))


def record_history(
    url: str,
    path: Path,
    disturb: Callable[[], None] | None = None,
    client: Callable[[Store], Store | Careless] = lambda store: store,
    count: int = 100,
) -> list[Operation]:
    """What four processes did, and two more that were killed at it, while `disturb` went on."""

    def worker(name: str, often: int) -> Callable[[Channel], None]:
        return lambda channel: use(url, path, name, often, client)

    children = [Child(worker(f"user{number}", count)) for number in range(4)]
    victims = [Child(worker(f"victim{number}", 1_000_000)) for number in range(2)]
    try:
        if disturb is not None:
            disturb()
        for child in children[:2]:
            child.join(250)
        for child in victims:
            child.kill()
        for child in children[2:]:
            child.join(250)
    finally:
        for child in children + victims:
            child.kill()
            child.close()
    return operations(read_events(sorted(path.iterdir())))


def judged(history: list[Operation]) -> dict[str, int]:
    """Figures of a linearizable history; AssertionError for any other."""
    steps = 0
    for key, linearization in judge(history).items():
        assert linearization.verdict is Verdict.LINEARIZABLE, f"{key}: {linearization}"
        steps += linearization.steps
    unknown = sum(operation.outcome is Outcome.UNKNOWN for operation in history)
    swapped = sum(operation.result is not None and bool(operation.result.done) for operation in history)
    return {"operations": len(history), "replaced": swapped, "outcome unknown": unknown, "steps": steps}
