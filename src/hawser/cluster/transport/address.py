"""Addresses as people write them: `host:port`, `127.0.0.1:port`, `[::1]:port`."""

from typing import NamedTuple, Self

__all__ = ["Address", "BadAddress"]

_HIGHEST_PORT = (1 << 16) - 1


class BadAddress(ValueError):
    """This is not an address; the text says what one looks like."""


class Address(NamedTuple):
    """The address of a listener. Port 0 lets the system choose one, and is for listening only."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `text`; BadAddress if it is not valid."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise BadAddress(f"{text!r} is no address: write IPv6 in brackets, as in [::1]:7410")
        if not colon or not host or any(character in host for character in "[]/@ "):
            raise BadAddress(f"{text!r} is no address: write host:port, as in 10.0.0.1:7410 or [::1]:7410")
        if not (port.isascii() and port.isdigit()) or int(port) > _HIGHEST_PORT:
            raise BadAddress(f"{text!r} is no address: its port must be a number from 0 to {_HIGHEST_PORT}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
