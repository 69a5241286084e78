"""Every bound on what users may ask for, and the relations between them."""

from numbers import Real
from typing import Any, Final, NamedTuple

__all__ = [
    "CLOCK_BOUND_SECONDS",
    "CONSUMER_PREFIX",
    "DEAD_LETTER_SUFFIX",
    "GROUP_PREFIX",
    "DEAD_LETTERS_PREFIX",
    "MAX_COUNT",
    "MAX_DELIVERIES",
    "MAX_ENCODED_TOPIC_NAME_BYTES",
    "MAX_LEASE_SECONDS",
    "MAX_PARTICIPANT_NAME_BYTES",
    "MAX_REGION_BYTES",
    "MAX_FIELDS_BYTES",
    "MAX_SCHEMA_BYTES",
    "MAX_SLOTS",
    "MAX_TOPIC_NAME_BYTES",
    "QUEUE_SETTING_BOUNDS",
    "SETTING_BOUNDS",
    "TOPIC_SUFFIX",
    "Bound",
    "is_wait",
    "required_slots",
    "SYSTEM_PREFIX",
]


class Bound(NamedTuple):
    """Lowest and highest value of a setting, and the one it has when not given."""

    lowest: int
    highest: int
    default: int


SETTING_BOUNDS: Final[dict[str, Bound]] = {
    "slot_size": Bound(1, (1 << 40) - 1, 64 << 10),
    "history": Bound(0, 60_000, 64),
    "depth": Bound(1, 60_000, 64),
    "max_publishers": Bound(1, 256, 8),
    "max_subscribers": Bound(1, 256, 32),
    "max_held": Bound(1, 4096, 4),
    "max_loans": Bound(1, 256, 2),
}

QUEUE_SETTING_BOUNDS: Final[dict[str, Bound]] = {
    "slot_size": SETTING_BOUNDS["slot_size"],
    "capacity": Bound(1, 60_000, 1024),
    "max_producers": SETTING_BOUNDS["max_publishers"],
    "max_consumers": SETTING_BOUNDS["max_subscribers"],
    "max_held": Bound(1, 4096, 64),
}
# A claim word has 10 bits for deliveries, and counts no further.
MAX_DELIVERIES: Final = 1000
MAX_LEASE_SECONDS: Final = 366 * 86_400
# Clocks of a cluster's nodes that differ by more count as wrong. Clocks that NTP keeps differ by
# milliseconds, and a measurement between two nodes is uncertain by a second at most.
CLOCK_BOUND_SECONDS: Final = 10
# Of messages, offsets and bytes: none is larger, in memory or on the wire.
MAX_COUNT: Final = (1 << 63) - 1

# A ring word has 16 bits for the slot; two values of them mean "none" and "claimed".
MAX_SLOTS: Final = 65_534
# Half of the address space of a process, so that a mapping of it can be placed.
MAX_REGION_BYTES: Final = 1 << 46

MAX_TOPIC_NAME_BYTES: Final = 100
MAX_ENCODED_TOPIC_NAME_BYTES: Final = 200
MAX_PARTICIPANT_NAME_BYTES: Final = 55
MAX_SCHEMA_BYTES: Final = 200
# The fields of a schema in words, with a topic of a cluster.
MAX_FIELDS_BYTES: Final = 16 << 10
TOPIC_SUFFIX: Final = ".topic"
# A queue's own dead letters have its name with this behind it; on one host that is another queue.
DEAD_LETTER_SUFFIX: Final = ".dead"
# What a cluster keeps for itself begins with it.
SYSTEM_PREFIX: Final = "__"
# Kept positions of groups and of participants share one name space in a region.
GROUP_PREFIX: Final = "group:"
# The names of consumers, and of shards whose dead letters go elsewhere, in the table of producers: only nodes
# write under them. A producer's own begins with the name of its bus.
CONSUMER_PREFIX: Final = "consumer:"
DEAD_LETTERS_PREFIX: Final = "letters:"

_LONGEST_FILE_NAME: Final = 255


def is_wait(seconds: Any) -> bool:
    """Whether it says how long to wait."""
    try:
        return isinstance(seconds, (int, float, Real)) and float(seconds) >= 0
    except OverflowError:
        return False


def required_slots(settings: dict[str, int]) -> int:
    """Slots a region needs so that a publisher always finds a free one; a queue's settings have the names of
    a topic's there."""
    ring = settings["history"] + settings["depth"]
    held = (settings["max_subscribers"] + 1) * settings["max_held"]
    lent = settings["max_publishers"] * (settings["max_loans"] + 1)
    return ring + held + lent


def _check_relations() -> None:
    defaults = {name: bound.default for name, bound in SETTING_BOUNDS.items()}
    smallest = {name: bound.lowest for name, bound in SETTING_BOUNDS.items()}
    bounds = (*SETTING_BOUNDS.values(), *QUEUE_SETTING_BOUNDS.values())
    assert all(bound.lowest <= bound.default <= bound.highest for bound in bounds)
    assert required_slots(defaults) <= MAX_SLOTS
    assert required_slots(defaults) * defaults["slot_size"] <= MAX_REGION_BYTES
    assert required_slots(smallest) * SETTING_BOUNDS["slot_size"].highest <= MAX_REGION_BYTES
    assert required_slots(smallest | {"history": SETTING_BOUNDS["history"].highest}) <= MAX_SLOTS
    assert required_slots(smallest | {"depth": SETTING_BOUNDS["depth"].highest}) <= MAX_SLOTS
    assert QUEUE_SETTING_BOUNDS["capacity"].highest <= SETTING_BOUNDS["depth"].highest
    assert QUEUE_SETTING_BOUNDS["max_held"].highest <= SETTING_BOUNDS["max_held"].highest
    assert MAX_DELIVERIES < 1 << 10
    assert MAX_TOPIC_NAME_BYTES <= MAX_ENCODED_TOPIC_NAME_BYTES
    assert MAX_ENCODED_TOPIC_NAME_BYTES + len(TOPIC_SUFFIX) <= _LONGEST_FILE_NAME
    assert len(GROUP_PREFIX) < MAX_PARTICIPANT_NAME_BYTES


_check_relations()
