"""Choose the pinned seeds anew: `python -m tests.simulate.choose_seeds [--among 2000]`.

The rarest path is pinned first, to a seed that is pinned already if one reaches it. The remaining places go
to the seeds that reach the most paths. The result is `pinned_seeds.json`, which `test_seeds.py` reads.
"""

import argparse
import json
import sys
from pathlib import Path

from hawser.testing.marks import EVERY_MARK
from hawser.testing.simulate import simulate

PINNED_FILE = Path(__file__).with_name("pinned_seeds.json")
COUNT = 120


def chosen(reached: dict[int, set[str]]) -> dict[int, list[str]]:
    """By seed, the rare paths that it is pinned for. Exits with the names of those that no seed reaches."""
    seeds_of = {mark: [seed for seed, marks in reached.items() if mark in marks] for mark in EVERY_MARK}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--among", type=int, default=500, help="how many seeds to try, from 1 on")
    among = parser.parse_args().among
    reached: dict[int, set[str]] = {}
    for seed in range(1, among + 1):
        reached[seed] = {mark for mark, count in simulate(seed).marks.items() if count}
        if seed % 100 == 0:
            print(f"{seed} of {among} seeds", file=sys.stderr)
    pinned = chosen(reached)
    PINNED_FILE.write_text(json.dumps({str(seed): marks for seed, marks in pinned.items()}, indent=1) + "\n")
    print(f"{len(pinned)} seeds pinned for {len(EVERY_MARK)} rare paths")


if __name__ == "__main__":
    main()
