"""The state machine once, without a search for the shortest failure: `python -m tests.stateful.steps 50`."""

import sys

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Machine

if __name__ == "__main__":
    run_state_machine_as_test(
        Machine,
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
    print(Machine.steps)
