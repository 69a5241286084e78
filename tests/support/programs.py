"""C++ programs for tests, compiled once for each set of sources and options."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "programs"
FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread")
# With a compiler cache where the machine has one.
COMPILER = ("ccache", "g++") if shutil.which("ccache") else ("g++",)


@functools.cache
def compiler_version() -> str:
    """The compiler by name and full version."""
    done = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    return f"g++ {done.stdout.strip()}"


def build(source: Path, options: Sequence[str] = ()) -> Path:
    """The program made from `source` with Hawser's headers; compiled only when something changed."""
    digest = hashlib.sha256(repr((FLAGS, tuple(options), compiler_version())).encode())
    headers = [
        *(ROOT / "native").glob("*.hpp"),
        *source.parent.glob("*.hpp"),
        *source.parent.parent.glob("*.hpp"),
    ]
    for file in [source, *sorted(headers)]:
        digest.update(file.read_bytes())
    program = CACHE / f"{source.stem}-{digest.hexdigest()[:16]}"
    if not program.exists():
        include = ["-I", str(ROOT / "native"), "-I", str(ROOT / "tests" / "native")]
        compile_program(source, program, [*FLAGS, *include, *options])
    return program


def compile_program(source: Path, program: Path, options: Sequence[str]) -> None:
    """Compile and link one source. The program is there whole or not at all, whoever builds it meanwhile."""
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.parent / f"{program.name}.{os.getpid()}"
    # In two steps: a compiler cache keeps objects, not programs.
    made = unfinished.with_name(f"{unfinished.name}.o")
    subprocess.run([*COMPILER, "-c", *options, str(source), "-o", str(made)], check=True)
    subprocess.run(["g++", *options, str(made), "-o", str(unfinished)], check=True)
    made.unlink()
    unfinished.rename(program)


def with_planted_bug(name: str) -> dict[str, str]:
    """The environment in which a program built with `-DHAWSER_CANARIES` has this bug of native/canary.hpp."""
    text = (ROOT / "native" / "canary.hpp").read_text(encoding="utf-8")
    names = re.findall(r"^  (\w+),", text.split("enum class Canary {", 1)[1], re.MULTILINE)
    return {"HAWSER_CANARY": str(names.index(name))}


def numbers(line: str) -> dict[str, int]:
    """The `name=number` pairs in a line of output."""
    pairs = (word.split("=", 1) for word in line.split() if "=" in word)
    return {name: int(value) for name, value in pairs if value.isdigit()}
