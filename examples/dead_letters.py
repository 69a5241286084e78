"""A job that nobody can do does not come back for ever: it becomes a dead letter, and can be tried again."""

from typing import Any

import hawser


def double(job: hawser.Message) -> int:
    return 2 * int(bytes(job))


def drain(jobs: hawser.Queue[Any]) -> None:
    """Do what can be done; what fails comes back until its deliveries are used up."""
    while (job := jobs.get(timeout=0)) is not None:
        try:
            with job:
                print(f"{bytes(job).decode()} -> {double(job)}")
        except ValueError as error:
            print(f"delivery {job.delivery_count} failed: {error}")


def main() -> None:
    with hawser.connect() as bus:
        jobs = bus.queue("divisions", max_deliveries=2)
        jobs.put_many([b"1", b"two", b"3"])
        drain(jobs)
        dead_letters = jobs.dead_letters()
        for letter in dead_letters.peek(10):
            origin = letter.headers["hawser-dead-letter"].decode()
            print(f"dead: {bytes(letter).decode()!r} from {origin}")
        print(f"{jobs.retry_dead_letters()} tried again")
        drain(jobs)
        print(f"{jobs.info().dead} dead letter left")
        dead_letters.delete()
        jobs.delete()


if __name__ == "__main__":
    main()
