"""python -m tests.history FILE...: judges a history and prints the first violation.

Ends with 0 if none was found, with 1 if one was, with 2 if the history cannot be judged.
"""

import sys
from collections import Counter
from pathlib import Path

from tests.history.events import HistoryError, operations, read_events
from tests.history.linearizability import Verdict
from tests.history.linearizability import judge as judge_linearizability
from tests.history.log_checks import check_logs


def main(arguments: list[str]) -> int:
    """Judge the files, together one history."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    try:
        found = operations(read_events(Path(argument) for argument in arguments))
        violations = check_logs(found)
    except (HistoryError, OSError) as error:
        print(f"not a history that can be judged: {error}", file=sys.stderr)
        return 2
    counts = Counter(f"{operation.name} {operation.outcome.value}" for operation in found)
    print(
        f"{len(found)} operations: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    )
    verdicts = judge_linearizability(found)
    for name, linearization in verdicts.items():
        if not violations or linearization.verdict is not Verdict.LINEARIZABLE:
            print(f"{name}: {linearization}")
    if violations:
        kinds = Counter(violation.kind for violation in violations)
        print("violations: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
        print(f"the first: {violations[0]}")
        return 1
    bad = [linearization.verdict for linearization in verdicts.values()]
    if Verdict.VIOLATED in bad:
        return 1
    if not any(operation.name == "final" for operation in found):
        print("no final read: whether something was lost is not judged")
    print("no violation found")
    return 2 if Verdict.UNDECIDED in bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
