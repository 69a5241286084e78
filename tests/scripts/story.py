"""Stories that chance tells: commands as in the scripts, and what must hold after each of them.

One that fails is printed as a script: put into a `.txt`, it plays the same way.
"""

from random import Random

from hawser.log.entry import Entry
from hawser.log.protocol.messages import Role
from hawser.log.protocol.metadata import Status
from hawser.log.state.topic import Topic

from .commands import obey
from .stage import Endless, Stage, Trouble

__all__ = ["Story", "Wrong"]


class Wrong(Exception):
    """Something that must hold does not; the message is the story."""


class Story:
    """One seed. `tell` a number of steps, then `end`: everybody is well again and must come to agree."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.stage = Stage()
        self.lines: list[str] = []
        self.values = 0
        self.acknowledged: dict[str, int] = {}
        # By index, the frame that somebody holds to be committed; by epoch, who led in it.
        self.committed: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        # How far the log of each run of a member was compared.
        self.seen: dict[tuple[str, int], int] = {}
        members = self.random.choice((1, 2, 3, 3, 3, 4, 5))
        short = self.random.choice(("", " short logs"))
        self.do(f"cluster {members} led by n1{short}")
        for number in (members + 1, members + 2):
            self.do(f"node n{number}")

    # Steps.

    def do(self, line: str) -> None:
        """Carry out one command; what is impossible now is left out of the story."""
        try:
            obey(self.stage, line)
        except Trouble:
            return
        except (Endless, AssertionError) as broken:
            self.lines.append(line)
            raise self._wrong(repr(broken)) from broken
        self.lines.append(line)
        self._check()

    def tell(self, steps: int) -> None:
        for _ in range(steps):
            self.do(self._next())

    def _next(self) -> str:
        chance, stage = self.random, self.stage
        node = chance.choice(list(stage.hosts))
        other = chance.choice(list(stage.hosts))
        if chance.random() < 0.6:
            return self._everyday(node)
        trouble = [f"crash {node}", f"power loss {node}", f"restart {node}", f"restart {node}"]
        trouble += [f"cut {node}->{other}", f"cut {node}", f"hold {node}->{other}"]
        assert stage.metadata is not None
        leader = stage.metadata.leader or node
        trouble += [f"cut {leader}", f"power loss {leader}", f"hold {leader}->{other}", "elect", "elect"]
        trouble += [f"heal {link}" for link in stage.cut] * 2 + [f"release {link}" for link in stage.held] * 2
        trouble += [f"slow disk {node}", f"quick disk {node}", f"sync {node}", self._order(), self._order()]
        if not stage.host(node).disk.names():
            return f"wipe {node}"
        trouble += [self._operator(), f"full disk {node}", f"free disk {node}", f"free disk {node}"]
        return chance.choice(trouble)

    def _everyday(self, node: str) -> str:
        chance, stage = self.random, self.stage
        choice = chance.randrange(8)
        if choice < 3 and stage.flight:
            letter = chance.choice(stage.flight)
            verb = chance.choice(
                ("deliver first", "deliver first", "deliver last", "drop first", "duplicate")
            )
            return f"{verb} {letter.sender}->{letter.to}"
        if choice in (3, 4):
            self.values += 1
            at = "" if chance.random() < 0.8 else f" at {node}"
            return f"publish v{self.values}{at}"
        if choice == 5:
            return f"trim {max(1, self.values // 2)}" if chance.random() < 0.3 else "read"
        return chance.choice(("deliver", "deliver", "wait", f"tick {node}"))

    def _order(self) -> str:
        chance, stage = self.random, self.stage
        assert stage.metadata is not None
        member = chance.choice(stage.metadata.members)
        known = (*stage.metadata.members, *stage.metadata.removed)
        spares = [host.member for host in stage.hosts.values() if host.replica and host.member not in known]
        spare = chance.choice(spares) if spares else member
        orders = [
            f"swap {member} {spare}",
            f"expand {spare}",
            f"contract {member}",
            f"transfer {member}",
            "elect",
        ]
        return chance.choice(orders)

    def _operator(self) -> str:
        names = list(self.stage.operators)
        if names and (len(names) > 1 or self.random.random() < 0.5):
            return f"crash {self.random.choice(names)}"
        return f"operator o{sum(line.startswith('operator') for line in self.lines) + 2}"

    # What must hold.

    def _check(self) -> None:
        for line in self.stage.told:
            if " halts: " in line or "TAKES BACK" in line:
                raise self._wrong(line)
            if line.startswith("client: ") and " is record " in line:
                value, _, offset = line.removeprefix("client: ").partition(" is record ")
                self.acknowledged[value] = int(offset)
        self.stage.told.clear()
        for host in self.stage.hosts.values():
            if host.replica is None:
                continue
            node, journal = host.replica.node, host.replica.journal
            if node.role is Role.LEADER and self.leaders.setdefault(node.epoch, host.member) != host.member:
                raise self._wrong(f"{host.member} and {self.leaders[node.epoch]} lead in epoch {node.epoch}")
            run = (host.member, host.incarnation)
            first = max(journal.first, self.seen.get(run, 0) + 1)
            if first <= node.commit:
                self._check_committed(host.member, journal.read(first, node.commit, 1 << 30))
                self.seen[run] = node.commit

    def _check_committed(self, member: str, entries: list[Entry]) -> None:
        for entry in entries:
            if self.committed.setdefault(entry.index, entry.frame) != entry.frame:
                raise self._wrong(f"{member} has committed another entry at {entry.index}: {entry}")

    def _wrong(self, what: str) -> Wrong:
        return Wrong("\n".join((f"# {what}", *self.lines, "----")))

    # The end.

    def end(self) -> None:
        """All is well again: the shard becomes steady, takes a write, and has lost nothing."""
        stage = self.stage
        for link in list(stage.cut):
            self.do(f"heal {link}")
        for link in list(stage.held):
            self.do(f"release {link}")
        for name, host in stage.hosts.items():
            self.do(f"free disk {name}")
            self.do(f"quick disk {name}")
            if host.replica is None and host.disk.names():
                self.do(f"restart {name}")
        if not stage.operators:
            self.do("operator o99")
        for _ in range(20):
            self.do("wait 20")
            if self._is_well():
                return
        raise self._wrong(f"it does not come to rest: {stage.metadata}")

    def _is_well(self) -> bool:
        """Whether a write comes through and everybody has everything."""
        stage = self.stage
        metadata = stage.metadata
        assert metadata is not None
        if metadata.status is not Status.STEADY or metadata.removed:
            return False
        self.do("publish last")
        self.do("wait 3")
        if "last" not in self.acknowledged or stage.metadata != metadata:
            return False
        replicas = [stage.host(member).replica for member in metadata.members]
        heads = {(each.node.head, each.node.applied, each.machine.hash) for each in replicas if each}
        if len(heads) != 1 or None in replicas:
            return False
        self._check_kept()
        return True

    def _check_kept(self) -> None:
        assert self.stage.metadata is not None and self.stage.metadata.leader is not None
        replica = self.stage.running(self.stage.metadata.leader)
        found = self.stage.records(replica).split(", ")
        start = replica.machine.part(Topic).start
        for value, offset in self.acknowledged.items():
            if offset >= start and found[offset - start] != value and value != "last":
                raise self._wrong(
                    f"{value} was acknowledged as record {offset}, which is {found[offset - start]}"
                )
