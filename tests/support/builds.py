"""Python processes with Hawser as it is, or built with a planted bug."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "planted"
COMPILE = ("g++", "-c", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG")
LIMIT_SECONDS = 250


@dataclass(frozen=True)
class Build:
    """How to start Python with one build of Hawser. `canary` names a planted bug of native/canary.hpp, and
    `sanitizer` what watches the native module."""

    canary: str = ""
    sanitizer: str = ""

    def command(self, *arguments: str) -> list[str]:
        """The interpreter with `arguments`, as `-m module ...` or `-c code`."""
        # Without site the editable install does not come before the package with the bug.
        return [sys.executable, *(["-S"] if self._is_apart else []), *arguments]

    def environment(self) -> dict[str, str]:
        """The environment that goes with `command`."""
        paths = [str(ROOT)]
        if self._is_apart:
            others = Path(msgspec.__file__).parents[1]
            paths = [str(planted_package(self.canary, self.sanitizer)), str(ROOT), str(others)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self.sanitizer:
            # The interpreter is not built with it, and allocates before the module is there.
            environment |= {"LD_PRELOAD": str(_runtime(self.sanitizer)), "PYTHONMALLOC": "malloc"}
        return environment

    @property
    def _is_apart(self) -> bool:
        return bool(self.canary or self.sanitizer)

    def run(self, *arguments: str, limit_seconds: float = LIMIT_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run to the end and return what it printed, whatever its exit status."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_seconds,
        )


def planted_package(canary: str, sanitizer: str = "") -> Path:
    """A directory to import Hawser with the bug from; built only when a source changed."""
    digest = hashlib.sha256(f"{canary} {sanitizer}".encode())
    for source in [*sorted((ROOT / "native").iterdir()), *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(source.read_bytes())
    directory = CACHE / f"{canary or sanitizer}-{digest.hexdigest()[:16]}"
    if directory.exists():
        return directory
    unfinished = CACHE / f"{directory.name}.{os.getpid()}"
    shutil.copytree(
        ROOT / "src" / "hawser", unfinished / "hawser", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    try:
        _build_module(canary, sanitizer, unfinished / "hawser" / "memory")
        unfinished.rename(directory)
    except OSError:
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def _runtime(sanitizer: str) -> Path:
    """The library of a sanitizer, to be loaded before everything else."""
    library = {"thread": "libtsan.so", "address": "libasan.so"}[sanitizer]
    done = subprocess.run(["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).resolve()


def _build_module(canary: str, sanitizer: str, target: Path) -> None:
    import nanobind  # type: ignore[import-untyped]

    include = [
        "-I",
        sysconfig.get_paths()["include"],
        "-I",
        nanobind.include_dir(),
        "-I",
        str(ROOT / "native"),
    ]
    watching = [f"-fsanitize={sanitizer}", "-g", "-Wno-tsan"] if sanitizer else []
    objects = [_nanobind_object(include)]
    for source in sorted((ROOT / "native").glob("bind*.cpp")):
        made = target / f"{source.stem}.o"
        options = ["-std=c++20", "-O1", f"-DHAWSER_CANARY={canary or 'none'}", *watching, *include]
        subprocess.run([*COMPILE, *options, str(source), "-o", str(made)], check=True)
        objects.append(made)
    module = target / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["g++", "-shared", *watching, *map(str, objects), "-o", str(module)], check=True)


def _nanobind_object(include: list[str]) -> Path:
    """The part of every module that does not depend on Hawser, compiled once."""
    import nanobind

    sources = Path(nanobind.source_dir())
    version = hashlib.sha256((sources / "nb_combined.cpp").read_bytes() + str(sources).encode()).hexdigest()
    made = CACHE / f"nanobind-{version[:16]}.o"
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        hashing = sources.parent / "ext" / "robin_map" / "include"
        options = ["-std=c++17", "-O1", *include, "-I", str(hashing), str(sources / "nb_combined.cpp")]
        subprocess.run([*COMPILE, *options, "-o", str(unfinished)], check=True)
        unfinished.rename(made)
    return made
