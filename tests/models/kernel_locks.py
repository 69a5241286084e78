"""Open-file-description locks from Python, and a process that holds one until it is ended.

Run as a script it locks a byte in the way it is told, prints the pid of the child it forked (or 0) and
waits for a signal. It imports nothing of the project, so that it starts fast.
"""

import argparse
import ctypes
import fcntl
import mmap
import os
import signal
import struct

F_OFD_GETLK, F_OFD_SETLK = 36, 37
MADV_DONTFORK = 10
PAGE = mmap.PAGESIZE
READ, WRITE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def flock(kind: int, byte: int, count: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, count, 0)


def open_file(path: str, flags: int = os.O_RDWR) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def lock(descriptor: int, byte: int, kind: int = WRITE, count: int = 1) -> bool:
    """False when somebody else's lock is in the way."""
    try:
        fcntl.fcntl(descriptor, F_OFD_SETLK, flock(kind, byte, count))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(descriptor: int, byte: int, count: int = 1) -> None:
    lock(descriptor, byte, NONE, count)


def others_hold(descriptor: int, byte: int, kind: int = WRITE) -> bool:
    """Whether a lock of that kind would be refused to this description."""
    answer = fcntl.fcntl(descriptor, F_OFD_GETLK, flock(kind, byte, 1))
    return bool(struct.unpack("hhqqi4x", answer)[0] != NONE)


def held(path: str, byte: int) -> bool:
    """Whether anybody holds a lock on the byte, asked through a description of its own."""
    descriptor = open_file(path)
    try:
        return others_hold(descriptor, byte)
    finally:
        os.close(descriptor)


def anchor(descriptor: int, dont_fork: bool) -> int:
    """Map one page through the description, so that it lives as long as the address space."""
    address: int = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if dont_fork and libc.madvise(address, PAGE, MADV_DONTFORK):
        raise OSError(ctypes.get_errno(), "madvise")
    return address


def fork_as_told(descriptor: int, child: str) -> int:
    pid = os.fork()
    if pid == 0:
        if child == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if child == "close":
            os.close(descriptor)
        os.write(1, b"child is ready\n")
        signal.pause()
        os._exit(0)
    if child == "stop":
        os.waitpid(pid, os.WUNTRACED)
    return pid


def hold() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("byte", type=int)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--anchor", choices=["none", "plain", "dontfork"], default="none")
    parser.add_argument("--close", action="store_true")
    parser.add_argument("--child", choices=["none", "keep", "close", "stop"], default="none")
    parser.add_argument("--exec", action="store_true")
    told = parser.parse_args()
    descriptor = open_file(told.path)
    if not lock(descriptor, told.byte, READ if told.shared else WRITE):
        raise SystemExit("the byte is taken")
    if told.anchor != "none":
        anchor(descriptor, told.anchor == "dontfork")
    if told.close:
        os.closerange(descriptor, descriptor + 1)
    if told.exec:
        os.execv("/bin/sh", ["sh", "-c", "echo 0; read line"])
    child = fork_as_told(descriptor, told.child) if told.child != "none" else 0
    os.write(1, f"{child}\n".encode())
    signal.pause()


if __name__ == "__main__":
    hold()
