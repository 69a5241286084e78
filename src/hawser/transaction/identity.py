"""Names of transactions, and the label that every entry of one carries.

An xid is reused: each use of it is an *incarnation*, and of two the higher one is the later. Whoever is told
something about an earlier incarnation than it knows turns it away, so nothing that comes late can join,
commit or roll back the next use of the same xid.

A transaction of Hawser's own runs on a *lane*: an xid that one client has to itself and uses for one
transaction after the other, counting incarnations from 1. By beginning the next one the client says that it
knows what became of the one before; so a shard remembers one outcome for each lane, however many transactions
there were. Incarnations of other xids are given out by home.

The label is the transaction's id in the header of an entry (`hawser.log.entry`):

    0   format of the xid                     u32
    4   incarnation                           u64, from 1
    12  owner: a hash of the session's name   u64
    20  number of the operation               u32, from 1 for each worker; 0 is no operation
    24  worker                                u16, from 1 for each session that works in the branch
    26  seconds it may stay unprepared        u16
    28  1 if it is carried forward; of the last one 2 if it commits, 3 if it commits for others, too, 4 if it
        prepares; 5 if it is delivered; otherwise 0   u8
    29  length of the global id               u8
    30  global id, branch id; with 3 to 5, which are for lanes, the others or home instead of the branch id:
        names of shards, each but the last with a zero behind it; with 5 two numbers in front of that, u64

Integers are little-endian.
"""

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from hawser.errors import UsageError
from hawser.log.entry import MAX_TRANSACTION_BYTES

__all__ = [
    "APPLICATION_FORMAT",
    "CLAIMS",
    "DEFAULT_TIMEOUT_SECONDS",
    "LANE_FORMAT",
    "MAX_TIMEOUT_SECONDS",
    "MOST_NAMED",
    "MOST_WORKERS",
    "NO_WORKER",
    "ONCE",
    "Label",
    "TransactionId",
    "Xid",
    "as_last",
    "coordinator_number",
    "owner_of",
]

# Formats that are Hawser's own, far from those that transaction managers use: "HwLn" and "HwAp".
LANE_FORMAT: Final = 0x48774C6E
APPLICATION_FORMAT: Final = 0x48774170

# The query of an application that writes one batch, under a name that nobody else ever has.
ONCE: Final = b"once"
# The applications whose batches are claims of messages begin so, and no others.
CLAIMS: Final = b"claim:"

DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_TIMEOUT_SECONDS: Final = 3600

_FIELDS: Final = struct.Struct("<IQQIHHBB")
_FIELDS_BYTES: Final = _FIELDS.size
_FLAG: Final = _FIELDS_BYTES - 2
_pack: Final = _FIELDS.pack
_unpack: Final = _FIELDS.unpack_from
_NUMBERS: Final = struct.Struct("<QQ")
_MOST_ID_BYTES: Final = 255
# As a label has them.
MOST_WORKERS: Final = (1 << 16) - 1
# Never the number of a worker.
NO_WORKER: Final = MOST_WORKERS + 1
# As commands have them.
_MOST_NAME: Final = 200
# So a label is never longer than an entry can hold.
MOST_NAMED: Final = 64
assert _FIELDS_BYTES + _MOST_ID_BYTES + MOST_NAMED * (4 * _MOST_NAME + 1) <= MAX_TRANSACTION_BYTES
NO_SHARDS: Final[tuple[str, ...]] = ()
_new: Final = tuple.__new__
_CARRIED: Final = 1
_COMMITS: Final = 2
_COMMITS_BYTE: Final = bytes((_COMMITS,))
_COMMITS_FOR_OTHERS: Final = 3
_PREPARES: Final = 4
_DELIVERED: Final = 5
assert MAX_TIMEOUT_SECONDS < 1 << 16


class Xid(NamedTuple):
    """The name of a branch of a transaction; two are the same if all three fields are."""

    format: int
    global_id: bytes
    branch_id: bytes

    def check(self) -> None:
        """UsageError if it cannot be one."""
        form, ids = self.format, (self.global_id, self.branch_id)
        is_typed = type(form) is int and all(isinstance(each, bytes) for each in ids)
        is_short = is_typed and all(len(each) <= _MOST_ID_BYTES for each in ids)
        if not (is_short and 0 <= form < 1 << 32 and self.global_id):
            raise UsageError(
                f"{self!r} is not an xid: its format is an int of 32 bits, its global id has 1 to "
                f"{_MOST_ID_BYTES} bytes and its branch id at most {_MOST_ID_BYTES}"
            )

    def __str__(self) -> str:
        return f"{self.format}:{self.global_id.hex()}:{self.branch_id.hex()}"


class TransactionId(NamedTuple):
    """One use of an xid."""

    xid: Xid
    incarnation: int

    def __str__(self) -> str:
        return f"{self.xid}#{self.incarnation}"


class Label(NamedTuple):
    """What an entry says of the transaction it belongs to. An operation that is the `last` one here ends the
    branch as well: prepares it, with a `coordinator`, or commits it, for the `others` too. With a `delivery`
    it has no branch here: `coordinator` has committed it under that number, and wants the one `before` it to
    be here."""

    id: TransactionId
    number: int = 0
    worker: int = 0
    owner: int = 0
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    carried: bool = False
    last: bool = False
    coordinator: str = ""
    others: tuple[str, ...] = NO_SHARDS
    delivery: int = 0
    before: int = 0

    def encode(self) -> bytes:
        transaction, number, worker, owner, timeout, carried, last, coordinator, others, delivery, before = (
            self
        )
        (form, global_id, branch_id), incarnation = transaction
        assert not (coordinator or others) or (last and not branch_id)
        flag = _DELIVERED if delivery else carried
        fields = _pack(form, incarnation, owner, number, worker, timeout, flag, len(global_id))
        label = fields + global_id + branch_id
        if delivery:
            assert last and coordinator and before < delivery
            return label + _NUMBERS.pack(delivery, before) + coordinator.encode()
        return as_last(label, coordinator, others) if last else label

    @classmethod
    def read(cls, data: bytes) -> "Label | None":
        """The label in these bytes; None if they are none. Depends on nothing else: replicas judge alike."""
        if len(data) <= _FIELDS_BYTES:
            return None
        form, incarnation, owner, number, worker, timeout, flag, length = _unpack(data)
        middle = _FIELDS_BYTES + length
        sound = length > 0 and middle <= len(data)
        if not sound or not 0 < incarnation < 1 << 63 or flag > _DELIVERED or timeout > MAX_TIMEOUT_SECONDS:
            return None
        branch_id: bytes = data[middle:]
        coordinator, others, delivery, before = "", NO_SHARDS, 0, 0
        if flag > _COMMITS:
            if flag == _DELIVERED:
                if len(branch_id) <= _NUMBERS.size:
                    return None
                delivery, before = _NUMBERS.unpack_from(branch_id)
                branch_id = branch_id[_NUMBERS.size :]
                if before >= delivery or delivery >= 1 << 63:
                    return None
            others = _read_names(branch_id)
            if not others or form != LANE_FORMAT:
                return None
            branch_id = b""
            if flag >= _PREPARES:
                coordinator, *rest = others
                others = NO_SHARDS
                if rest:
                    return None
        elif len(branch_id) > _MOST_ID_BYTES:
            return None
        # Two thirds of the time of Xid(...), and a replica reads one for each entry.
        xid = _new(Xid, (form, data[_FIELDS_BYTES:middle], branch_id))
        transaction = _new(TransactionId, (xid, incarnation))
        ends = flag == _CARRIED, flag >= _COMMITS, coordinator, others, delivery, before
        return _new(cls, (transaction, number, worker, owner, timeout, *ends))


def as_last(label: bytes, coordinator: str = "", others: tuple[str, ...] = NO_SHARDS) -> bytes:
    """The encoded label of the same operation, as the last one: of a lane, if there are names."""
    before, behind = label[:_FLAG], label[_FLAG + 1 :]
    if not coordinator and not others:
        return before + _COMMITS_BYTE + behind
    flag = _PREPARES if coordinator else _COMMITS_FOR_OTHERS
    names = "\0".join(others) or coordinator
    return before + bytes((flag,)) + behind + names.encode()


def _read_names(data: bytes) -> tuple[str, ...]:
    """As `as_last` writes them; none if nobody writes them so."""
    try:
        names = tuple(data.decode().split("\0"))
    except UnicodeDecodeError:
        return ()
    is_sound = len(names) <= MOST_NAMED and all(0 < len(name) <= _MOST_NAME for name in names)
    return names if is_sound else ()


def owner_of(session: str) -> int:
    """A session as labels name it."""
    return xxh3_64_intdigest(session.encode())


def coordinator_number(xid: Xid, homes: int) -> int:
    """Which of so many homes decides about this xid; all branches of one global id have the same."""
    return xxh3_64_intdigest(xid.global_id) % homes
