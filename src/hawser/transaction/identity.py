"""Names of transactions, and the label that every entry of a transaction carries.

An xid is reused. Each use of it is an *incarnation*; the higher of two incarnations is the later one. A shard
rejects requests about an earlier incarnation than it knows, so a late request cannot join, commit or roll
back the next use of the same xid.

A transaction of Hawser's own runs on a *lane*: an xid that belongs to one client, which uses it for one
transaction after another and counts incarnations from 1. By beginning the next incarnation the client
confirms that it knows the outcome of the one before, so a shard remembers one outcome for each lane,
regardless of the number of transactions. The coordinator shard assigns the incarnations of other xids.

The label is the transaction's id in the header of an entry (`hawser.log.entry`):

    0   format of the xid                     u32
    4   incarnation                           u64, from 1
    12  owner: a hash of the session's name   u64
    20  number of the operation               u32, from 1 for each worker; 0 is no operation
    24  worker                                u16, from 1 for each session that works in the branch
    26  seconds it may stay unprepared        u16
    28  flag                                  u8
    29  length of the global id               u8
    30  global id, branch id

| flag | the entry | in place of the branch id |
|---|---|---|
| 0 | stages an operation, or ends the branch | |
| 1 | is an operation carried forward | |
| 2 | is the last operation, and commits the branch | |
| 3 | is the last operation, and commits for other shards too | the names of those shards |
| 4 | is the last operation, and prepares the branch | the name of the coordinator shard |
| 5 | is a delivery by the coordinator shard | its number and the one before it, u64; the coordinator's name |

Flags 3 to 5 are for lanes. Names of shards are separated by zero bytes. Integers are little-endian."""

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

# Hawser's own formats, "HwLn" and "HwAp"; transaction managers use smaller numbers.
LANE_FORMAT: Final = 0x48774C6E
APPLICATION_FORMAT: Final = 0x48774170

# The query of an application that writes a single batch, under a name that is never reused.
ONCE: Final = b"once"
# The prefix of applications whose batches are claims of messages.
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
# The largest number that fits the label's field.
MOST_WORKERS: Final = (1 << 16) - 1
# A number that no worker has.
NO_WORKER: Final = MOST_WORKERS + 1
# The same bound as in `commands.py`.
_MOST_NAME: Final = 200
# Keeps a label within MAX_TRANSACTION_BYTES.
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
    """The name of a transaction branch; equal if all three fields are equal."""

    format: int
    global_id: bytes
    branch_id: bytes

    def check(self) -> None:
        """Raises UsageError if this is no valid xid."""
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
    """The transaction of an entry, and the entry's part in it.

    The `last` operation on a shard also ends the branch: it prepares the branch if it names a `coordinator`,
    otherwise commits it, for the `others` too. An entry with a `delivery` has no branch on this shard:
    `coordinator` has committed it under that number, and it applies only after the delivery numbered
    `before`."""

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
        """The label in these bytes, or None. Depends on the bytes alone, so all replicas agree."""
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
        # Takes two thirds of the time of Xid(...); a replica reads a label for each entry.
        xid = _new(Xid, (form, data[_FIELDS_BYTES:middle], branch_id))
        transaction = _new(TransactionId, (xid, incarnation))
        ends = flag == _CARRIED, flag >= _COMMITS, coordinator, others, delivery, before
        return _new(cls, (transaction, number, worker, owner, timeout, *ends))


def as_last(label: bytes, coordinator: str = "", others: tuple[str, ...] = NO_SHARDS) -> bytes:
    """The encoded label of the same operation as the last one; names of shards are for lanes only."""
    before, behind = label[:_FLAG], label[_FLAG + 1 :]
    if not coordinator and not others:
        return before + _COMMITS_BYTE + behind
    flag = _PREPARES if coordinator else _COMMITS_FOR_OTHERS
    names = "\0".join(others) or coordinator
    return before + bytes((flag,)) + behind + names.encode()


def _read_names(data: bytes) -> tuple[str, ...]:
    """Names as `as_last` writes them; none if the bytes are malformed."""
    try:
        names = tuple(data.decode().split("\0"))
    except UnicodeDecodeError:
        return ()
    is_sound = len(names) <= MOST_NAMED and all(0 < len(name) <= _MOST_NAME for name in names)
    return names if is_sound else ()


def owner_of(session: str) -> int:
    """The number that stands for a session in labels."""
    return xxh3_64_intdigest(session.encode())


def coordinator_number(xid: Xid, homes: int) -> int:
    """The coordinator shard of this xid; all branches of one global id have the same."""
    return xxh3_64_intdigest(xid.global_id) % homes
