"""The wall clock steps by years with every look at it: only time stamps notice."""

import hashlib
import os
import subprocess
from pathlib import Path

from hawser.testing import LocalBus
from tests.support.builds import ROOT, Build

SOURCE = Path(__file__).with_name("clock_steps.cpp")
PROGRAM = """
import os, signal, sys, time, hawser
bus = hawser.connect(sys.argv[1], name="parent")
topic = bus.topic("clock", slot_size=64, history=2, depth=2)
subscription = topic.subscribe(reliable=True)
stamps = []
for number in range(20):
    time.sleep(0.001)  # a publisher looks at the clock again
    topic.publish(b"%d" % number)
    with subscription.take(5) as sample:
        assert bytes(sample) == b"%d" % number
        stamps.append(sample.timestamp_ns)
assert stamps != sorted(stamps), "the clock does not step"
began = time.monotonic()
assert subscription.take(0.2) is None
assert time.monotonic() - began < 60
topic.publish_many([b"x"] * 4)
try:
    topic.publish(b"y", timeout=0.2)
    raise SystemExit("a publish should have found no space")
except hawser.Full:
    pass
child = os.fork()
if child == 0:
    own = hawser.connect(sys.argv[1], name="child").topic("clock").subscribe()
    signal.pause()
while not any(each.name == "child" for each in topic.info().participants):
    time.sleep(0.01)
assert bus.recover() == []
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert [each.name for each in bus.recover()] == ["child"]
"""


def stepping_clock() -> Path:
    """The library to preload, built when its source changed."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = ROOT / "build" / f"clock_steps-{digest}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        options = ["-shared", "-fPIC", "-O2", "-o", str(unfinished), str(SOURCE)]
        subprocess.run(["g++", *options], check=True)
        unfinished.rename(library)
    return library


def test_nothing_depends_on_the_wall_clock(local: LocalBus) -> None:
    build = Build()
    done = subprocess.run(
        build.command("-c", PROGRAM, local.url),
        env={**build.environment(), "LD_PRELOAD": str(stepping_clock())},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
