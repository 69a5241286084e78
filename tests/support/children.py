"""Child processes for tests: forked, talked to by lines, ended for certain."""

import faulthandler
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 120.0


class Channel:
    """One end of a conversation by lines."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._heard = b""

    def tell(self, line: str) -> None:
        self._end.sendall(line.encode() + b"\n")

    def hear(self, seconds: float = PATIENCE_SECONDS) -> str:
        """The next line; AssertionError when none comes."""
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self._end], [], [], seconds)
            assert readable, f"nothing was heard for {seconds} s"
            got = self._end.recv(65536)
            assert got, "the other side is gone"
            self._heard += got
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()

    def close(self) -> None:
        self._end.close()


class Child(Channel):
    """A forked child that runs `work`; killed, if it still lives, when its block ends.

    What the child raises is printed by it and makes `join` fail.
    """

    def __init__(self, work: Callable[[Channel], None]) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _run(work, Channel(theirs))
        theirs.close()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        if self.status is None:
            self.signal(signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for an end without a complaint."""
        descriptor = os.pidfd_open(self.pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
        assert ended, f"the child did not end within {seconds} s"
        _, self.status = os.waitpid(self.pid, 0)
        assert self.status == 0, f"the child ended with status {self.status}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self.status is None:
                self.join()
        finally:
            self.kill()
            self.close()


@contextmanager
def victim(work: Callable[[Channel], None]) -> Iterator[Child]:
    """A child that tells one line when it is ready, and is killed when the block ends."""
    child = Child(work)
    try:
        yield child
    finally:
        child.kill()
        child.close()


def sleep_for_ever() -> None:
    while True:
        signal.pause()


def _run(work: Callable[[Channel], None], channel: Channel) -> None:
    """In the child: never returns, and runs nothing of the parent's on its way out."""
    status = 1
    faulthandler.disable()
    try:
        work(channel)
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)
