"""Addresses, and the first words on a connection: understood, or refused with a text that helps."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.cluster.transport import Address, BadAddress, Identity, Malformed, PeerRole, Refused
from hawser.cluster.transport.handshake import (
    VERSIONS,
    Introduction,
    choose_version,
    objection,
    read_hello,
    read_introduction,
    read_refusal,
    read_welcome,
    readable,
    write_hello,
    write_refusal,
    write_welcome,
)

ME = Identity(role=PeerRole.NODE, name="a", run="a#1", cluster="blue")
MINE = Introduction(identity=ME, most_requests=8)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:7410", "localhost", 7410), ("10.0.0.1:0", "10.0.0.1", 0), ("[::1]:65535", "::1", 65535)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == (host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", ":", "host", "host:", ":7410", "::1:7410", "host:port", "host:65536", "host:-1", "host:¹", "[::1]",
     "tcp://host:1", "[host:1", "a b:1"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadAddress, match="is no address: "):
        Address.parse(text)


def test_there_and_back() -> None:
    lowest, highest, rest = read_hello(write_hello(MINE))
    assert (lowest, highest) == VERSIONS
    assert read_introduction(rest) == MINE
    assert read_welcome(write_welcome(MINE, 1)) == (1, MINE)
    assert read_refusal(write_refusal("no room\nhere")) == "no room here"


def test_the_newest_common_version_is_chosen() -> None:
    assert choose_version(1, 9) == VERSIONS[1]
    assert choose_version(*VERSIONS) == VERSIONS[1]


def test_a_newer_peer_hears_both_versions() -> None:
    with pytest.raises(
        Refused, match=r"speaks version 1 of .* other versions 7 to 9. Update Hawser on this side"
    ):
        choose_version(7, 9)


@pytest.mark.parametrize("versions", [(0, 0), (0, 1), (2, 1)])
def test_impossible_versions(versions: tuple[int, int]) -> None:
    with pytest.raises(Malformed, match="impossible versions"):
        read_hello(write_hello(MINE, versions))


def test_a_welcome_to_what_was_not_offered() -> None:
    with pytest.raises(Malformed, match=r"version 2 .* not offered"):
        read_welcome(write_welcome(MINE, 2))


def test_clusters_do_not_mix() -> None:
    other = Identity(role=PeerRole.OPERATOR, name="o", run="o#1", cluster="red")
    new = Identity(role=PeerRole.CLIENT, name="c", run="c#1")
    assert "node a belongs to cluster blue and operator o to cluster red" in str(objection(ME, other))
    assert objection(ME, new) is objection(new, other) is objection(ME, ME) is None


@pytest.mark.parametrize("name", ["", "x" * 256, "two\nlines"])
def test_impossible_names(name: str) -> None:
    identity = {"role": "node", "name": name, "run": "r", "cluster": ""}
    body = msgspec.msgpack.encode({"identity": identity, "most_requests": 1})
    with pytest.raises(Malformed, match="impossible name"):
        read_introduction(body)


def test_unknown_fields_are_passed_over() -> None:
    fields = {"role": "client", "name": "c", "run": "r", "cluster": "", "colour": "red"}
    body = msgspec.msgpack.encode({"identity": fields, "most_requests": 3, "later": [1, 2]})
    assert read_introduction(body).identity.name == "c"


@given(st.binary(max_size=200), st.integers(0, 200))
def test_changed_greetings_are_read_or_malformed(noise: bytes, place: int) -> None:
    sound = write_hello(MINE)
    for body in (noise, sound[:place] + noise, sound[:place] + noise + sound[place + len(noise) :]):
        with suppress(Malformed):
            _, _, rest = read_hello(body)
            assert read_introduction(rest).identity.name.isprintable()
        with suppress(Malformed):
            assert VERSIONS[0] <= read_welcome(body)[0] <= VERSIONS[1]
        with suppress(Malformed):
            assert read_refusal(body).isprintable()
    assert readable(noise).isprintable()
