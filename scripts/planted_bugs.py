"""Print every planted bug and the test that finds it, a line for each: `python scripts/planted_bugs.py`.

The tests are those of `make test` whose names contain "planted". Compare the output of two versions: a
missing line is a guarantee that lost its test.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLANTS = re.compile(
    r"canary|plant|defect|weakened|_would_be_noticed|_can_be_guilty|_is_noticed$|_(is|are)_(seen|caught|found|found_out)$"
    r"|_loses$|_formula_fails$|_bad_history_"
)


def collected(root: Path) -> list[str]:
    """The tests that run without --soak."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests"]
    environment = os.environ | {"HAWSER_NO_REBUILD": "1", "HAWSER_SOAK_SECONDS": ""}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"pytest cannot collect the tests:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def by_parameter(tests: list[str]) -> Iterator[tuple[str, str]]:
    """The name of a bug: the parameter of its test, or the test."""
    for test in tests:
        function, _, parameter = test.partition("::")[2].partition("[")
        if PLANTS.search(function):
            yield parameter.removesuffix("]") or function, test.partition("[")[0]


def in_native_code(root: Path) -> Iterator[tuple[str, str]]:
    """The bugs of native/canary.hpp, by the test files that name them; one test may name several."""
    body = (root / "native" / "canary.hpp").read_text(encoding="utf-8").split("enum class Canary {", 1)[1]
    texts = {file: file.read_text(encoding="utf-8") for file in sorted((root / "tests").rglob("test_*.py"))}
    for name in re.findall(r"^  (\w+),", body, re.MULTILINE)[1:]:
        for file, text in texts.items():
            if f'"{name}"' in text:
                yield name, str(file.relative_to(root))


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    found = set(by_parameter(collected(root)))
    named = {(bug, test.partition("::")[0]) for bug, test in found}
    for bug, test in sorted(found | (set(in_native_code(root)) - named)):
        print(f"| {bug} | `{test}` |")


if __name__ == "__main__":
    main()
