"""Names: any text a person would choose, each in a file of its own, none outside the domain."""

import pytest

from hawser.errors import UsageError
from hawser.memory.names import check_bus_name, check_topic_name, file_name_of, group_record, topic_name_of

GOOD = [
    "a",
    "camera/front",
    "Kamera vorn",
    "имя/テーマ",
    "..",
    ".lock",
    "a/../b",
    "50%",
    "%2E",
    "x.topic",
    "emoji \N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}",
    "a" * 100,
    "é" * 33,
]
BAD = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "a\0b",
    "a\nb",
    "\x7f",
    "\x85",
    "\u2028",
    "a" * 101,
    "é" * 34,
    "\ud800",
    5,
    None,
    b"a",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_has_a_plain_file_name_and_comes_back(name: str) -> None:
    file_name = file_name_of(name)
    assert file_name.isascii()
    assert "/" not in file_name
    assert not file_name.startswith(".")
    assert len(file_name) <= 255
    assert topic_name_of(file_name) == name


def test_no_two_names_share_a_file() -> None:
    assert len({file_name_of(name).lower() for name in GOOD}) == len(GOOD)
    assert file_name_of("a/b") != file_name_of("a%2Fb")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        check_topic_name(name)


@pytest.mark.parametrize(
    "file_name",
    [
        ".lock",
        "a",
        "a.dat",
        ".topic",
        "%2.topic",
        "%zz.topic",
        "a%2fb.topic",
        "a b.topic",
        "%FF.topic",
        "%61.topic",
        "é.topic",
    ],
)
def test_other_files_are_no_topics(file_name: str) -> None:
    assert topic_name_of(file_name) is None


def test_names_of_participants_have_their_own_bounds() -> None:
    assert check_bus_name("a" * 55) == "a" * 55
    assert check_bus_name("any/name at all") == "any/name at all"
    for bad in ("", "a" * 56, "é" * 28, "tab\t", "group:mine", "letters:mine", "consumer:mine"):
        with pytest.raises(UsageError):
            check_bus_name(bad)


def test_a_group_cannot_be_taken_for_a_bus() -> None:
    assert group_record("mine") == "group:mine"
    for bad in ("", "g" * 50, "a\0"):
        with pytest.raises(UsageError, match="group"):
            group_record(bad)
