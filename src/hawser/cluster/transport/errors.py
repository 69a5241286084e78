"""What can go wrong between two processes.

    TransportError
    ├── Unreachable   nobody answers at the address
    ├── Refused       somebody answers, and does not want this peer
    ├── LinkClosed    the link is closed, or was before the answer came
    ├── AskTimeout    no answer within the given time
    └── AskFailed     the peer failed on the request and says so

`was_sent` is false where the request certainly never left this process; otherwise the peer may have carried
it out.

`Malformed` is raised by whoever reads what a peer sent, handlers included: the link is then closed and the
peer is told why.
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
    """Root of the errors of links."""

    was_sent = False

    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Unreachable(TransportError):
    """No connection, or no hello in time."""


class Refused(TransportError):
    """The peer is there and says no: another cluster, another protocol, or its own reason."""


class LinkClosed(TransportError):
    """The link is closed; the text says by whom and why."""


class AskTimeout(TransportError):
    """No answer in time. The peer was told that nobody waits any more."""


class AskFailed(TransportError):
    """The peer's handler failed. The text is the peer's."""


class Malformed(ValueError):
    """Bytes that no sound peer sends. The link they came by is closed."""


# Whatever a decoder of msgspec raises on bytes it was not made for: text that is no UTF-8 and arrays within
# arrays without end are errors of their own.
MALFORMED: Final = (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
