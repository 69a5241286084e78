"""What threads share in tests/hostile/shared_objects.py, and the books that they keep."""

import functools
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

import hawser

UNREADABLE = 7  # every so many values cannot be decoded
UNREADABLE_WORDS = "cannot be decoded"
MOST_SHARED = 6

PUBLISHERS = {"sharer"}  # and on a cluster nobody, for what a transaction has published

making = threading.local()  # whether this thread makes a value, and does not decode one
names = Counter[str]()  # methods that were called, as "Class.method"
Use = Callable[[Any, random.Random], None]  # of a scene, or of one with more in it
USES: list[Use] = []


class Value(msgspec.Struct):
    """Made of a number. Some cannot be decoded."""

    n: int

    def __post_init__(self) -> None:
        if getattr(making, "now", False):
            return
        time.sleep(0)  # another thread has its turn in the middle of a take
        if self.n % UNREADABLE == 0:
            raise ValueError(UNREADABLE_WORDS)


class Wrong(Exception):
    """A promise that was not kept."""


def value_of(n: int) -> Value:
    making.now = True
    try:
        return Value(n)
    finally:
        making.now = False


def encoded(n: int) -> bytes:
    return msgspec.msgpack.encode(value_of(n))


def key_of(n: int) -> bytes:
    return b"%d" % n


def uses(*called: str, weight: int = 1) -> Callable[[Use], Use]:
    """A use of the methods in `called`, each of the class named last; threads draw it by `weight`."""
    shared, methods = "", []
    for name in called:
        shared = name.split(".")[0] if "." in name else shared
        methods.append(name if "." in name else f"{shared}.{name}")

    def register(use: Use) -> Use:
        @functools.wraps(use)
        def counted(scene: "Scene", chance: random.Random) -> None:
            names.update(methods)
            use(scene, chance)

        USES.extend([counted] * weight)
        covered.update(methods)
        return use

    return register


covered: set[str] = set()


class Book:
    """What became of the numbers of one subscription, or of the queue. Threads may append to a list."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.errors: list[str] = []

    def note(self, error: hawser.Corrupt) -> None:
        """A message that cannot be decoded is used up by the error; any other damage is a finding."""
        if UNREADABLE_WORDS not in str(error):
            raise error
        self.errors.append(str(error))

    def check_once(self, what: str, published: Iterable[int], missed: int = 0) -> None:
        """That every number was taken once, or could not be decoded, or was missed."""
        numbers, times = set(published), Counter(self.taken)
        twice = {n: times[n] for n in times if times[n] > 1}
        if twice or not set(times) <= numbers:
            raise Wrong(f"{what}: taken more than once {twice}, never published {set(times) - numbers}")
        lost = len(numbers) - len(times) - len(self.errors)
        if lost != missed:
            left = sorted(numbers - set(times))
            raise Wrong(f"{what}: {lost} lost and {missed} missed; {len(self.errors)} errors; of {left[:20]}")


class Scene:
    """What the threads share. `patience` is how long a publish or put may wait."""

    def __init__(self, bus: hawser.Bus, patience: tuple[float, ...] = (0, 0.001)) -> None:
        self.bus = bus
        self.patience = patience
        self.numbers = itertools.count(1)
        self.published: list[int] = []
        self.put: list[int] = []
        self.held: list[hawser.Sample] = []
        self.loans: list[tuple[int, Any]] = []
        self.messages: list[hawser.Message] = []
        sizes: dict[str, Any] = {"slot_size": 64, "history": 64, "depth": 64, "max_held": 16, "max_loans": 4}
        self.topic = self.bus.topic("shared", schema=Value, **sizes)
        self.publisher = self.topic.publisher()
        self.books = {"reliable": Book(), "lossy": Book(), "group": Book()}
        self.subscriptions: dict[str, hawser.Subscription[Value]] = {
            "reliable": self.topic.subscribe(reliable=True, history=0),
            "lossy": self.topic.subscribe(),
            "group": self.topic.subscribe(group="group"),
        }
        self.iterating = threading.Lock()  # a subscription is iterated in one thread at a time
        self.queue = self.bus.queue("jobs", slot_size=64, capacity=64, max_held=16, max_deliveries=5)
        self.accepted = Book()
        self.consumer = self.queue.consume(prefetch=3)
        self.stop = threading.Event()  # for those who take
        self.dry = threading.Event()  # for those who publish, later
        self.findings: list[str] = []

    def share(self, pool: list[Any], thing: Any) -> None:
        """Let the others have it, too; a pool that is full drops one."""
        pool.append(thing)
        if len(pool) > MOST_SHARED:
            pool.pop(0)

    def any_of(self, pool: list[Any], chance: random.Random) -> Any:
        """One of a pool, which others may have at the same time."""
        try:
            return pool[chance.randrange(len(pool))]
        except (IndexError, ValueError):
            raise StopIteration from None

    def taken_from(self, pool: list[Any]) -> Any:
        """One that nobody else takes from the pool."""
        try:
            return pool.pop()
        except IndexError:
            raise StopIteration from None


def check_sample(sample: hawser.Sample) -> int:
    """That its parts belong together; its number. An error if somebody lets go of it meanwhile."""
    key = sample.key
    data = bytes(sample)
    if key is None or data != encoded(int(key)):
        raise Wrong(f"sample {sample.offset} with key {key!r} is {data!r}")
    if sample.publisher not in PUBLISHERS or sample.partition or len(sample) != len(data):
        raise Wrong(f"sample {sample.offset} of {sample.partition} is from {sample.publisher!r}")
    if sample.headers.keys() - {"hawser-dead-letter"}:
        raise Wrong(f"sample {sample.offset} is from {sample.publisher!r}, headers {sample.headers}")
    if sample.timestamp_ns <= 0 or sample.lost_before < 0 or not sample:
        raise Wrong(f"sample {sample.offset} at {sample.timestamp_ns} lost {sample.lost_before}")
    return int(key)
