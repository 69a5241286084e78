"""Fills a small tmpfs with samples: `python -m tests.hostile.full_tmpfs DIRECTORY`. Prints what it saw."""

import sys
from pathlib import Path
from typing import Any

import hawser

MEBIBYTE = 1 << 20
SETTINGS: dict[str, Any] = {"slot_size": MEBIBYTE, "history": 16, "depth": 16, "max_subscribers": 2}


def message(number: int) -> bytes:
    return bytes([number]) * MEBIBYTE


def fill(topic: hawser.Topic[Any], first: int) -> int:
    """Publish until there is no memory; how many went out."""
    for number in range(first, 200):
        try:
            topic.publish(message(number))
        except hawser.Full as error:
            assert "tmpfs" in str(error), error
            return number - first
    raise AssertionError("the tmpfs was never full")


def main() -> None:
    domain = Path(sys.argv[1])
    filler = domain.parent / "filler"
    with hawser.connect(f"shm://{domain}") as bus:
        topic = bus.topic("full", **SETTINGS)
        subscription = topic.subscribe(max_held=1)
        filler.write_bytes(bytes(4 * MEBIBYTE))
        published = fill(topic, 1)
        for number in range(1, published + 1):
            with subscription.take(0) as sample:  # type: ignore[union-attr]
                assert bytes(sample) == message(number), f"sample {number} changed"
        assert subscription.take(0) is None
        assert topic.info().slots_lent == 0
        try:
            bus.topic("another", slot_size=64, history=50_000)
            raise AssertionError("a topic was made without memory")
        except hawser.Full:
            assert bus.topics() == ["full"]
        filler.unlink()
        more = fill(topic, published + 1)
        read = topic.read_oldest(100)
        assert [bytes(sample) for sample in read.samples] == [
            message(sample.offset) for sample in read.samples
        ]
        assert read.last == published + more
    print(published, more)


if __name__ == "__main__":
    main()
