"""Hawser: a crash-proof message bus for Python.

    import hawser

    with hawser.connect(name="example") as bus:
        topic = bus.topic("hello")
        topic.publish(b"world")
        for sample in topic.subscribe(history=1):
            print(bytes(sample))
            break

`hawser.aio` has the same names for event loops, `hawser.xa` those for transactions that others coordinate.
"""

# Before msgspec, which forgets an interrupt of its own import of datetime and crashes when it is used.
import datetime  # noqa: F401
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hawser.api.bus import Bus, connect
from hawser.api.info import (
    DomainFile,
    KeptPosition,
    Participant,
    PartitionInfo,
    QueueInfo,
    QueueOwner,
    ReadResult,
    Recovered,
    TopicInfo,
)
from hawser.api.loan import ArrayLoan
from hawser.api.message import Message, Messages, ValueLoop, Values
from hawser.api.publishing import Publisher
from hawser.api.queue import Consumer, Queue
from hawser.api.sample import Sample
from hawser.api.subscription import Subscription
from hawser.api.topic import Topic
from hawser.api.transaction import Transaction
from hawser.errors import (
    Closed,
    Corrupt,
    Fenced,
    Full,
    HawserError,
    InDoubt,
    Lagged,
    NotFound,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    PermissionDenied,
    Rejected,
    SettingsMismatch,
    Timeout,
    TransactionAborted,
    Unavailable,
    UsageError,
)
from hawser.record.record import Receipt

# Most programs connect to one host: loaded here, its modules are there for every process forked later.
# Without the native module there is no such host; its first use says so.
with suppress(UsageError):
    import_module("hawser.api.local.bus")

if TYPE_CHECKING:
    from hawser import aio, xa
    from hawser.memory import Loan

__version__: Final = "0.1.0"

__all__ = [
    # the bus
    "connect",
    "aio",
    "xa",
    "Bus",
    "Topic",
    "Publisher",
    "Subscription",
    "Sample",
    "Loan",
    "ArrayLoan",
    "Queue",
    "Consumer",
    "Message",
    "Messages",
    "Values",
    "ValueLoop",
    "Transaction",
    "Receipt",
    # what it tells
    "ReadResult",
    "TopicInfo",
    "PartitionInfo",
    "QueueInfo",
    "QueueOwner",
    "Participant",
    "Recovered",
    "KeptPosition",
    "DomainFile",
    # errors, as drawn in hawser.errors
    "HawserError",
    "Rejected",
    "UsageError",
    "SettingsMismatch",
    "Full",
    "Closed",
    "Timeout",
    "NotFound",
    "PermissionDenied",
    "Corrupt",
    "Lagged",
    "OffsetOutOfRange",
    "Fenced",
    "NotLeader",
    "Unavailable",
    "TransactionAborted",
    "OutcomeUnknown",
    "InDoubt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Event loops cost more to import than all the rest, and xids need a package that only clusters need; only
    # who uses them pays.
    if name in ("aio", "xa"):
        return import_module(f"hawser.{name}")
    if name == "Loan":
        return import_module("hawser.memory").Loan
    raise AttributeError(f"module 'hawser' has no attribute {name!r}")
