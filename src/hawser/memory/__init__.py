"""Topics and queues in the shared memory of one host. The only importer of the native module.

The native module is compiled for one version of Python on one platform. Where it is missing, importing a name
from this package raises UsageError; the modules that clusters also use can still be imported.
"""

import platform
from typing import TYPE_CHECKING, NoReturn

from hawser.errors import UsageError
from hawser.record.metadata import decode_metadata, encode_metadata
from hawser.record.payload import as_payload
from hawser.record.record import Receipt

try:
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
except ImportError as error:
    _error = error
else:
    _native.configure(Receipt, as_payload, encode_metadata, decode_metadata)

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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        raise UsageError(
            "shared memory (shm://), nodes and agents need Hawser's native module, and there is none here "
            f"for {here}: {_error}. Run `pip install --force-reinstall hawser-bus` with this Python, or use "
            "a cluster (hawser://), which needs no native module"
        ) from _error
