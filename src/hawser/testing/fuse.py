"""A simulated disk under a computer whose power can go in the middle of anything."""

from hawser.testing.disk import SimDisk

__all__ = ["FusedDisk", "PowerLost"]


class PowerLost(BaseException):
    """The power went before the disk got this; no handler of errors runs any more."""


class FusedDisk(SimDisk):
    """A SimDisk with a fuse: when it burns, the next change is not made and nothing after it."""

    fuse: int | None = None

    def burn_after(self, changes: int) -> None:
        """The power goes at the so-manieth change from now."""
        assert changes > 0
        self.fuse = changes

    def mend_fuse(self) -> None:
        self.fuse = None

    def _pass(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                raise PowerLost

    def create(self, name: str, size: int) -> None:
        self._pass()
        super().create(name, size)

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        self._pass()
        super().write(name, start, data)

    def truncate(self, name: str, size: int) -> None:
        self._pass()
        super().truncate(name, size)

    def sync(self, name: str) -> None:
        self._pass()
        super().sync(name)

    def rename(self, old: str, new: str) -> None:
        self._pass()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._pass()
        super().remove(name)

    def sync_names(self) -> None:
        self._pass()
        super().sync_names()
