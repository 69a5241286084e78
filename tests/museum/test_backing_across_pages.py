"""A slot that does not begin on a page: its second, larger sample reached into a page nobody had reserved."""

from hawser.testing import LocalBus

PAGE = 4096
SLOT_SIZE = 8100
FROM_SLOT_TO_SLOT = 8128


def pages_of(slots: int, size: int) -> int:
    """Pages that `size` bytes in every slot touch."""
    starts = [slot * FROM_SLOT_TO_SLOT for slot in range(slots)]
    return len({page for start in starts for page in range(start // PAGE, (start + size - 1) // PAGE + 1)})


def test_every_byte_lent_is_reserved() -> None:
    with LocalBus() as local:
        topic = local.connect("writer").topic("uneven", slot_size=SLOT_SIZE, history=60, depth=60)
        before = topic.info()
        publisher = topic.publisher()
        for size in (4000, PAGE):
            for _ in range(before.slots):
                loan = publisher.loan(size)
                loan.__enter__()
                loan.__exit__(KeyError, None, None)
        reserved = topic.info().resident_bytes - before.resident_bytes
        assert reserved >= pages_of(before.slots, PAGE) * PAGE
        assert topic.info().configured_bytes == before.configured_bytes
