"""Count the instructions of publish, take and release with callgrind, and compare with what is recorded.

Run as a program: prints the counts; `--record` writes them to instructions.json, `--check` exits with 1
when one has grown by more than a twentieth. Counts of different compilers cannot be compared. `--trace`
prints nanoseconds instead: of each operation while its topic is not traced, while it is, and the difference,
which is what a record of the trace costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORD = HERE / "instructions.json"
OPERATIONS = ("publish", "take", "release")
OPERATIONS_A_RUN = 4096
ALLOWED_GROWTH = 1.05


def missing_tools() -> list[str]:
    """The programs this needs and this machine has not."""
    return [name for name in ("g++", "valgrind") if shutil.which(name) is None]


def compiler() -> str:
    """The compiler by name and full version."""
    done = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"g++ {done.stdout.strip()}"


def build(directory: Path) -> Path:
    """Compile the driver as the package is compiled."""
    program = directory / "instructions"
    command = ["g++", "-O3", "-std=c++20", f"-I{HERE.parent / 'native'}", "-pthread"]
    subprocess.run([*command, "-o", str(program), str(HERE / "instructions.cpp")], check=True)
    return program


def count(program: Path, operation: str, directory: Path) -> int:
    """Instructions of one such operation."""
    output = directory / f"{operation}.callgrind"
    options = ["--tool=callgrind", "--collect-atstart=no", f"--toggle-collect=measured_{operation}"]
    subprocess.run(
        ["valgrind", *options, f"--callgrind-out-file={output}", str(program), str(directory)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    for line in output.read_text(encoding="utf-8").splitlines():
        if line.startswith(("summary:", "totals:")):
            return round(int(line.split()[1]) / OPERATIONS_A_RUN)
    raise RuntimeError(f"callgrind left no total in {output}")


def count_all() -> dict[str, int]:
    """Instructions of each operation, in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hawser-instructions-", dir="/dev/shm") as name:
        directory = Path(name)
        program = build(directory)
        return {operation: count(program, operation, directory) for operation in OPERATIONS}


def record_costs() -> dict[str, dict[str, float]]:
    """Nanoseconds of each operation, the best of many rounds: plain, traced, and of the record."""
    with tempfile.TemporaryDirectory(prefix="hawser-instructions-", dir="/dev/shm") as name:
        command = [str(build(Path(name))), name, "time"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return {
        operation: {"plain": plain, "traced": traced, "record": round(traced - plain, 1)}
        for operation, (plain, traced) in json.loads(done.stdout).items()
    }


def recorded_compiler() -> str:
    """What the recorded counts were compiled with."""
    return str(json.loads(RECORD.read_text(encoding="utf-8"))["compiler"])


def recorded() -> dict[str, int]:
    """The counts that are allowed to grow by a twentieth."""
    counts = json.loads(RECORD.read_text(encoding="utf-8"))
    return {operation: int(counts[operation]) for operation in OPERATIONS}


def grown(counts: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """A sentence for each operation that costs more than a twentieth over what is recorded."""
    return [
        f"{operation} takes {counts[operation]} instructions, {allowed[operation]} are recorded"
        for operation in OPERATIONS
        if counts[operation] > allowed[operation] * ALLOWED_GROWTH
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the counts to instructions.json")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a count has grown")
    parser.add_argument("--trace", action="store_true", help="print what a record of the trace costs")
    arguments = parser.parse_args()
    if arguments.trace:
        print(json.dumps(record_costs(), indent=2))
        return 0
    if missing := missing_tools():
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    counts = count_all()
    print(json.dumps(counts))
    if arguments.record:
        record = {"compiler": compiler(), **counts}
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    complaints = grown(counts, recorded()) if arguments.check else []
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
