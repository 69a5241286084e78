"""One state machine, without a search for the shortest failure: `python -m tests.stateful.steps 50 queue`."""

import sys

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from . import local_queue_machine, machine

if __name__ == "__main__":
    run_state_machine_as_test(
        local_queue_machine.Machine if sys.argv[2:] == ["queue"] else machine.Machine,
        settings=settings(
            deadline=None,
            database=None,
            derandomize=True,
            max_examples=int(sys.argv[1]),
            stateful_step_count=60,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
