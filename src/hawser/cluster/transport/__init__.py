"""Links between processes: one connection for each pair, which carries messages and requests both ways.

`listen` and `dial` make links, and `Dialer` keeps one open; a `Handler` receives what arrives.
docs/formats/wire.md describes the bytes.
"""

from hawser.cluster.transport.address import Address, BadAddress
from hawser.cluster.transport.dialer import Dialer, Server, dial, listen
from hawser.cluster.transport.errors import (
    AskFailed,
    AskTimeout,
    LinkClosed,
    Malformed,
    Refused,
    TransportError,
    Unreachable,
)
from hawser.cluster.transport.event_loop import new_event_loop, run
from hawser.cluster.transport.frames import MAX_FRAME_BYTES
from hawser.cluster.transport.handshake import VERSIONS, Identity, PeerRole
from hawser.cluster.transport.incoming_requests import Handler, Request
from hawser.cluster.transport.link import Link
from hawser.cluster.transport.send_queue import Body
from hawser.cluster.transport.settings import Counters, LinkSettings

__all__ = [
    "MAX_FRAME_BYTES",
    "VERSIONS",
    "Address",
    "AskFailed",
    "AskTimeout",
    "BadAddress",
    "Body",
    "Counters",
    "Dialer",
    "Handler",
    "Identity",
    "Link",
    "LinkClosed",
    "LinkSettings",
    "Malformed",
    "PeerRole",
    "Refused",
    "Request",
    "Server",
    "TransportError",
    "Unreachable",
    "dial",
    "listen",
    "new_event_loop",
    "run",
]
