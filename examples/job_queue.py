"""Workers share a queue. One of them is killed in the middle of a job: another one does that job again."""

import multiprocessing
import os
import signal

import hawser


def worker(name: str, dies: bool) -> None:
    """Do jobs until there are none; or die, without any warning, with one in hand."""
    with hawser.connect(name=name) as bus, bus.queue("squares", create=False) as jobs:
        while (job := jobs.get(timeout=0)) is not None:
            with job:  # accepted at the end, released by an exception
                number = int(bytes(job))
                if dies and number == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                again = f", delivery {job.delivery_count}" if job.redelivered else ""
                print(f"{name}: {number} squared is {number**2}{again}", flush=True)


def run_worker(name: str, dies: bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(name, dies))
    process.start()
    process.join()


def main() -> None:
    with hawser.connect(name="boss") as bus:
        jobs = bus.queue("squares", slot_size=64)
        jobs.put_many([b"%d" % number for number in range(1, 6)])
        run_worker("first", dies=True)
        print(f"{jobs.info().claimed} job in the hands of the dead")
        run_worker("second", dies=False)
        print(f"{jobs.info().ready + jobs.info().claimed} jobs left")
        jobs.delete()


if __name__ == "__main__":
    main()
