"""One storm: `python -m tests.storm.storm --scene queues --seed 1 --seconds 10`. Prints its figures as JSON.

The process that leads it never opens anything while it has children to make, so that a child is a worker
like any other, only started faster.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import hawser

from .journal import read_journal
from .judge import Life, Verdict
from .queue_judge import QueueVerdict
from .queue_scene import CrowdScene, QueueScene
from .topic_scene import TopicScene
from .workers import Job, work

SCENES: dict[str, type[TopicScene | QueueScene]] = {
    "topics": TopicScene,
    "queues": QueueScene,
    "crowd": CrowdScene,
}
END_SECONDS = 60


class Storm:
    """The processes of a storm, and what became of them. It lasts so many seconds, and until so many were
    killed."""

    def __init__(
        self, scene: TopicScene | QueueScene, seed: int, seconds: float, kills: int, patience_seconds: float
    ) -> None:
        self.scene = scene
        self.seed = seed
        self.seconds = seconds
        self.least_kills = kills
        self.patience_seconds = patience_seconds
        self.chance = random.Random(seed)
        self.directory = Path(tempfile.mkdtemp(prefix="hawser-test-storm-", dir="/dev/shm"))
        self.phase = mmap(-1, 4096)
        self.alive: dict[int, Job] = {}
        self.stopped: set[int] = set()
        self.absent: list[tuple[float, Job]] = []  # killed, and to come back at that time
        self.ended: list[tuple[Job, bool]] = []
        self.failures: list[str] = []
        self.kills = self.stops = self.runs = 0

    def jobs(self) -> list[Job]:
        """Everybody who takes part."""
        url = f"shm://{self.directory / 'domain'}"
        jobs = self.scene.jobs(Job(url, "", "", "", 0, self.directory, self.phase))
        return [*jobs, Job(url, "", "reap", "reaper", 0, self.directory, self.phase, pause_seconds=0.005)]

    def start(self, job: Job) -> None:
        # Runs of publisher n are n modulo 3: a message's run tells the name its sample must show.
        self.runs += 1
        run = self.runs * 3 + (int(job.name[-1]) if job.role == "publish" else 0)
        job = replace(job, run=run, journal=self.directory / f"journal-{run}")
        process = os.fork()
        if process == 0:
            run_worker(job)
        self.alive[process] = job

    def run(self) -> None:
        waiting = self.jobs()
        for job in waiting:
            self.start(job)
            if not job.killable:
                self.wait_for_journal(self.runs * 3)
        until = time.monotonic() + self.seconds
        while (time.monotonic() < until or self.kills < self.least_kills) and not self.failures:
            time.sleep(self.chance.random() * self.scene.pause_seconds)
            self.disturb()
            self.collect()
            self.bring_back(time.monotonic())
        self.bring_back(time.monotonic() + END_SECONDS)
        for process in self.stopped & set(self.alive):
            os.kill(process, signal.SIGCONT)
        self.calm_down()

    def wait_for_journal(self, run: int) -> None:
        """Until the witness of a topic is there: only then it sees every message."""
        path = self.directory / f"journal-{run}"
        until = time.monotonic() + END_SECONDS
        while not (path.exists() and path.stat().st_size):
            assert time.monotonic() < until, "a witness did not start"
            time.sleep(0.005)

    def disturb(self) -> None:
        """Kill somebody, or stop somebody for a while."""
        victims = [process for process, job in self.alive.items() if job.killable]
        process = self.chance.choice(victims)
        if self.stopped and self.chance.random() < 0.7:
            os.kill(self.stopped.pop(), signal.SIGCONT)
        if self.chance.random() < 0.15:
            self.stops += 1
            self.stopped.add(process)
            os.kill(process, signal.SIGSTOP)
            return
        self.kills += 1
        self.stopped.discard(process)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        job = self.alive.pop(process)
        self.ended.append((job, True))
        stays_away = self.chance.random() < 0.1
        self.absent.append((time.monotonic() + stays_away * 0.3, job))

    def bring_back(self, now: float) -> None:
        """Start again whoever has been away long enough."""
        due = [job for when, job in self.absent if when <= now]
        self.absent = [(when, job) for when, job in self.absent if when > now]
        for job in due:
            self.start(job)

    def collect(self) -> None:
        """Take note of those that ended by themselves."""
        while self.alive:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            job = self.alive.pop(process)
            self.stopped.discard(process)
            self.ended.append((job, False))
            if status != 0:
                error = job.journal.with_suffix(".error")
                text = error.read_text() if error.exists() else ""
                self.failures.append(f"{job.topic} {job.name} (run {job.run}) ended with {status}: {text}")

    def calm_down(self) -> None:
        """Those who send end first; then the others take what is left."""
        for phase, roles in self.scene.endings:
            self.phase[0] = phase
            if not self.wait_for(*roles):
                return

    def wait_for(self, *roles: str) -> bool:
        until = time.monotonic() + self.patience_seconds
        while any(job.role in roles for job in self.alive.values()):
            self.collect()
            if time.monotonic() > until:
                names = [f"{job.topic} {job.name}" for job in self.alive.values() if job.role in roles]
                self.failures.append(f"did not end within {self.patience_seconds} s: {', '.join(names)}")
                return False
            time.sleep(0.01)
        return True

    def verdict(self) -> dict[str, Any]:
        """What the model says; to be asked when everybody has ended."""
        verdicts: list[Verdict | QueueVerdict] = []
        for name in self.scene.names:
            lives = [
                Life(job.role, job.name, job.run, job.options, killed, events_of(job))
                for job, killed in self.ended
                if job.topic == name
            ]
            with hawser.connect(f"shm://{self.directory / 'domain'}") as bus:
                bus.recover()
                verdicts.append(self.scene.judge(bus, name, lives))
        violations = [*self.failures, *(text for each in verdicts for text in each.violations)]
        return {
            "seed": self.seed,
            "kills": self.kills,
            "stops": self.stops,
            "processes": self.runs,
            **{name: sum(getattr(each, name) for each in verdicts) for name in verdicts[0].counts},
            "violations": violations,
        }

    def clean_up(self) -> None:
        for process in self.alive:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        shutil.rmtree(self.directory)


def events_of(job: Job) -> list[Any]:
    return list(read_journal(job.journal)) if job.journal.exists() else []


def run_worker(job: Job) -> None:
    """In the child: never returns."""
    status = 1
    # Whoever kills does not wait until all the others have had their turns.
    os.nice(5)
    try:
        work(job)
        status = 0
    except BaseException:
        job.journal.with_suffix(".error").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scene", choices=SCENES, default="topics")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--patience-seconds", type=float, default=END_SECONDS)
    arguments = vars(parser.parse_args())
    storm = Storm(SCENES[arguments.pop("scene")](), **arguments)
    try:
        storm.run()
        json.dump(storm.verdict(), sys.stdout)
    finally:
        storm.clean_up()


if __name__ == "__main__":
    main()
