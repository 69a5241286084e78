"""The configuration of the daemons: a TOML file, then `HAWSER_SECTION__KEY` variables, then flags; later ones
win.

    [node]                            [operator]                                   [log]
    id = "n1"                         name = "o1"                                  level = "info"
    listen = "10.0.0.1:7400"          metadata = "etcd://10.0.0.9:2379"            format = "json"
    dir = "/var/lib/hawser"           nodes = { n1 = "10.0.0.1:7400", ... }        [http]
                                                                                   listen = "127.0.0.1:7401"

Lists in variables are written with commas, as on the command line: nodes as n1=10.0.0.1:7400,n2=...,
observers of transactions as module:factory,... `schema()` is the JSON schema of all of it.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from hawser.cluster.transport.address import Address
from hawser.errors import UsageError

__all__ = ["Config", "load", "node_addresses", "schema"]

_PREFIX: Final = "HAWSER_"
_SEPARATOR: Final = "__"

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Bytes = Annotated[int, Meta(ge=4096, le=1 << 40)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Unknown keys are errors, because they are typing mistakes."""


class NodeSection(_Section, frozen=True):
    """The section of `hawser node`."""

    id: str = ""
    listen: str = "127.0.0.1:7400"
    dir: str = ""
    tick_seconds: Seconds = 0.1
    segment_bytes: Bytes = 8 << 20
    checkpoint_entries: Annotated[int, Meta(ge=1)] = 10_000
    drain_seconds: Seconds = 10.0
    observers: list[str] = []
    staged_bytes: Bytes = 16 << 30

    def __post_init__(self) -> None:
        Address.parse(self.listen)


class OperatorSection(_Section, frozen=True):
    """The section of `hawser operator`."""

    name: str = "operator"
    metadata: str = ""
    nodes: dict[str, str] = {}
    tick_seconds: Seconds = 0.1
    patience: Annotated[int, Meta(ge=2, le=10_000)] = 8
    homes: Annotated[int, Meta(ge=1, le=1024)] = 4

    def __post_init__(self) -> None:
        for address in self.nodes.values():
            Address.parse(address)


class LogSection(_Section, frozen=True):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


class HttpSection(_Section, frozen=True):
    """`/livez`, `/readyz` and `/metrics`; nothing is served without an address."""

    listen: str = ""

    def __post_init__(self) -> None:
        if self.listen:
            Address.parse(self.listen)


class Config(_Section, frozen=True):
    """All sections."""

    node: NodeSection = NodeSection()
    operator: OperatorSection = OperatorSection()
    log: LogSection = LogSection()
    http: HttpSection = HttpSection()


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file."""
    return msgspec.json.schema(Config)


def load(
    file: Path | None, flags: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str] = os.environ
) -> Config:
    """Reads the file, then the environment, then the flags that are not None."""
    found: dict[str, Any] = {}
    if file is not None:
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"the configuration {file} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"the configuration {file} is not TOML: {error}") from error
    variables = {
        name: value for name, value in environment.items() if name.startswith(_PREFIX) and _SEPARATOR in name
    }
    for name, value in variables.items():
        section, _, key = name.removeprefix(_PREFIX).lower().partition(_SEPARATOR)
        _put(found, section, {key: _LISTS[key](value) if key in _LISTS else value})
    for section, given in flags.items():
        _put(found, section, {key: value for key, value in given.items() if value is not None})
    try:
        # The environment has only text, so numbers are converted.
        return msgspec.convert(found, Config, strict=False)
    except msgspec.ValidationError as error:
        places = [*([str(file)] if file is not None else []), *sorted(variables)]
        where = f" in {', '.join(places)}" if places else ""
        raise UsageError(f"the configuration{where} is wrong: {error}; see `hawser config schema`") from error


def _put(found: dict[str, Any], section: str, values: dict[str, Any]) -> None:
    place = found.setdefault(section, {}) if values else None
    # A value that is not a table is kept, so that the check reports it.
    if isinstance(place, dict):
        place.update(values)


def _nodes(text: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split(",") if each)
    return node_addresses((name.strip(), address.strip()) for name, _, address in pairs)


def node_addresses(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names of nodes and their addresses; UsageError if a name occurs twice."""
    addresses: dict[str, str] = {}
    for name, address in pairs:
        if name in addresses:
            raise UsageError(
                f"node {name!r} is given twice, {addresses[name]} and {address}; give it one address"
            )
        addresses[name] = address
    return addresses


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


# The keys with several values, by how a variable writes them.
_LISTS: Final = {"nodes": _nodes, "observers": _names}
