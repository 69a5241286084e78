"""The XA interface: what each call gets in each state of a branch, as one table.

States are as the calling session sees them; a branch is in one of them for each session.

| | state | |
|---|---|---|
| U | UNKNOWN | the xid is not known, or no longer |
| A | ASSOCIATED | this session works in it |
| O | ELSEWHERE | other sessions work in it, or have suspended it; this one does not |
| S | SUSPENDED | this session has suspended it |
| E | ENDED | no session works in it any more |
| F | FAILED | only a rollback is possible: a session ended it so, or was lost, or a vote was against it |
| G, H | FAILED_ASSOCIATED, FAILED_SUSPENDED | the same; this session has not learned it yet |
| X | TIMED_OUT | it was not prepared in time; only a rollback is possible |
| Y, Z | TIMED_OUT_ASSOCIATED, TIMED_OUT_SUSPENDED | the same; this session has not learned it yet |
| N | PREPARING | votes are being collected; it will wait for a decision |
| M | COMMITTING | votes are being collected; if all are for it, it is committed |
| P | PREPARED | only a decision ends it, neither time nor the loss of a session |
| C, B | COMMITTED, ROLLED_BACK | it has ended; the xid may be used again |
| K, R | HEURISTIC_COMMIT, HEURISTIC_ROLLBACK | a person has decided, until that is forgotten |

A cell is the code that the caller gets. `..` means that the call waits for the votes and is then answered by
the cell of the next state. Contradicting flags are refused before anything changes, a timeout above the
maximum is an invalid argument in every state, and a session that is associated with one xid cannot start work
in another (illegal-state).

This is the table of AMQP 0-10 as brokers implement it, with these corrections: joining a branch that can only
be rolled back says so at once; a repeated prepare gets the same vote, also after a vote against; suspending
work without an association is an error; a repeated commit or rollback is ok; a late one learns the other's
outcome, by its code or, for a rollback after a commit, as illegal-state with the outcome; heuristic outcomes
are reported until they are forgotten. HEUR_MIX never occurs, because a transaction cannot be committed on one
shard and rolled back on another.
"""

from enum import IntEnum, StrEnum
from typing import Final

__all__ = ["RECOVERABLE", "TABLE", "Call", "Code", "State"]


class Code(IntEnum):
    """The result of a call. The numbers are stored; a number is never reused."""

    OK = 0
    READONLY = 1
    PENDING = 2
    NOT_FOUND = 3
    ILLEGAL_STATE = 4
    COMMAND_INVALID = 5
    NOT_ALLOWED = 6
    INVALID_ARGUMENT = 7
    RB_ROLLBACK = 8
    RB_TIMEOUT = 9
    HEUR_COM = 10
    HEUR_RB = 11
    HEUR_MIX = 12

    @property
    def word(self) -> str:
        """The code as users read it."""
        return self.name.lower().replace("_", "-")


class State(StrEnum):
    """The state of a transaction as one session sees it."""

    UNKNOWN = "U"
    ASSOCIATED = "A"
    ELSEWHERE = "O"
    SUSPENDED = "S"
    ENDED = "E"
    FAILED = "F"
    FAILED_ASSOCIATED = "G"
    FAILED_SUSPENDED = "H"
    TIMED_OUT = "X"
    TIMED_OUT_ASSOCIATED = "Y"
    TIMED_OUT_SUSPENDED = "Z"
    PREPARING = "N"
    COMMITTING = "M"
    PREPARED = "P"
    COMMITTED = "C"
    ROLLED_BACK = "B"
    HEURISTIC_COMMIT = "K"
    HEURISTIC_ROLLBACK = "R"


# The states that a transaction manager has to end: prepared, or heuristic and not forgotten.
RECOVERABLE: Final = (State.PREPARED, State.HEURISTIC_COMMIT, State.HEURISTIC_ROLLBACK)


class Call(IntEnum):
    """A call with its flags. The numbers are stored; a number is never reused."""

    START = 1
    START_JOIN = 2
    START_RESUME = 3
    START_JOIN_RESUME = 4
    END = 5
    END_FAIL = 6
    END_SUSPEND = 7
    END_FAIL_SUSPEND = 8
    PREPARE = 9
    COMMIT_ONE_PHASE = 10
    COMMIT = 11
    ROLLBACK = 12
    FORGET = 13
    GET_TIMEOUT = 14
    SET_TIMEOUT = 15


_CELLS: Final = {
    "ok": Code.OK,
    "..": Code.PENDING,
    "nf": Code.NOT_FOUND,
    "il": Code.ILLEGAL_STATE,
    "ci": Code.COMMAND_INVALID,
    "na": Code.NOT_ALLOWED,
    "rb": Code.RB_ROLLBACK,
    "rt": Code.RB_TIMEOUT,
    "hc": Code.HEUR_COM,
    "hr": Code.HEUR_RB,
}

_TABLE: Final = """
                   U  A  O  S  E  F  G  H  X  Y  Z  N  M  P  C  B  K  R
START              ok na na na na na na na na na na na na na ok ok na na
START_JOIN         nf il ok ok ok rb rb rb rt rt rt ci ci ci nf nf hc hr
START_RESUME       ci ci ci ok ci ci ci rb ci ci rt ci ci ci ci ci ci ci
START_JOIN_RESUME  na na na na na na na na na na na na na na na na na na
END                il ok il il il il rb il il rt il il il il il il il il
END_FAIL           il rb il il il il rb il il rt il il il il il il il il
END_SUSPEND        il ok il il il il rb il il rt il il il il il il il il
END_FAIL_SUSPEND   na na na na na na na na na na na na na na na na na na
PREPARE            nf il il il .. rb rb rb rt rt rt .. il ok nf rb il il
COMMIT_ONE_PHASE   nf il il il .. rb rb rb rt rt rt il .. il ok rb hc hr
COMMIT             nf il il il il rb rb rb rt rt rt il il ok ok rb hc hr
ROLLBACK           nf il il il ok ok ok ok rt rt rt ok ok ok il ok hc hr
FORGET             nf il il il il il il il il il il il il il nf nf ok ok
GET_TIMEOUT        nf ok ok ok ok ok ok ok ok ok ok ok ok ok nf nf ok ok
SET_TIMEOUT        nf ok ok ok ok ok ok ok ok ok ok ok ok ok nf nf ok ok
"""


def _read_table() -> dict[tuple[Call, State], Code]:
    heading, *rows = (line.split() for line in _TABLE.strip().splitlines())
    return {
        (Call[row[0]], State(letter)): _CELLS[cell]
        for row in rows
        for letter, cell in zip(heading, row[1:], strict=True)
    }


TABLE: Final = _read_table()
assert len(TABLE) == len(Call) * len(State)
