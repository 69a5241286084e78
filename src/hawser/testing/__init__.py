"""Support for tests of programs that use Hawser.

`LocalBus` is a shared-memory domain for one test. The other modules simulate a whole cluster in one thread
from one seed: see `hawser.testing.cluster`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hawser.testing.local import LocalBus

if TYPE_CHECKING:
    from hawser.testing.checks import Violation
    from hawser.testing.clock import SimClock
    from hawser.testing.cluster import Cluster, Stuck
    from hawser.testing.disk import SimDisk
    from hawser.testing.network import NetworkFaults, SimNetwork
    from hawser.testing.store import SimStore, StoreFaults

__all__ = [
    "Cluster",
    "LocalBus",
    "NetworkFaults",
    "SimClock",
    "SimDisk",
    "SimNetwork",
    "SimStore",
    "StoreFaults",
    "Stuck",
    "Violation",
]

_HOMES: Final = {
    "Cluster": "hawser.testing.cluster",
    "NetworkFaults": "hawser.testing.network",
    "SimClock": "hawser.testing.clock",
    "SimDisk": "hawser.testing.disk",
    "SimNetwork": "hawser.testing.network",
    "SimStore": "hawser.testing.store",
    "StoreFaults": "hawser.testing.store",
    "Stuck": "hawser.testing.cluster",
    "Violation": "hawser.testing.checks",
}


def __getattr__(name: str) -> Any:
    # A test with only a LocalBus does not import the simulator.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hawser.testing' has no attribute {name!r}")
