"""Checks of the host: versions, kernel features, shared memory, login manager."""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ParserError
from pathlib import Path
from typing import Final

import hawser
from hawser.cli.doctor import Finding
from hawser.cli.output import byte_size

__all__ = ["EXTRAS", "host_checks", "remove_ipc"]

_SMALL_BYTES: Final = 64 << 20
_LITTLE_BYTES: Final = 1 << 20
_FUTEX_WAITV: Final = 449
_FIRST_ORDINARY_USER: Final = 1000
# The extras of pyproject.toml, except `bench`, which is for development.
EXTRAS: Final = {
    "numpy": ("numpy",),
    "arrow": ("pyarrow",),
    "spark": ("pyspark", "pyarrow", "pandas"),
    "etcd": ("etcd3gw",),
}
# In order of precedence: a later file overrides earlier ones.
_LOGIND_FILES: Final = (
    "usr/lib/systemd/logind.conf",
    "etc/systemd/logind.conf",
    "usr/lib/systemd/logind.conf.d/*.conf",
    "run/systemd/logind.conf.d/*.conf",
    "etc/systemd/logind.conf.d/*.conf",
)


def host_checks(directory: Path) -> Iterator[Finding]:
    """Check the features of the host that a domain in `directory` needs."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    yield _versions()
    yield _extras()
    yield _proc()
    yield _memory(existing)
    yield _unnamed_files(existing)
    yield _locks(existing)
    yield _futex()
    yield remove_ipc(directory, Path("/"), os.geteuid())


def _versions() -> Finding:
    packages = ", ".join(f"{name} {_version_of(name)}" for name in ("msgspec", "click", "rich"))
    system = f"Python {platform.python_version()}, Linux {platform.release()}, {platform.machine()}"
    return Finding("versions", "ok", f"hawser {hawser.__version__}, {system}; {packages}")


def _extras() -> Finding:
    missing = [
        f"{extra} (pip install 'hawser-bus[{extra}]')"
        for extra, packages in EXTRAS.items()
        if any(_version_of(package) == "?" for package in packages)
    ]
    return Finding("extras", "ok", f"not installed: {', '.join(missing)}" if missing else "all installed")


def _version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _proc() -> Finding:
    readable = os.access("/proc/sys/kernel/random/boot_id", os.R_OK) and os.access("/proc/self/stat", os.R_OK)
    if readable:
        return Finding("/proc", "ok", "mounted and readable")
    return Finding(
        "/proc", "fail", "cannot be read", "mount it; Hawser reads the boot id and its own files there"
    )


def _memory(existing: Path) -> Finding:
    found = os.statvfs(existing)
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    kind = _filesystem_of(existing)
    text = f"{byte_size(free)} free of {byte_size(size)} on {kind}"
    grow = f"enlarge it: mount -o remount,size=2G {_mount_of(existing)}; in a container: --shm-size=2g"
    if free < _LITTLE_BYTES:
        return Finding("memory", "fail", text, f"delete topics (hawser topic list), or {grow}")
    if kind not in ("tmpfs", "ramfs", "hugetlbfs"):
        advice = "put the domain into /dev/shm; here the kernel writes messages to a disk"
        return Finding("memory", "warn", text, advice)
    if free < _SMALL_BYTES:
        return Finding("memory", "warn", text, f"delete topics (hawser topic list), or {grow}")
    if size <= _SMALL_BYTES:
        return Finding("memory", "warn", f"{text}, the default of containers", grow)
    return Finding("memory", "ok", text)


def _mounts() -> Iterator[tuple[str, str]]:
    """The mount point and type of every mounted filesystem."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        before, separator, behind = line.partition(" - ")
        if separator:
            yield before.split()[4].replace("\\040", " "), behind.split()[0]


def _mount_of(path: Path) -> str:
    points = [point for point, _ in _mounts() if path.resolve().is_relative_to(point)]
    return max(points, key=len, default="/")


def _filesystem_of(path: Path) -> str:
    point = _mount_of(path)
    kinds = [kind for mounted, kind in _mounts() if mounted == point]
    return kinds[-1] if kinds else "an unknown filesystem"


def _probe(existing: Path, probe: Callable[[int], None], check: str, good: str, advice: str) -> Finding:
    """Call `probe` with an unnamed file in that directory."""
    try:
        descriptor = os.open(existing, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        return Finding(check, "warn", f"not tried: {existing}: {error.strerror}", "run as the domain's user")
    except OSError as error:
        return Finding(check, "fail", f"{existing}: {error.strerror}", advice)
    try:
        probe(descriptor)
    except OSError as error:
        return Finding(check, "fail", f"{existing}: {error.strerror}", advice)
    finally:
        os.close(descriptor)
    return Finding(check, "ok", good)


def _unnamed_files(existing: Path) -> Finding:
    advice = "put the domain on a tmpfs; Hawser creates topics as unnamed files, so that they appear complete"
    return _probe(existing, lambda _: None, "O_TMPFILE", "unnamed files can be created", advice)


def _locks(existing: Path) -> Finding:
    advice = (
        "use a filesystem with open-file-description locks (Linux 3.15 or newer); they detect dead processes"
    )
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)

    def probe(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)

    return _probe(existing, probe, "OFD locks", "bytes can be locked", advice)


def _futex() -> Finding:
    library = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    library.syscall(ctypes.c_long(_FUTEX_WAITV), None, 0, 0, None, 0)
    if ctypes.get_errno() == errno.EINVAL:
        return Finding("futex_waitv", "ok", "available; event loops wait for many topics at once")
    return Finding(
        "futex_waitv",
        "warn",
        f"not available ({os.strerror(ctypes.get_errno())}); event loops poll once a millisecond instead",
        "use Linux 5.16 or newer, and permit the call in containers",
    )


def remove_ipc(directory: Path, root: Path, user: int) -> Finding:
    """Check whether the login manager removes shared memory when its user logs out."""
    check = "RemoveIPC"
    if user < _FIRST_ORDINARY_USER:
        return Finding(check, "ok", f"does not apply to user {user}, a system user")
    if not directory.is_relative_to("/dev/shm"):
        return Finding(check, "ok", "does not apply to a domain outside /dev/shm")
    if not (root / "run/systemd/system").exists():
        return Finding(check, "ok", "does not apply without systemd")
    value = "yes"
    for pattern in _LOGIND_FILES:
        for file in sorted(root.glob(pattern)):
            value = _setting_in(file) or value
    if value.lower() in ("no", "false", "off", "0"):
        return Finding(check, "ok", "the login manager does not remove shared memory")
    return Finding(
        check,
        "warn",
        "the login manager removes topics when the last session of their user ends",
        "set RemoveIPC=no in /etc/systemd/logind.conf, or run: loginctl enable-linger",
    )


def _setting_in(file: Path) -> str | None:
    parser = ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(OSError, ParserError, UnicodeDecodeError):
        parser.read(file, encoding="utf-8")
    return parser.get("Login", "RemoveIPC", fallback=None)
