"""What processes do to a metadata store, and what must hold afterwards.

Each attack takes the class of its client from a table of planted bugs, so that a test can show that it would
have been noticed.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hawser.cluster.stores import Conflict, Store, StoreUnavailable, Value, open_store
from tests.support.children import Channel, Child, victim

COUNTER = "counter"
BALLAST_BYTES = 50_000
LONGEST_WRITE_NANOSECONDS = 4_000_000


class Careless:
    """Planted: a writer that takes whatever version is there for the one it has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> Value | None:
        return self._store.get(key)

    def put(self, key: str, data: bytes, expected: int | None) -> Value | Conflict:
        current = self._store.get(key)
        return self._store.put(key, data, None if current is None else current.version)


class Hasty(Careless):
    """Planted: a writer that says that it wrote, and writes with the next one."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._owed: bytes | None = None

    def put(self, key: str, data: bytes, expected: int | None) -> Value | Conflict:
        owed, self._owed = self._owed, data
        return Value(data, (expected or 0) + 1) if owed is None else super().put(key, owed, expected)


Client = Callable[[Store], Store | Careless]


def honest(store: Store) -> Store:
    return store


def race_of_increments(url: str, writers: int, increments: int, client: Client = honest) -> dict[str, int]:
    """`writers` processes count one key up together. Returns figures; AssertionError for a lost update."""

    def count(channel: Channel) -> None:
        store = client(open_store(url, 60))
        channel.tell("ready")
        channel.hear()
        done = conflicts = newest = 0
        while done < increments:
            current = store.get(COUNTER)
            old = 0 if current is None else int(current.data)
            result = store.put(COUNTER, b"%d" % (old + 1), None if current is None else current.version)
            if isinstance(result, Conflict):
                conflicts += 1
                continue
            assert result.version > newest, f"version {result.version} came after {newest}"
            newest = result.version
            done += 1
        channel.tell(str(conflicts))

    with ExitStack() as children:
        running = [children.enter_context(Child(count)) for _ in range(writers)]
        for child in running:
            assert child.hear(250) == "ready"
        for child in running:
            child.tell("go")
        conflicts = sum(int(child.hear(250)) for child in running)
    store = open_store(url)
    counted = store.get(COUNTER)
    store.close()
    assert counted is not None
    lost = writers * increments - int(counted.data)
    assert lost == 0, f"{lost} of {writers * increments} increments were lost"
    return {"increments": writers * increments, "conflicts": conflicts, "lost": lost}


def ballast(number: int) -> bytes:
    """A value too long for one page, of which every part tells its number."""
    return (b"%08d" % number) * (BALLAST_BYTES // 8)


def kill_writers(url: str, kills: int, seed: int, client: Client = honest) -> dict[str, int]:
    """Kill -9 writers in the middle of their writes. AssertionError for a lost or torn value."""
    generator = random.Random(seed)
    unsaid = journals = 0
    journal = Path(f"{url.removeprefix('sqlite:')}-journal")

    def write(channel: Channel) -> None:
        mine = client(open_store(url))
        current = mine.get(COUNTER)
        number = 0 if current is None else int(current.data[:8])
        while True:
            number += 1
            result = mine.put(COUNTER, ballast(number), None if current is None else current.version)
            assert isinstance(result, Value), "nobody else writes"
            current = result
            channel.tell(str(number))

    for _ in range(kills):
        with victim(write) as child:
            said = [int(child.hear()) for _ in range(generator.randint(1, 6))]
            # Let it get anywhere in its next writes. Reads would not do: they wait for its locks.
            until = time.monotonic_ns() + generator.randrange(LONGEST_WRITE_NANOSECONDS)
            while time.monotonic_ns() < until:
                pass
            child.kill()
            said += [int(line) for line in last_words(child)]
        journals += journal.exists() and any(journal.read_bytes()[:8])
        # No connection is carried over a fork.
        store = open_store(url)
        value = store.get(COUNTER)
        store.close()
        assert value is not None
        number = int(value.data[:8])
        assert number in (said[-1], said[-1] + 1), f"said {said[-1]}, kept {number}"
        assert value.data == ballast(number), f"the value {number} is torn"
        unsaid += number - said[-1]
    return {"kills": kills, "written and not said": unsaid, "journals left": journals, "lost": 0}


def last_words(child: Child) -> list[str]:
    """What a dead child had said and nobody heard yet."""
    lines = []
    while True:
        try:
            lines.append(child.hear())
        except AssertionError:
            return lines


def unavailable(call: Callable[[], object]) -> StoreUnavailable:
    """The error that `call` must end with."""
    try:
        result = call()
    except StoreUnavailable as error:
        return error
    raise AssertionError(f"it answered: {result!r}")
