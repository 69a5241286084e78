"""One participant entry: life byte, recovery byte, and the word {incarnation, state}.

Owners A and B register, work and leave, several times; recoverers X and Y recover. The entry guards one
reference bit, which does not say whose incarnation set it, and one claim word, which does. Everybody is
killed anywhere. An owner registers under the recovery byte: word free, life byte locked, word active,
recovery byte dropped. Dead is: word active, and then the life byte found free; then CAS active to dead.

What must hold: one living owner at most; nobody else clears a living owner's bit or claim or marks it dead;
a free entry has nothing left; and what is dead can be seen to be dead, whoever is stopped where.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .explorer import Model

FREE, ACTIVE, DEAD = "free", "active", "dead"
OWNING = ("set bit", "claim", "let go")


class Word(NamedTuple):
    incarnation: int = 0
    state: str = FREE


class Process(NamedTuple):
    name: str
    at: str = "out"
    incarnation: int = 0


class State(NamedTuple):
    word: Word
    life: str
    recovery: str
    bit: bool
    claim: int
    processes: tuple[Process, ...]
    kills: int
    registrations: int
    wrong: str = ""


Move = tuple[str, State]


def owners(state: State) -> list[Process]:
    return [p for p in state.processes if p.name in "AB" and p.at in OWNING]


def go(state: State, k: int, at: str, incarnation: int = 0) -> State:
    process = Process(state.processes[k].name, at, incarnation)
    return state._replace(processes=(*state.processes[:k], process, *state.processes[k + 1 :]))


def blame(state: State, wrong: bool, what: str) -> State:
    return state._replace(wrong=what) if wrong and not state.wrong else state


def clear_bit(state: State) -> State:
    return blame(state, state.bit and bool(owners(state)), "bit of a living owner cleared")._replace(
        bit=False
    )


def return_claim(state: State, incarnation: int) -> State:
    if state.claim != incarnation:
        return state
    living = any(owner.incarnation == incarnation for owner in owners(state))
    return blame(state, living, "claim of a living owner returned")._replace(claim=0)


def drop_recovery(state: State, name: str) -> State:
    return state._replace(recovery="") if state.recovery == name else state


@dataclass(frozen=True)
class Registration:
    kills: int = 2
    registrations: int = 3
    bug: str = ""

    def model(self) -> Model[State]:
        processes = tuple(Process(name) for name in "ABXY")
        initial = State(Word(), "", "", False, 0, processes, self.kills, self.registrations)
        return Model(initial, self.successors, self.check)

    def successors(self, state: State) -> Iterator[Move]:
        for k, process in enumerate(state.processes):
            moves = self.owner_moves if process.name in "AB" else self.recoverer_moves
            for label, following in moves(state, k, process):
                yield f"{process.name} {label}", following
            if state.kills and process.at != "out":
                killed = drop_recovery(go(state, k, "out"), process.name)
                life = "" if killed.life == process.name else killed.life
                yield f"{process.name} KILLED", killed._replace(life=life, kills=state.kills - 1)

    def owner_moves(self, state: State, k: int, process: Process) -> Iterator[Move]:
        name, word = process.name, state.word
        if process.at == "out":
            if state.registrations and not state.recovery:
                locked = state._replace(recovery=name, registrations=state.registrations - 1)
                yield "locks the recovery byte", go(locked, k, "look")
        elif process.at == "look":
            yield self.look(state, k, process)
        elif process.at == "old bit":
            yield "clears the old bit", go(clear_bit(state), k, "old claim", process.incarnation)
        elif process.at == "old claim":
            yield "returns the old claim", go(return_claim(state, process.incarnation), k, "old entry")
        elif process.at == "old entry":
            yield "frees the old entry", go(state._replace(word=Word(word.incarnation, FREE)), k, "life")
        elif process.at == "life":
            if self.bug == "active before life":
                active = Word(word.incarnation + 1, ACTIVE)
                yield "word active early", go(state._replace(word=active), k, "late life", active.incarnation)
            elif not state.life:
                yield "locks the life byte", go(state._replace(life=name), k, "activate")
            else:
                yield "life byte held by a leaver, gives up", go(drop_recovery(state, name), k, "out")
        elif process.at == "late life":
            if not state.life:
                yield (
                    "locks the life byte late",
                    go(state._replace(life=name, recovery=""), k, "set bit", process.incarnation),
                )
        elif process.at == "activate":
            active = Word(word.incarnation + 1, ACTIVE)
            registered = drop_recovery(state._replace(word=active), name)
            yield "word active, drops the recovery byte", go(registered, k, "set bit", active.incarnation)
        else:
            yield from self.owning_moves(state, k, process)

    def look(self, state: State, k: int, process: Process) -> Move:
        word = state.word
        if word.state == FREE:
            return "sees free", go(state, k, "life")
        if word.state == DEAD:
            return "sees dead", go(state, k, "old bit", word.incarnation)
        if not state.life:
            marked = state._replace(word=Word(word.incarnation, DEAD))
            return "owner is dead, marks it", go(marked, k, "old bit", word.incarnation)
        return "entry in use, gives up", go(drop_recovery(state, process.name), k, "out")

    def owning_moves(self, state: State, k: int, process: Process) -> Iterator[Move]:
        mine = process.incarnation
        if process.at == "set bit":
            yield "sets its bit", go(state._replace(bit=True), k, "claim", mine)
        elif process.at == "claim":
            yield "claims", go(state._replace(claim=mine), k, "let go", mine)
        elif process.at == "let go":
            lost = not state.bit or state.claim != mine
            clean = blame(state, lost, "living owner found its bit or claim gone")._replace(
                bit=False, claim=0
            )
            at = "unlock early" if self.bug == "unlocks before free" else "free"
            yield "clears its bit and claim", go(clean, k, at, mine)
        elif process.at == "free":
            yield "word free", go(state._replace(word=Word(mine, FREE)), k, "unlock", mine)
        elif process.at == "unlock":
            yield "unlocks the life byte", go(state._replace(life=""), k, "out")
        elif process.at == "unlock early":
            yield "unlocks the life byte first", go(state._replace(life=""), k, "free late", mine)
        else:
            another = state.word.state == ACTIVE and state.word != Word(mine, ACTIVE)
            freed = blame(state, another, "freed another's entry")._replace(word=Word(mine, FREE))
            yield "word free, late", go(freed, k, "out")

    def recoverer_moves(self, state: State, k: int, process: Process) -> Iterator[Move]:
        name, word, target = process.name, state.word, process.incarnation
        if process.at == "out":
            if word.state != FREE:
                yield (
                    f"reads {word.state}",
                    go(state, k, "probe" if word.state == ACTIVE else "claims", word.incarnation),
                )
        elif process.at == "probe":
            yield (
                f"life byte is {'held' if state.life else 'free'}",
                go(state, k, "out" if state.life else "mark", target),
            )
        elif process.at == "mark":
            if word != Word(target, ACTIVE):
                yield "CAS active to dead lost", go(state, k, "out")
                return
            living = any(
                p.name in "AB" and p.incarnation == target and p.at != "out" for p in state.processes
            )
            marked = blame(state, living, "living owner marked dead")._replace(word=Word(target, DEAD))
            yield "CAS active to dead", go(marked, k, "claims", target)
        elif process.at == "claims":
            yield "returns the claim by CAS", go(return_claim(state, target), k, "lock", target)
        elif process.at == "lock":
            if self.bug == "bits without the byte":
                yield "clears the bit without the recovery byte", go(clear_bit(state), k, "out")
            elif not state.recovery:
                at = "bits" if self.bug == "word not re-read" else "re-read"
                yield "locks the recovery byte", go(state._replace(recovery=name), k, at, target)
            else:
                yield "somebody else recovers", go(state, k, "out")
        elif process.at == "re-read":
            yield "re-reads the word", go(state, k, "bits" if word == Word(target, DEAD) else "end")
        elif process.at == "bits":
            yield "clears the bit", go(clear_bit(state), k, "entry")
        elif process.at == "entry":
            yield "frees the entry", go(state._replace(word=Word(word.incarnation, FREE)), k, "end")
        else:
            yield "unlocks the recovery byte", go(drop_recovery(state, name), k, "out")

    def check(self, state: State) -> str | None:
        if state.wrong:
            return state.wrong
        living = owners(state)
        if len(living) > 1:
            return "two living owners of one entry"
        if living and state.word != Word(living[0].incarnation, ACTIVE):
            return "living owner's word is not active"
        if state.word.state == FREE and not living and (state.bit or state.claim):
            return "free entry with a bit or a claim left"
        claimant_lives = any(
            p.name in "AB" and p.incarnation == state.claim and p.at != "out" for p in state.processes
        )
        if state.claim and not claimant_lives and state.word.state == ACTIVE and state.life:
            return "the death of a claimant cannot be seen"
        return None
