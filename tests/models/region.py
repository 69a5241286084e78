"""The life of a region's file: created, joined, removed, removed by force, created anew.

A region is one inode. Every handle holds a shared lock on the inode's use byte for as long as it is open;
"nobody alive" is what F_OFD_GETLK for a write lock on that byte says through one's own description. The
header word is open, closing or closed. Only the holder of the name's byte in the domain's lock file unlinks.

What must hold: two living users of one name never work on different open inodes; a user of an open inode
reaches it by its path; only force closes an inode under a living user; and a joiner alone always gets in,
unless a process stopped while removing that very name holds the name's byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .explorer import Model


class Inode(NamedTuple):
    word: str = "open"
    users: frozenset[int] = frozenset()
    forced: bool = False


class Process(NamedTuple):
    at: str = "out"
    inode: int | None = None
    purpose: str = ""  # of a removal: "leave", "force" or "renew"


class State(NamedTuple):
    path: int | None
    inodes: tuple[Inode, ...]
    processes: tuple[Process, ...]
    name_lock: int | None
    kills: int
    rounds: tuple[int, ...]


Move = tuple[str, State]


def canonical(state: State) -> State:
    """Inodes nobody can reach are dropped, the others numbered in the order they are referred to."""
    number: dict[int, int] = {}
    for inode in (state.path, *(process.inode for process in state.processes)):
        if inode is not None:
            number.setdefault(inode, len(number))
    return state._replace(
        path=None if state.path is None else number[state.path],
        inodes=tuple(state.inodes[old] for old in number),
        processes=tuple(p if p.inode is None else p._replace(inode=number[p.inode]) for p in state.processes),
    )


@dataclass(frozen=True)
class Change:
    """One process's next state: everything a step may change, applied to `state`."""

    state: State
    k: int

    def to(self, at: str, inode: int | None = None, purpose: str = "") -> "Change":
        processes = list(self.state.processes)
        processes[self.k] = Process(at, inode, purpose)
        return Change(self.state._replace(processes=tuple(processes)), self.k)

    def stay(self, at: str) -> "Change":
        process = self.state.processes[self.k]
        return self.to(at, process.inode, process.purpose)

    def word(self, inode: int, word: str, forced: bool = False) -> "Change":
        old = self.state.inodes[inode]
        return self.inode(inode, old._replace(word=word, forced=old.forced or forced))

    def use(self, inode: int) -> "Change":
        old = self.state.inodes[inode]
        return self.inode(inode, old._replace(users=old.users | {self.k}))

    def unuse(self, inode: int) -> "Change":
        old = self.state.inodes[inode]
        return self.inode(inode, old._replace(users=old.users - {self.k}))

    def inode(self, inode: int, changed: Inode) -> "Change":
        inodes = (*self.state.inodes[:inode], changed, *self.state.inodes[inode + 1 :])
        return Change(self.state._replace(inodes=inodes), self.k)

    def path(self, inode: int | None) -> "Change":
        return Change(self.state._replace(path=inode), self.k)

    def name_lock(self, held: bool) -> "Change":
        return Change(self.state._replace(name_lock=self.k if held else None), self.k)


@dataclass(frozen=True)
class Region:
    processes: int = 2
    kills: int = 2
    rounds: int = 2
    force: bool = True
    ephemeral: bool = False
    bug: str = ""

    def model(self) -> Model[State]:
        initial = State(
            path=None,
            inodes=(),
            processes=(Process(),) * self.processes,
            name_lock=None,
            kills=self.kills,
            rounds=(self.rounds,) * self.processes,
        )
        return Model(initial, self.successors, self.check)

    def successors(self, state: State) -> Iterator[Move]:
        for k, process in enumerate(state.processes):
            for label, change in self.moves(state, k):
                yield f"J{k} {label}", canonical(change.state)
            if state.kills and process.at != "out":
                yield f"J{k} KILLED", canonical(self.killed(state, k))

    @staticmethod
    def killed(state: State, k: int) -> State:
        change = Change(state, k)
        for inode in range(len(state.inodes)):
            change = change.unuse(inode)
        if state.name_lock == k:
            change = change.name_lock(False)
        return change.to("out").state._replace(kills=state.kills - 1)

    def moves(self, state: State, k: int) -> Iterator[tuple[str, Change]]:
        process, change = state.processes[k], Change(state, k)
        if process.at == "out":
            if state.rounds[k]:
                rounds = (*state.rounds[:k], state.rounds[k] - 1, *state.rounds[k + 1 :])
                yield "starts", Change(state._replace(rounds=rounds), k).to("open")
        elif process.at in ("open", "build", "link", "lock late"):
            yield from self.creation(change, process)
        elif process.at in ("lock", "read", "reopen", "alone?", "in"):
            yield from self.joining(change, process)
        else:
            yield from self.removal(change, process)

    def creation(self, change: Change, process: Process) -> Iterator[tuple[str, Change]]:
        state, k, inode = change.state, change.k, process.inode
        if process.at == "open":
            if state.path is None:
                yield "opens: no such file", change.to("build")
            else:
                yield "opens the file", change.to("lock", state.path)
        elif process.at == "build":
            users = frozenset() if self.bug == "lock after link" else frozenset({k})
            built = Change(state._replace(inodes=(*state.inodes, Inode(users=users))), k)
            yield "builds an unnamed file, use byte locked", built.to("link", len(state.inodes))
        elif inode is not None and process.at == "link":
            if state.path is None or self.bug == "rename replaces":
                at = "lock late" if self.bug == "lock after link" else "in"
                yield "links it to the name", change.path(inode).to(at, inode)
            else:
                yield "name exists, drops its own", change.unuse(inode).to("open")
        elif inode is not None:
            yield "locks the use byte late", change.use(inode).to("in", inode)

    def joining(self, change: Change, process: Process) -> Iterator[tuple[str, Change]]:
        inode = process.inode
        assert inode is not None
        header = change.state.inodes[inode]
        inside = "alone?" if self.ephemeral else "in"
        if process.at == "lock":
            at = inside if self.bug == "header not read" else "read"
            yield "read-locks the use byte", change.use(inode).to(at, inode)
        elif process.at == "read":
            if header.word == "closed":
                yield "header closed", change.unuse(inode).to("want name", inode, "finish")
            else:
                yield (
                    f"header {header.word}",
                    change.to("reopen" if header.word == "closing" else inside, inode),
                )
        elif process.at == "reopen":
            if header.word == "closing":
                yield "CAS closing to open", change.word(inode, "open").to(inside, inode)
            else:
                yield "CAS closing to open lost", change.to("read", inode)
        elif process.at == "alone?":
            if header.users - {change.k}:
                yield "GETLK: others are alive", change.to("in", inode)
            else:
                yield "GETLK: ephemeral and nobody alive", change.to("want name", inode, "renew")
        else:
            yield "closes its handle", change.unuse(inode).to("out")
            yield "wants to remove it", change.to("want name", inode, "leave")
            if self.force:
                yield "wants to remove it by force", change.to("want name", inode, "force")

    def removal(self, change: Change, process: Process) -> Iterator[tuple[str, Change]]:
        state, inode = change.state, process.inode
        assert inode is not None
        word = state.inodes[inode].word
        if process.at == "want name":
            if self.bug == "name not locked":
                yield "goes on without the name's byte", change.stay("first")
            elif state.name_lock is None:
                yield "locks the name's byte", change.name_lock(True).stay("first")
        elif process.at == "first":
            yield self.first_step(change, process, inode, word)
        elif process.at == "anybody?":
            others = state.inodes[inode].users - {change.k} and self.bug != "nobody asked"
            yield (
                f"GETLK: {'others are alive' if others else 'nobody'}",
                change.stay("undo" if others else "close"),
            )
        elif process.at == "undo":
            undone = change.word(inode, "open") if word == "closing" else change
            yield "CAS closing to open", undone.stay("give up")
        elif process.at == "close":
            expected = "open" if self.bug == "not closing first" else "closing"
            if word == expected:
                yield f"CAS {expected} to closed", change.word(inode, "closed").stay("compare")
            else:
                yield f"CAS {expected} to closed lost", change.stay("give up")
        elif process.at == "compare":
            same = state.path == inode or self.bug == "path not compared"
            yield "compares path and inode", change.stay("unlink" if same else "end")
        elif process.at == "unlink":
            yield "unlinks the path", change.path(None).stay("end")
        elif process.at == "give up":
            yield "drops the name's byte, still a user", change.name_lock(False).to("in", inode)
        else:
            after = "open" if process.purpose in ("finish", "renew") else "out"
            unlocked = change.name_lock(False) if state.name_lock == change.k else change
            yield "drops the name's byte", unlocked.unuse(inode).to(after)

    def first_step(self, change: Change, process: Process, inode: int, word: str) -> tuple[str, Change]:
        if process.purpose == "finish" or word == "closed":
            return "it is closed: finishes the removal", change.stay("compare")
        if process.purpose == "force":
            return f"CAS {word} to closed", change.word(inode, "closed", forced=True).stay("compare")
        if self.bug == "not closing first":
            return "leaves the header open", change.stay("anybody?")
        return f"CAS {word} to closing", change.word(inode, "closing").stay("anybody?")

    def check(self, state: State) -> str | None:
        working = {p.inode for p in state.processes if p.at == "in" and p.inode is not None}
        opened = {inode for inode in working if state.inodes[inode].word != "closed"}
        if len(opened) > 1:
            return "two living users of one name work on different open inodes"
        for inode in working:
            if inode in opened and state.path != inode:
                return "a user of an open inode: its path leads elsewhere"
            if inode not in opened and not state.inodes[inode].forced:
                return "an inode was closed under a living user without force"
        return self.check_alone(state)

    def check_alone(self, state: State) -> str | None:
        for k, process in enumerate(state.processes):
            if process.at not in ("open", "build", "link", "lock", "read", "reopen"):
                continue
            alone = state
            for _ in range(40):
                if alone.processes[k].at == "in":
                    break
                move = next(self.moves(alone, k), None)
                if move is None:
                    break
                alone = move[1].state
            held_up = alone.processes[k].at == "want name" and state.name_lock not in (None, k)
            if alone.processes[k].at != "in" and not held_up:
                return f"J{k} alone does not get in"
        return None
