"""A publisher is killed while it writes into shared memory. The subscriber does not even notice."""

import multiprocessing
import os
import signal

import hawser


def worker(first: int, dies: bool) -> None:
    """Publish three numbers; then, in the middle of writing a fourth, die without any warning."""
    with hawser.connect(name="worker") as bus:
        numbers = bus.topic("counted", create=False)
        for number in range(first, first + 3):
            numbers.publish(b"%d" % number)
        if dies:
            with numbers.loan(64) as buffer:
                buffer[:4] = b"half"
                os.kill(os.getpid(), signal.SIGKILL)


def run_worker(first: int, dies: bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(first, dies))
    process.start()
    process.join()
    print(f"the worker ended with code {process.exitcode}")


def main() -> None:
    with hawser.connect(name="reader") as bus:
        numbers = bus.topic("counted", slot_size=64)
        with numbers.subscribe() as subscription:
            run_worker(1, dies=True)
            print(f"slots lent to the dead: {numbers.info().slots_lent}")
            # The same name comes back: what its former run had lent is returned first.
            run_worker(4, dies=False)
            print(f"slots lent to the dead: {numbers.info().slots_lent}")
            received = [int(bytes(sample)) for _, sample in zip(range(6), subscription, strict=False)]
            print(f"received {received}, missed {subscription.missed}")
        numbers.delete()


if __name__ == "__main__":
    main()
