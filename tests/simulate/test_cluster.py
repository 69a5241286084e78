"""A cluster as users' tests drive it."""

import os
import subprocess
import sys

import pytest

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.state.commands import TrimTo, encode_command
from hawser.testing import Cluster, Violation
from hawser.testing.clients import Excerpt, Request
from hawser.testing.cluster import Stuck
from hawser.testing.simulate import Simulation
from hawser.testing.swarm import Swarm
from hawser.testing.workload import Visitor


def test_what_is_published_can_be_read() -> None:
    cluster = Cluster(seed=1)
    assert cluster.publish(b"a", b"b").first_offset == 1
    assert cluster.publish(b"c").first_offset == 3
    view = cluster.read()
    assert (view.start, view.end, view.values) == (1, 4, (b"a", b"b", b"c"))


def test_a_leader_that_crashes_is_replaced_and_nothing_is_lost() -> None:
    cluster = Cluster(seed=2)
    cluster.publish(b"before")
    first = cluster.leader
    assert first is not None
    cluster.crash(first)
    cluster.run_until(lambda: cluster.leader not in (None, first))
    cluster.publish(b"after")
    cluster.restart(first)
    assert cluster.read().values == (b"before", b"after")


def test_a_minority_commits_nothing() -> None:
    cluster = Cluster(seed=3)
    cluster.publish(b"one")
    for name in ("n1", "n2"):
        cluster.crash(name)
    committed = cluster.truth.last
    cluster.run(2_000)
    assert cluster.truth.last == committed
    with pytest.raises(Stuck, match="the end of request"):
        cluster.publish(b"two", most_events=3_000)
    for name in ("n1", "n2"):
        cluster.restart(name)
    cluster.run_until(lambda: not cluster.unsettled())
    assert cluster.read().values == (b"one", b"two")


def test_a_lost_disk_is_replaced_by_itself() -> None:
    cluster = Cluster(seed=4)
    cluster.publish(b"kept")
    cluster.wipe("n2")
    cluster.run_until(lambda: "n2.d2" in cluster.members and not cluster.unsettled())
    assert "n2.d1" not in cluster.members
    assert cluster.read().values == (b"kept",)


def test_members_come_and_go() -> None:
    cluster = Cluster(seed=5, nodes=4, members=1)
    cluster.publish(b"alone")
    for name in ("n2", "n3", "n4"):
        assert cluster.expand(name).done
    assert cluster.transfer("n4").done
    assert cluster.leader == "n4"
    assert cluster.contract("n1.d1").done
    assert cluster.members == ("n2.d1", "n3.d1", "n4.d1")
    cluster.run_until(lambda: cluster.nodes["n1"].member == "n1.d2" and not cluster.unsettled())
    assert cluster.swap("n3.d1", "n1").done
    cluster.run_until(lambda: not cluster.unsettled())
    assert cluster.read().values == (b"alone",)


def test_a_node_that_is_too_small_is_given_up_and_keeps_nothing() -> None:
    swarm = Swarm(spare_room_bytes=2_000, segment_bytes=1_024, checkpoint_entries=4)
    cluster = Cluster(seed=13, nodes=4, members=3, swarm=swarm)
    for _ in range(10):
        cluster.publish(b"." * 500)
    assert not cluster.expand("n4").done
    cluster.run_until(lambda: not cluster.unsettled())
    assert cluster.probes.counts["change given up for want of room"] == 1
    assert cluster.nodes["n4"].member == "n4.d2"
    cluster.nodes["n4"].enlarge_disk()
    assert cluster.expand("n4").done


def test_a_full_leader_is_trimmed_and_goes_on() -> None:
    cluster = Cluster(seed=14, swarm=Swarm(segment_bytes=1_024, checkpoint_entries=4, spare_entries=0))
    for _ in range(20):
        cluster.publish(b"." * 300)
    for node in cluster.nodes.values():
        node.fill_disk()
    with pytest.raises(Stuck):
        for _ in range(5):
            cluster.publish(b"." * 300, most_events=2_000)
    leader = cluster.leader
    assert leader is not None
    trim = Command(Kind.TRIM, encode_command(TrimTo(15)), tag=("somebody", 1, 0))
    cluster.network.send("somebody", leader, Request(("somebody", 1, 0), (trim,)))
    cluster.run_until(lambda: not cluster.unsettled())
    assert cluster.probes.counts["full leader went on"] == 1


def test_what_a_follower_has_shown_the_leader_shows_too() -> None:
    cluster = Cluster(seed=15)
    visitor = Visitor(cluster, "visitor1", cluster.stream("visitor1"))
    visitor.begin()
    for number in range(20):
        cluster.publish(b"%d" % number)
        assert cluster.read().end >= cluster.truth.told[1]
    assert visitor.done > 5
    assert cluster.probes.counts["read at a follower"]


def test_a_follower_that_shows_what_it_has_not_applied_is_found() -> None:
    cluster = Cluster(seed=16)
    cluster.publish(b"a")
    visitor = Visitor(cluster, "visitor1", cluster.stream("visitor1"))
    visitor.offset = 1
    with pytest.raises(Violation, match="where there is 1 to 1"):
        visitor.judge(0, Excerpt(applied=0, offset=1, start=1, end=2, values=(b"a",)))
    applied = cluster.truth.last
    with pytest.raises(Violation, match="not what was published"):
        visitor.judge(0, Excerpt(applied=applied, offset=1, start=1, end=2, values=(b"b",)))
    with pytest.raises(Violation, match="statement 8"):
        visitor.judge(0, Excerpt(applied=applied + 1, offset=1, start=1, end=2, values=(b"a",)))


def test_a_report_says_why_not() -> None:
    cluster = Cluster(seed=6)
    cluster.publish(b"x")
    report = cluster.contract("n9.d1")
    assert not report.done
    assert "n9.d1" in report.text


def test_trimmed_records_are_gone() -> None:
    cluster = Cluster(seed=7)
    cluster.publish(b"a", b"b", b"c")
    assert cluster.trim(2) == 2
    view = cluster.read()
    assert (view.start, view.values) == (2, (b"b", b"c"))


def test_a_partitioned_leader_serves_no_stale_read() -> None:
    cluster = Cluster(seed=8)
    cluster.publish(b"old")
    first = cluster.leader
    assert first is not None
    cluster.partition([first])
    cluster.run_until(lambda: cluster.leader not in (None, first))
    cluster.publish(b"new")
    assert cluster.read().values[-1] == b"new"
    cluster.heal()
    cluster.run_until(lambda: not cluster.unsettled())


def test_a_paused_node_catches_up() -> None:
    cluster = Cluster(seed=9)
    cluster.publish(b"a")
    follower = next(name for name in cluster.nodes if name != cluster.leader)
    cluster.pause(follower)
    cluster.publish(b"b")
    cluster.resume(follower)
    cluster.run_until(lambda: not cluster.unsettled())


def test_time_passes_only_when_told() -> None:
    cluster = Cluster(seed=10)
    cluster.run_for(5_000)
    assert 4_000 < cluster.clock.now <= 5_000
    events = cluster.clock.events
    cluster.run(7)
    assert cluster.clock.events == events + 7


def test_what_does_not_come_says_what_is_stuck() -> None:
    cluster = Cluster(seed=11)
    with pytest.raises(Stuck, match="never did not come within 50 events") as stuck:
        cluster.run_until(lambda: False, most_events=50, what="never")
    assert "n1.d1" in str(stuck.value)


def test_a_disk_that_loses_what_it_synced_is_a_violation() -> None:
    cluster = Cluster(seed=12)
    cluster.publish(b"a")
    cluster.crash("n1", power_loss=False)
    cluster.nodes["n1"].disk.wipe()
    with pytest.raises(Violation, match="nobody damaged it"):
        cluster.restart("n1")


PROGRAM = """
import hashlib, sys
from hawser.testing.simulate import simulate
for seed in (3, 7, 8, 40, 41):
    digest = hashlib.sha256()
    simulate(seed, lambda line: digest.update(line.encode()))
    print(digest.hexdigest())
"""


def test_a_seed_is_a_run_to_the_bit() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 5


def test_a_failing_seed_names_the_command_that_runs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from hawser.testing import simulate as module

    def run(self: Simulation) -> None:
        raise Violation(9, "planted")

    monkeypatch.setattr(Simulation, "run", run)
    with pytest.raises(Violation) as caught:
        module.simulate(17)
    assert any("--seed 17" in note for note in caught.value.__notes__)


def test_the_command_prints_what_a_seed_came_to() -> None:
    command = [sys.executable, "-m", "hawser.testing.simulate", "--seed", "1", "--trace"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1].startswith('{"seed":1,')
    assert any("n1: Tick()" in line for line in lines)
    assert "events a second" in done.stderr
