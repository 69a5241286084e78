"""Every bound on what users may ask for, and the relations between them."""

from typing import Final, NamedTuple

__all__ = [
    "GROUP_PREFIX",
    "MAX_ENCODED_TOPIC_NAME_BYTES",
    "MAX_PARTICIPANT_NAME_BYTES",
    "MAX_REGION_BYTES",
    "MAX_FIELDS_BYTES",
    "MAX_SCHEMA_BYTES",
    "MAX_SLOTS",
    "MAX_TOPIC_NAME_BYTES",
    "SETTING_BOUNDS",
    "TOPIC_SUFFIX",
    "Bound",
    "required_slots",
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
# Kept positions of groups and of participants share one name space in a region.
GROUP_PREFIX: Final = "group:"

_LONGEST_FILE_NAME: Final = 255


def required_slots(settings: dict[str, int]) -> int:
    """Slots a topic needs so that a publisher always finds a free one."""
    ring = settings["history"] + settings["depth"]
    held = (settings["max_subscribers"] + 1) * settings["max_held"]
    lent = settings["max_publishers"] * (settings["max_loans"] + 1)
    return ring + held + lent


def _check_relations() -> None:
    defaults = {name: bound.default for name, bound in SETTING_BOUNDS.items()}
    smallest = {name: bound.lowest for name, bound in SETTING_BOUNDS.items()}
    assert all(bound.lowest <= bound.default <= bound.highest for bound in SETTING_BOUNDS.values())
    assert required_slots(defaults) <= MAX_SLOTS
    assert required_slots(defaults) * defaults["slot_size"] <= MAX_REGION_BYTES
    assert required_slots(smallest) * SETTING_BOUNDS["slot_size"].highest <= MAX_REGION_BYTES
    assert required_slots(smallest | {"history": SETTING_BOUNDS["history"].highest}) <= MAX_SLOTS
    assert required_slots(smallest | {"depth": SETTING_BOUNDS["depth"].highest}) <= MAX_SLOTS
    assert MAX_TOPIC_NAME_BYTES <= MAX_ENCODED_TOPIC_NAME_BYTES
    assert MAX_ENCODED_TOPIC_NAME_BYTES + len(TOPIC_SUFFIX) <= _LONGEST_FILE_NAME
    assert len(GROUP_PREFIX) < MAX_PARTICIPANT_NAME_BYTES


_check_relations()
