"""Python processes with Hawser as it is, with a planted bug, or watched by a sanitizer."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.support.programs import COMPILER, with_planted_bug

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "planted"
COMPILE = (*COMPILER, "-c", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
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
            paths = [str(planted_package(self.sanitizer)), str(ROOT), str(others)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self.canary:
            environment |= with_planted_bug(self.canary)
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


def planted_package(sanitizer: str = "") -> Path:
    """A directory to import Hawser from. Its native module can have any planted bug, or a sanitizer watches
    it. The Python files are links, so that only a change in `native/` builds anything."""
    module = _built_module(sanitizer)
    sources = ROOT / "src" / "hawser"
    apart = ("memory", "__pycache__")
    links = {Path(path.name): path for path in sources.iterdir() if path.name not in apart}
    links |= {
        Path("memory", path.name): path
        for path in (sources / "memory").iterdir()
        if path.suffix != ".so" and path.name != "__pycache__"
    }
    links[Path("memory", f"_native{SUFFIX}")] = module
    digest = hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()
    directory = CACHE / f"{sanitizer or 'canaries'}-{digest[:16]}"
    if directory.exists():
        return directory
    unfinished = CACHE / f"{directory.name}.{os.getpid()}"
    (unfinished / "hawser" / "memory").mkdir(parents=True)
    try:
        for name, target in links.items():
            (unfinished / "hawser" / name).symlink_to(target)
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


def _built_module(sanitizer: str) -> Path:
    """The native module, compiled only if a file in `native/` has changed. Tests that need it at once wait
    for one compilation."""
    digest = hashlib.sha256(repr((COMPILE, sanitizer)).encode())
    for source in sorted((ROOT / "native").iterdir()):
        digest.update(source.read_bytes())
    module = CACHE / f"{sanitizer or 'canaries'}-{digest.hexdigest()[:16]}{SUFFIX}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{sanitizer or 'canaries'}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not module.exists():
            _build_module(sanitizer, module)
    return module


def _build_module(sanitizer: str, module: Path) -> None:
    import nanobind  # type: ignore[import-untyped]

    include = [
        "-I",
        sysconfig.get_paths()["include"],
        "-I",
        nanobind.include_dir(),
        "-I",
        str(ROOT / "native"),
    ]
    kind = [f"-fsanitize={sanitizer}", "-g", "-Wno-tsan"] if sanitizer else ["-DHAWSER_CANARIES"]
    watching = kind if sanitizer else []
    with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
        objects = [_nanobind_object(include)]
        for source in sorted((ROOT / "native").glob("bind*.cpp")):
            made = Path(unfinished) / f"{source.stem}.o"
            options = ["-std=c++20", "-O1", *kind, *include]
            subprocess.run([*COMPILE, *options, str(source), "-o", str(made)], check=True)
            objects.append(made)
        linked = Path(unfinished) / module.name
        subprocess.run(["g++", "-shared", *watching, *map(str, objects), "-o", str(linked)], check=True)
        linked.rename(module)


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
