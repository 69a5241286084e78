"""The tree of errors is what its drawing says, and carries what callers decide by."""

import pickle
import re

import pytest

import hawser
from hawser import errors

NAMES = [name for name in errors.__all__ if name != "HawserError"]
RETRYABLE = {"Full", "Timeout", "NotLeader", "Unavailable", "TransactionAborted"}
UNKNOWN = {"OutcomeUnknown", "InDoubt"}


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_public_under_one_root(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, hawser.HawserError)
    assert getattr(hawser, name) is kind
    assert name in hawser.__all__


@pytest.mark.parametrize("name", NAMES)
def test_an_error_says_whether_it_was_done(name: str) -> None:
    error = getattr(errors, name)("what happened")
    assert str(error) == "what happened"
    assert error.retryable == (name in RETRYABLE)
    assert error.outcome == ("unknown" if name in UNKNOWN else "none")
    assert isinstance(error, errors.Rejected) == (name not in UNKNOWN)
    assert error.published == 0


def test_the_drawing_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^ {4}([│├└─ ]*)([A-Z]\w+)", errors.__doc__, re.MULTILINE)
    assert {name for _, name in drawn} == set(errors.__all__)
    for branch, name in drawn:
        family = [each for each in getattr(errors, name).__mro__ if issubclass(each, errors.HawserError)]
        assert len(branch) == 4 * (len(family) - 1), name


def test_errors_are_what_python_calls_them() -> None:
    assert issubclass(errors.Timeout, TimeoutError)
    assert issubclass(errors.PermissionDenied, PermissionError)
    assert issubclass(errors.UsageError, ValueError)


@pytest.mark.parametrize("name", NAMES)
def test_errors_travel_between_processes(name: str) -> None:
    error = getattr(errors, name)("what happened")
    error.published = 3
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.published) == ("what happened", 3)
