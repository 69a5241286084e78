"""A process that is interrupted while it imports Hawser ends, and does not crash.

Found by a command that SIGINT had ended with SIGSEGV: msgspec forgets an interrupt of its own import of
datetime, and follows a null pointer when it makes the first decoder. Hawser imports datetime before msgspec.
"""

from typing import Any

from tests.support.builds import Build
from tests.support.programs import numbers

# The import of datetime has some 600 lines, all of them about 13,000.
EVERY = 100


def test_imports_that_are_interrupted_do_not_crash(record_property: Any) -> None:
    modules = ("hawser.cli.main", "hawser.aio")
    done = Build().run("-m", "tests.museum.interrupted_imports", str(EVERY), *modules)
    assert done.returncode == 0 and "signal" not in done.stdout, done.stdout + done.stderr
    children = numbers(done.stdout)["children"]
    record_property("children", children)
    assert children > 50
