"""`pytest tests/scripts --rewrite` writes down what is said now. Commit that only if you understand every
difference and want it."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="replace the answers in tests/scripts/*.txt")
