"""Print the test files of a change: `python scripts/tests_of.py PATH ...`, for `make check FOR=...`.

PATH is a file, a folder, or the word `changes` for the uncommitted changes in git. A test file belongs to a
change if it is part of it, if it imports a changed module, or if it imports another module of the same
folder. The files are printed in this order, the fastest first, up to one minute on two cores by the recorded
durations. The word `everything` selects from all test files up to four minutes, the fastest first. Slower
files run in `make test` only.

The imports of the tests are the only input: there is no list to maintain, and no earlier run is needed.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Seconds of both processors together. The rest of the time is for start-up and collection.
BUDGET_SECONDS = 80
BUDGET_OF_EVERYTHING_SECONDS = 400


def changed() -> list[Path]:
    """Files that differ from the last commit, and new files."""
    asked = ["git", "ls-files", "--modified", "--others", "--exclude-standard"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).exists()]


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.suffix == ".py":
            yield path


def name_of(path: Path) -> str:
    """The path relative to the root of the project."""
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """The module name of a file; native sources have the name of the native module."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "native":
        return "hawser.memory._native"
    parts = relative.parts[1:] if relative.parts[0] == "src" else relative.parts
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """Every name in a file's imports that may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def tests_of(paths: list[Path], recorded: dict[str, int]) -> Iterator[Path]:
    """The test files of a change, the closest first."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda test: recorded.get(name_of(test), 0))
    imported = {test: imports_of(test) for test in tests}
    files = list(python_files(paths))
    native = [path for path in paths if path.suffix in {".hpp", ".cpp"} or path.name == "native"]
    modules = {module_of(path) for path in [*files, *native]}
    rooms = {module.rpartition(".")[0] for module in modules}
    rooms |= {module_of(path) for path in paths if path.is_dir()}
    rooms -= {"hawser", ""}
    yield from (test for test in tests if test in files)
    yield from (test for test in tests if imported[test] & modules)
    yield from (test for test in tests if {name.rpartition(".")[0] for name in imported[test]} & rooms)


def main() -> int:
    named = sys.argv[1:]
    if named == ["everything"]:
        paths = [ROOT / "tests"]
    elif named == ["changes"]:
        paths = changed()
    else:
        paths = [Path(argument).resolve() for argument in named]
    for path in paths:
        if not path.exists():
            print(f"{path} does not exist; name a file or a folder of the project", file=sys.stderr)
            return 2
    recorded: dict[str, int] = json.loads((ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
    chosen: list[str] = []
    left = BUDGET_OF_EVERYTHING_SECONDS if named == ["everything"] else BUDGET_SECONDS
    for test in dict.fromkeys(tests_of(paths, recorded)):
        left -= recorded.get(name_of(test), 0)
        if left >= 0 or not chosen:
            chosen.append(name_of(test))
    if not chosen:
        print(
            f"no test file belongs to {', '.join(named)}; `make check` runs those of all files",
            file=sys.stderr,
        )
        return 1
    print(*chosen, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
