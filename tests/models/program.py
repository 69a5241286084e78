"""Builds and runs the models that are written in C++."""

import hashlib
import subprocess
from pathlib import Path

from tests.support.programs import compile_program

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "models"
STATES_A_SECOND = 250_000  # of a soak, on a slow machine
FLAGS = ("-O2", "-std=c++20", "-Wall", "-Wextra", "-Werror")


def build(model: str, sizes: dict[str, int]) -> Path:
    """The program of `model` compiled for `sizes`; built only when a source or a size changed."""
    defines = [f"-D{name}={value}" for name, value in sorted(sizes.items())]
    digest = hashlib.sha256(repr((FLAGS, defines)).encode())
    for source in sorted([HERE / f"{model}.cpp", *HERE.glob("*.hpp")]):
        digest.update(source.read_bytes())
    program = CACHE / f"{model}-{digest.hexdigest()[:16]}"
    if not program.exists():
        compile_program(HERE / f"{model}.cpp", program, [*FLAGS, *defines])
    return program


def run(model: str, sizes: dict[str, int], options: dict[str, int]) -> str:
    """What the program printed: `...: OK states=...` or `...: VIOLATION: why states=...` and a trace."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    command = [str(build(model, sizes)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def bugs(model: str) -> dict[str, int]:
    """The planted defects a model knows, by name."""
    text = (HERE / f"{model}_state.hpp").read_text()
    body = text.split("enum Bug {", 1)[1].split("}", 1)[0]
    return {name.strip(): number for number, name in enumerate(body.split(",")) if name.strip()}
