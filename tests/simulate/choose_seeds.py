"""Choose the pinned seeds anew: `python -m tests.simulate.choose_seeds [--among 2000] [--defects]`.

The rarest path is pinned first, to a seed that is pinned already if one reaches it. The remaining places go
to the seeds that reach the most paths. The result is `pinned_seeds.json`, which `test_seeds.py` reads.

With `--defects` the seed that finds each planted defect is recorded instead: the one of `finding_seeds.json`
if it still finds it, otherwise the first. `test_canaries.py` reads them.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from hawser.testing.probes import EVERY_MARK
from hawser.testing.simulate import simulate
from tests.simulate.defects import DEFECTS
from tests.simulate.queue_defects import QUEUE_DEFECTS
from tests.simulate.transaction_defects import TRANSACTION_DEFECTS

PINNED_FILE = Path(__file__).with_name("pinned_seeds.json")
FINDING_FILE = Path(__file__).with_name("finding_seeds.json")
COUNT = 120
EVERY_DEFECT = DEFECTS | QUEUE_DEFECTS | TRANSACTION_DEFECTS
# By planted defect, a seed that finds it.
FINDING: dict[str, int] = json.loads(FINDING_FILE.read_text(encoding="utf-8"))


def chosen(reached: dict[int, set[str]]) -> dict[int, list[str]]:
    """By seed, the rare paths that it is pinned for. Exits with the names of those that no seed reaches."""
    seeds_of = {mark: [seed for seed, probes in reached.items() if mark in probes] for mark in EVERY_MARK}
    missing = [mark for mark, seeds in seeds_of.items() if not seeds]
    if missing:
        sys.exit(f"no seed reaches {', '.join(missing)}; choose among more with --among")
    pinned: dict[int, list[str]] = {}
    for mark in sorted(EVERY_MARK, key=lambda mark: len(seeds_of[mark])):
        seed = next((seed for seed in pinned if mark in reached[seed]), seeds_of[mark][0])
        pinned.setdefault(seed, []).append(mark)
    for seed in sorted(reached, key=lambda seed: -len(reached[seed])):
        if len(pinned) >= COUNT:
            break
        pinned.setdefault(seed, [])
    return dict(sorted(pinned.items()))


def finding(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds that finds a planted defect, and what it says; None if none does."""
    with pytest.MonkeyPatch.context() as patch:
        EVERY_DEFECT[name](patch)
        for seed in seeds:
            try:
                simulate(seed)
            except AssertionError as found:
                return seed, str(found).partition("\n")[0][:100] or type(found).__name__
    return None


def pin_defects(among: int) -> None:
    """Record the seed that finds each planted defect. Exits with the name of one that no seed finds."""
    seeds: dict[str, int] = {}
    for name in EVERY_DEFECT:
        known = [FINDING[name]] if name in FINDING else []
        found = finding(name, chain(known, range(1, among + 1)))
        if found is None:
            sys.exit(f"no seed finds {name}; choose among more with --among")
        seeds[name] = found[0]
    FINDING_FILE.write_text(json.dumps(seeds, indent=1) + "\n", encoding="utf-8")
    print(f"{len(seeds)} seeds recorded, one for each planted defect")


def pin_paths(among: int) -> None:
    """Pin the seeds that keep every promise and reach every rare path."""
    reached: dict[int, set[str]] = {}
    for seed in range(1, among + 1):
        reached[seed] = {mark for mark, count in simulate(seed).probes.items() if count}
        if seed % 100 == 0:
            print(f"{seed} of {among} seeds", file=sys.stderr)
    pinned = chosen(reached)
    PINNED_FILE.write_text(
        json.dumps({str(seed): probes for seed, probes in pinned.items()}, indent=1) + "\n"
    )
    print(f"{len(pinned)} seeds pinned for {len(EVERY_MARK)} rare paths")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--among", type=int, default=500, help="how many seeds to try, from 1 on")
    parser.add_argument("--defects", action="store_true", help="the seeds that find planted defects")
    arguments = parser.parse_args()
    (pin_defects if arguments.defects else pin_paths)(arguments.among)


if __name__ == "__main__":
    main()
