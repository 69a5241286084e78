"""Build the C++ programs of the tests: `python -m tests.support.prebuild`.

A test builds what it misses. `make test` builds everything at once, beside lint and types.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.crash import stepper
from tests.models import program, test_queue, test_replication, test_topic
from tests.support.builds import planted_package
from tests.unit.memory import test_interleavings, test_native_units


def planted_packages() -> None:
    """One after the other: they share an object."""
    planted_package()
    planted_package("thread")


def models() -> Iterator[tuple[str, dict[str, int]]]:
    """Each model with the sizes it is explored in; a size comes as often as it is used."""
    replication = test_replication
    for table in (replication.QUICK, replication.LONG, replication.LIVE, replication.PLAIN):
        yield from (("replication", sizes) for sizes, _ in table.values())
    yield from (("replication", sizes) for sizes, _, _ in replication.CANARIES.values())
    for configurations in (test_topic.HOLDS, test_topic.CANARIES, test_topic.TOO_FEW_SLOTS):
        yield from (("topic", sizes) for sizes, _ in configurations.values())
    for configurations in (test_queue.HOLDS, test_queue.CANARIES):
        yield from (("queue", sizes) for sizes, _ in configurations.values())


def builds() -> Iterator[Callable[[], object]]:
    """The longest first."""
    yield planted_packages
    for flavour in test_native_units.SANITIZERS:
        yield partial(test_native_units.built, flavour)
    for with_canaries in (False, True):
        yield partial(stepper.build, with_canaries)
        yield partial(test_interleavings.explorer, with_canaries)
    for name in sorted(set(test_native_units.PLANTED.values())):
        yield partial(test_native_units.with_canaries, name)
    distinct = {(model, tuple(sorted(sizes.items()))) for model, sizes in models()}
    for model, sizes in sorted(distinct):
        yield partial(program.build, model, dict(sizes))


def main() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(build) for build in builds()]:
            done.result()


if __name__ == "__main__":
    main()
