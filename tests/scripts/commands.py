"""The vocabulary of the scripts.

    cluster 3 [short logs]            nodes n1 to n3 and a new shard on them
    cluster 3 led by n1 [short logs]  the same after its first election, by operator o1
    node n4 / operator o2             one more of them
    crash x / power loss n1 / restart n1 / wipe n1
    tick x [times] / wait [times]     one clock; or all clocks, and all letters arrive
    wait for something                as many ticks as it takes until a line says that; only the last is told
    deliver [link [kind]]             all until nothing moves; or only these, and not what they cause; with
                                      `first` or `last` before the link, one of them
    drop, duplicate link [kind]       what is on its way
    again link kind [of epoch e]      the last such letter ever sent arrives once more
    hold, release, cut, heal link     held letters wait for `deliver link`, cut ones are lost
    flight                            what is on its way
    publish a b [at n1] [of 400 bytes] / read [at n1] / trim 3
    slow, quick, full, free, broken disk n1 / sync n1
    elect / swap n3 n4 / expand n4 / contract n3 / transfer n2, each [by o2]
    log [n1 ...] / status [n1 ...] / metadata
    hear all                          heartbeats and repeated acknowledgements are told from now on
    quietly ...                       any of these, without telling

A link is `n1->n2`, with * for anybody, or one name for both ways.
"""

import re
from collections.abc import Callable

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command, Contract, Elect, Expand, Order, Propose, Swap, Transfer
from hawser.log.protocol.metadata import Metadata
from hawser.log.state.commands import TrimTo, encode_command
from hawser.testing.disk import SimDisk

from .stage import SHORT, Letter, Stage, Trouble
from .words import log_words, metadata_words

__all__ = ["obey"]

MOST_TICKS = 100
_COMMANDS: dict[str, Callable[[Stage, str], None]] = {}


def obey(stage: Stage, line: str) -> None:
    """Carry out one command; Trouble says what is wrong with it."""
    if line.startswith("quietly "):
        told = list(stage.told)
        obey(stage, line.removeprefix("quietly "))
        stage.told = told
        return
    for words in sorted(_COMMANDS, key=len, reverse=True):
        if line == words or line.startswith(words + " "):
            _COMMANDS[words](stage, line[len(words) :].strip())
            return
    raise Trouble(f"unknown command: {line}")


def _command(*names: str) -> Callable[[Callable[[Stage, str], None]], Callable[[Stage, str], None]]:
    def register(function: Callable[[Stage, str], None]) -> Callable[[Stage, str], None]:
        _COMMANDS.update(dict.fromkeys(names, function))
        return function

    return register


# Who is there.


@_command("cluster")
def _cluster(stage: Stage, rest: str) -> None:
    match = re.fullmatch(r"(\d+)( led by n1)?( short logs)?", rest)
    if not match:
        raise Trouble(f"cluster {rest}")
    if match[3]:
        stage.settings = SHORT
    members = tuple(f"n{number}" for number in range(1, int(match[1]) + 1))
    for member in members:
        stage.add_node(member)
    stage.metadata = Metadata.initial(members)
    if match[2]:
        stage.add_operator("o1")
        for _ in range(3):
            stage.wait()
        stage.told.clear()
        _status(stage, "n1")


@_command("node")
def _node(stage: Stage, name: str) -> None:
    stage.add_node(name)


@_command("operator")
def _operator(stage: Stage, name: str) -> None:
    stage.add_operator(name)


@_command("crash")
def _crash(stage: Stage, name: str) -> None:
    if name in stage.operators:
        del stage.operators[name]
    else:
        stage.running(name)
        stage.stop(stage.host(name))


@_command("power loss")
def _power_loss(stage: Stage, name: str) -> None:
    stage.running(name)
    stage.stop(stage.host(name), power_loss=True)


@_command("restart")
def _restart(stage: Stage, name: str) -> None:
    host = stage.host(name)
    if not host.disk.names():
        raise Trouble(f"{name} holds nothing any more; wipe it, and it is another member")
    stage.stop(host)
    stage.start(host)
    _status(stage, name)


@_command("wipe")
def _wipe(stage: Stage, name: str) -> None:
    """The disk is lost; the node comes back with an empty one, as another member."""
    host = stage.host(name)
    stage.stop(host)
    host.disk = SimDisk()
    host.disk_number += 1
    stage.start(host)
    _status(stage, name)


# Time and letters.


@_command("tick")
def _tick(stage: Stage, rest: str) -> None:
    name, _, times = rest.partition(" ")
    for _ in range(int(times or 1)):
        stage.tick(name)


@_command("wait for")
def _wait_for(stage: Stage, text: str) -> None:
    """Until something is told with this in it; what came before that tick is not told."""
    told = stage.told
    for _ in range(MOST_TICKS):
        stage.told = []
        stage.wait()
        if any(text in line for line in stage.told):
            stage.told = told + stage.told
            return
    stage.told = told
    raise Trouble(f"it never happens: {text}")


@_command("wait")
def _wait(stage: Stage, times: str) -> None:
    for _ in range(int(times or 1)):
        stage.wait()


def _link(rest: str) -> tuple[str, str | None]:
    link, _, kind = rest.partition(" ")
    return link, kind or None


def _taken(stage: Stage, rest: str) -> list[Letter]:
    """Out of the air: the first of them, the last, or all."""
    which, _, others = rest.partition(" ")
    return stage.take(*_link(others), which) if which in ("first", "last") else stage.take(*_link(rest))


@_command("deliver")
def _deliver(stage: Stage, rest: str) -> None:
    if not rest:
        stage.deliver_all()
        return
    for letter in _taken(stage, rest):
        stage.deliver(letter)


@_command("drop")
def _drop(stage: Stage, rest: str) -> None:
    for letter in _taken(stage, rest):
        stage.tell(f"lost: {letter}")


@_command("duplicate")
def _duplicate(stage: Stage, rest: str) -> None:
    link, kind = _link(rest)
    copies = [letter for letter in stage.flight if letter.fits(link, kind)]
    if not copies:
        raise Trouble(f"nothing is on its way: {rest}")
    stage.flight += copies


@_command("again")
def _again(stage: Stage, rest: str) -> None:
    rest, _, epoch = rest.partition(" of epoch ")
    link, kind = _link(rest)
    found = [each for each in stage.history if each.fits(link, kind, int(epoch) if epoch else None)]
    if not found:
        raise Trouble(f"never sent: {rest}")
    stage.deliver(found[-1])


@_command("hold")
def _hold(stage: Stage, link: str) -> None:
    stage.held.append(link)


@_command("release")
def _release(stage: Stage, link: str) -> None:
    stage.held.remove(link)


@_command("cut")
def _cut(stage: Stage, link: str) -> None:
    stage.cut.append(link)
    stage.flight = [letter for letter in stage.flight if not letter.fits(link)]


@_command("heal")
def _heal(stage: Stage, link: str) -> None:
    stage.cut.remove(link)


@_command("flight")
def _flight(stage: Stage, _: str) -> None:
    for letter in stage.flight:
        stage.tell(str(letter))


@_command("hear all")
def _hear_all(stage: Stage, _: str) -> None:
    stage.hears_all = True


# Clients.


def _leader(stage: Stage, name: str | None) -> str:
    assert stage.metadata is not None
    name = name or stage.metadata.leader
    if name is None:
        raise Trouble("there is no leader; say at whom")
    return name


@_command("publish")
def _publish(stage: Stage, rest: str) -> None:
    match = re.fullmatch(r"(.+?)(?: at (\S+))?(?: of (\d+) bytes)?", rest)
    if match is None:
        raise Trouble("publish what?")
    name = _leader(stage, match[2])
    stage.running(name)
    stage.propose(stage.host(name), match[1].split(), int(match[3] or 0))


@_command("read")
def _read(stage: Stage, rest: str) -> None:
    name = _leader(stage, rest.removeprefix("at ") or None)
    stage.running(name)
    stage.read(stage.host(name))


@_command("trim")
def _trim(stage: Stage, offset: str) -> None:
    command = Command(Kind.TRIM, encode_command(TrimTo(int(offset))), f"trim {offset}")
    name = _leader(stage, None)
    stage.running(name)
    stage.step(stage.host(name), Propose((command,)))


# Disks.


@_command("slow disk")
def _slow(stage: Stage, name: str) -> None:
    stage.host(name).slow = True


@_command("quick disk")
def _quick(stage: Stage, name: str) -> None:
    host = stage.host(name)
    host.slow = False
    if host.replica is not None and host.replica.sync_wanted:
        stage.sync(host)


@_command("sync")
def _sync(stage: Stage, name: str) -> None:
    stage.sync(stage.host(name))


@_command("full disk")
def _full(stage: Stage, name: str) -> None:
    disk = stage.host(name).disk
    disk.capacity_bytes = sum(disk.size(file) for file in disk.names())


@_command("free disk")
def _free(stage: Stage, name: str) -> None:
    stage.host(name).disk.capacity_bytes = None


@_command("broken disk")
def _broken(stage: Stage, name: str) -> None:
    stage.host(name).disk.fail_sync = True


# Orders.


def _order(words: list[str], tag: str) -> Order:
    kind, names = words[0], words[1:]
    if kind == "elect":
        return Elect(tag)
    if kind == "swap":
        return Swap(names[0], names[1], tag)
    if kind == "expand":
        return Expand(names[0], tag)
    if kind == "contract":
        return Contract(names[0], tag)
    return Transfer(names[0], tag)


def _give_order(kind: str) -> Callable[[Stage, str], None]:
    def give(stage: Stage, rest: str) -> None:
        text, _, by = f"{kind} {rest}".partition("by ")
        name, _ = stage.operator(by or None)
        stage.step_operator(name, _order(text.split(), text.strip()))

    return give


for _kind in ("elect", "swap", "expand", "contract", "transfer"):
    _COMMANDS[_kind] = _give_order(_kind)


# Looking.


@_command("log")
def _log(stage: Stage, names: str) -> None:
    for name in names.split() or stage.hosts:
        journal = stage.running(name).journal
        first, last = journal.first, journal.head.index
        entries = journal.read(first, last, 1 << 20) if first <= last else []
        gone = f"(1 to {first - 1} are gone) " if first > 1 else ""
        stage.tell(f"{journal.member}: {gone}{log_words(entries)}")


@_command("status")
def _status(stage: Stage, names: str) -> None:
    for name in names.split() or stage.hosts:
        host = stage.host(name)
        if host.replica is None:
            stage.tell(f"{host.member} " + ("is down" if host.disk.names() else "holds nothing"))
            continue
        node = host.replica.node
        role = f"leads {', '.join(node.leadership.members)}" if node.leadership else f"is {node.role}"
        where = f" in epoch {node.epoch}" if node.epoch else ""
        behind = "" if node.applied == node.commit else f", applied {node.applied}"
        stage.tell(f"{host.member} {role}{where}: head {node.head}, commit {node.commit}{behind}")


@_command("metadata")
def _metadata(stage: Stage, _: str) -> None:
    assert stage.metadata is not None
    stage.tell(f"{stage.metadata.version}: {metadata_words(stage.metadata)}")
