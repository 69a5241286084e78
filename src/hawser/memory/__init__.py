"""Topics and queues in the shared memory of one host. The only importer of the native module."""

from hawser.memory import _native
from hawser.memory._native import (
    Claims,
    Consumer,
    Loan,
    Message,
    Publisher,
    Region,
    Sample,
    Subscriber,
    Syncs,
    ValueIteration,
    Waiter,
)
from hawser.memory.domain import Domain
from hawser.record.metadata import decode_metadata, encode_metadata
from hawser.record.payload import as_payload
from hawser.record.receipt import Receipt

__all__ = [
    "Claims",
    "Consumer",
    "Domain",
    "Loan",
    "Message",
    "Publisher",
    "Region",
    "Sample",
    "Subscriber",
    "Syncs",
    "ValueIteration",
    "Waiter",
]

_native.configure(Receipt, as_payload, encode_metadata, decode_metadata)
