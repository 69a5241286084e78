"""Those who live on while Python processes are killed at random moments, and check everything after each.

Run as `python -m tests.crash.survivors URL KILLS SEED`; prints its counts as JSON.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import hawser

from .victims import CONTENT, SETTINGS, TOPIC, content

SURVIVOR = 1_000_000
LIFE_SECONDS = 0.012


class Survivors:
    """A publisher, a reliable subscriber that must get everything, and one that holds an old sample."""

    def __init__(self, url: str) -> None:
        self.bus = hawser.connect(url, name="survivor")
        self.topic = self.bus.topic(TOPIC, **SETTINGS)  # type: ignore[call-overload]
        self.reliable = self.topic.subscribe(reliable=True)
        self.numbers: Counter[int] = Counter()
        self.offset = 0
        self.topic.publish(content(SURVIVOR, 1))
        self.topic.publish(content(SURVIVOR, 2))
        self.drain()
        self.holder = self.topic.subscribe(history=1)
        self.held = self.holder.take(timeout=0)
        assert self.held is not None
        self.held_bytes = bytes(self.held)

    def drain(self) -> None:
        """Everything published, once and in order: per topic by offset, per process by number."""
        while (sample := self.reliable.take(timeout=0)) is not None:
            victim, number = CONTENT.unpack(bytes(sample)[: CONTENT.size])
            assert bytes(sample) == content(victim, number)
            assert sample.offset == self.offset + 1
            assert sample.lost_before == 0
            assert number == self.numbers[victim] + 1
            self.offset = sample.offset
            self.numbers[victim] = number
            sample.release()

    def check(self) -> None:
        """The dead leave nothing behind, and work goes on."""
        self.drain()
        self.bus.recover()
        info = self.topic.info()
        assert info.slots_leaked == 0
        assert info.slots_lent == 0
        assert {each.name for each in info.participants} == {"survivor"}
        assert info.slots_referenced == 1
        for _ in range(20):
            self.topic.publish(content(SURVIVOR, self.numbers[SURVIVOR] + 1), timeout=0)
            self.drain()
        assert bytes(self.held or b"") == self.held_bytes
        assert self.topic.info().head == self.offset
        self.catch_up()

    def catch_up(self) -> None:
        """A subscriber that was lapped knows exactly what it missed."""
        while (sample := self.holder.take(timeout=0)) is not None:
            assert bytes(sample) == content(*CONTENT.unpack(bytes(sample)[: CONTENT.size]))
            sample.release()
        assert self.holder.position == self.offset
        assert self.holder.received + self.holder.missed == self.offset - 1


class Victims:
    """Starts victims one after the other."""

    def __init__(self, url: str) -> None:
        flags = ["-S"] if sys.flags.no_site else []
        command = [sys.executable, *flags, "-m", "tests.crash.victims", url]
        self._maker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, victim: int) -> int:
        """The pid of a new victim."""
        assert self._maker.stdin
        self._maker.stdin.write(f"{victim}\n")
        self._maker.stdin.flush()
        return int(self._read())

    def kill(self, process: int) -> None:
        """Returns when the kernel has taken back everything of it."""
        os.kill(process, signal.SIGKILL)
        assert self._read() == "gone\n"

    def close(self) -> None:
        """No victim is alive any more."""
        self._maker.communicate()

    def _read(self) -> str:
        assert self._maker.stdout
        return self._maker.stdout.readline()


def attack(url: str, kills: int, seed: int) -> dict[str, int]:
    """Kill that many, one at a time; raises AssertionError when a survivor finds anything wrong."""
    chance = random.Random(seed)
    survivors, victims = Survivors(url), Victims(url)
    victim = 0
    # Some die before they publish; on a slow machine most of them.
    while victim < kills or (len(survivors.numbers) - 1 <= kills / 4 and victim < 10 * kills):
        victim += 1
        process = victims.start(victim)
        until = time.monotonic() + chance.random() * LIFE_SECONDS
        while time.monotonic() < until:
            survivors.drain()
        victims.kill(process)
        survivors.check()
    victims.close()
    published = Counter(survivors.numbers)
    del published[SURVIVOR]
    survivors.bus.close()
    return {"kills": victim, "killed_publishers": len(published), "published_by_them": published.total()}


if __name__ == "__main__":
    print(json.dumps(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
