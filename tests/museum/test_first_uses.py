"""Threads that use a type of msgspec, or a module, for the first time at the same moment.

msgspec 0.22 describes a type at its first use. A second thread that used the type before the description was
complete crashed the process. While a thread imported pyarrow, another could publish nothing but `bytes`.
"""

import sys
from types import ModuleType
from typing import Any

import pytest

from hawser.testing import LocalBus
from tests.support.builds import Build

START = """
import sys, threading
from typing import Literal
import msgspec
import hawser

sys.setswitchinterval(1e-6)

fields = [(f"field_{n}", Literal["start", "stop", n]) for n in range(50)]
Command = msgspec.defstruct("Command", fields)

buses = [hawser.connect(sys.argv[1]) for _ in range(4)]
together = threading.Barrier(len(buses))

def use(bus):
    together.wait()
    {use}

threads = [threading.Thread(target=use, args=(bus,)) for bus in buses]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
RUNS = 25
USES = [
    'bus.topic("imu").info()',
    'bus.queue("jobs").info()',
    'bus.topic("commands", schema=Command)',
]


@pytest.mark.parametrize("use", USES)
def test_threads_use_a_type_at_once(use: str) -> None:
    with LocalBus() as local:
        bus = local.connect()
        bus.topic("imu").subscribe()
        bus.queue("jobs").put(b"work")
        for _ in range(RUNS):
            done = Build().run("-c", START.replace("{use}", use), local.url)
            assert (done.returncode, done.stderr) == (0, "")


def test_a_module_that_another_thread_imports_is_not_used_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its import is complete it lacks its names."""
    with LocalBus() as local:
        topic: Any = local.connect().topic("imu")
        subscription = topic.subscribe()
        for name in ("pyarrow", "hawser.api.local.waiter_thread"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        topic.publish(memoryview(b"bytes"))
        assert bytes(subscription.take(0)) == b"bytes"
        subscription.close()
        topic.publisher().close()
