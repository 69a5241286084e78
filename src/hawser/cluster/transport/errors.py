"""The errors of links.

    TransportError
    ├── Unreachable   no peer answers at the address
    ├── Refused       the peer refuses the link
    ├── LinkClosed    the link is closed, or closed before the answer came
    ├── AskTimeout    no answer within the given time
    └── AskFailed     the peer's handler failed

`was_sent` is false if the request certainly never left this process; otherwise the peer may have carried it
out.

`Malformed` is raised by code that reads what a peer sent, handlers included: the link is closed and the peer
is told why.
"""

from typing import Final

import msgspec

__all__ = [
    "MALFORMED",
    "AskFailed",
    "AskTimeout",
    "LinkClosed",
    "Malformed",
    "Refused",
    "TransportError",
    "Unreachable",
]


class TransportError(Exception):
    """The root of the errors of links."""

    was_sent = False

    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Unreachable(TransportError):
    """No connection, or no greeting in time."""


class Refused(TransportError):
    """The peer refuses the link: it belongs to another cluster, speaks another version, or gives its own
    reason."""


class LinkClosed(TransportError):
    """The link is closed; the text says by which side and why."""


class AskTimeout(TransportError):
    """No answer in time. The peer was told to stop."""


class AskFailed(TransportError):
    """The peer's handler failed; the text comes from the peer."""


class Malformed(ValueError):
    """Bytes that no correct peer sends. Their link is closed."""


# The errors of msgspec's decoders: text that is not UTF-8 and nesting that is too deep have their own.
MALFORMED: Final = (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
