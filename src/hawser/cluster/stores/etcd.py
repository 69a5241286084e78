"""A metadata store in etcd (3.4 or later), through its JSON gateway; for operators on several machines.

The version of a key is etcd's `mod_revision`: the store's revision at the key's last write, which is never
reused. A write is one transaction: compare the version, then put, or else read the current value. Reads are
linearizable, which is etcd's default: the member that answers confirms with a majority that it is not behind.

Endpoints are tried in turn, beginning with the one that answered last. A read tries the next one after any
failure. A write does so only if no connection was made: once sent, it may have taken effect, and a second
attempt could not tell its own success from another operator's write.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from hawser import errors
from hawser.cluster.stores.store import (
    Conflict,
    StoreUnavailable,
    Value,
    after_prefix,
    check_write,
    encoded_key,
)
from hawser.record.schema import described

try:
    import requests
    from etcd3gw.client import Etcd3Client
    from etcd3gw.exceptions import Etcd3Exception
    from urllib3.exceptions import NewConnectionError
except ImportError as error:
    raise errors.UsageError(
        "a metadata store in etcd needs the package etcd3gw: pip install 'hawser-bus[etcd]'"
    ) from error

__all__ = ["DEFAULT_PREFIX", "EtcdStore", "parse_endpoints"]

# The prefix ends in two slashes, and no prefix has two within it: no key of the cluster `a/b` begins with the
# prefix of the cluster `a`.
DEFAULT_PREFIX: Final = "hawser//"

_FORM: Final = "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"
_API: Final = "/v3/"
# The gRPC codes with which etcd reports that it did nothing.
_REFUSALS: Final = frozenset({3, 5, 7, 8, 9, 12, 16})

_Answer = TypeVar("_Answer")


class _Header(msgspec.Struct, frozen=True):
    """Every answer of an etcd has it; an answer without it does not come from an etcd."""

    revision: int


class _Pair(msgspec.Struct, frozen=True):
    key: bytes
    mod_revision: int
    value: bytes = b""


class _Range(msgspec.Struct, frozen=True):
    # The gateway omits empty, zero and false values.
    kvs: tuple[_Pair, ...] = ()


class _RangeAnswer(_Range, frozen=True, kw_only=True):
    header: _Header


class _Response(msgspec.Struct, frozen=True):
    response_range: _Range | None = None


class _TransactionAnswer(msgspec.Struct, frozen=True):
    header: _Header
    succeeded: bool = False
    responses: tuple[_Response, ...] = ()


class _Refusal(msgspec.Struct, frozen=True):
    """The gateway's answer with a status other than 200."""

    error: str = ""
    code: int = 0


_decode_refusal = msgspec.json.Decoder(_Refusal).decode
for _kind in (_RangeAnswer, _TransactionAnswer):
    described(_kind)


class EtcdStore:
    """A Store under `prefix` in the etcd whose members serve clients at `endpoints`, pairs of host and port.

    `timeout_seconds` is for a whole call, and shared out evenly among the endpoints.
    """

    def __init__(
        self, endpoints: Sequence[tuple[str, int]], prefix: str = DEFAULT_PREFIX, timeout_seconds: float = 5.0
    ) -> None:
        assert endpoints and prefix
        self.timeout_seconds = timeout_seconds
        self._prefix = prefix.encode()
        share = timeout_seconds / len(endpoints)
        self._clients = [_client(host, port, share) for host, port in endpoints]
        # The client that answered last. A thread that reads an outdated value only loses time.
        self._preferred = 0
        self._closed = False

    def get(self, key: str) -> Value | None:
        return _first(self._read(f"reading {key!r}", {"key": _text(self._key(key))}))

    def list(self, prefix: str) -> dict[str, Value]:
        start = self._key(prefix) if prefix else self._prefix
        query = {
            "key": _text(start),
            "range_end": _text(after_prefix(start)),
            "sort_order": "ASCEND",
            "sort_target": "KEY",
        }
        pairs = self._read(f"listing {prefix!r}", query).kvs
        return {
            pair.key[len(self._prefix) :].decode(): Value(pair.value, pair.mod_revision) for pair in pairs
        }

    def put(self, key: str, data: bytes, expected: int | None) -> Value | Conflict:
        check_write(key, data, expected)
        place = _text(self._key(key))
        transaction = {
            "compare": [_is_version(place, expected or 0)],
            "success": [{"request_put": {"key": place, "value": _text(data)}}],
            "failure": [{"request_range": {"key": place}}],
        }

        answer = self._write(f"writing {key!r}", transaction)
        if not answer.succeeded:
            found = answer.responses[0].response_range
            assert found is not None
            return Conflict(_first(found))
        version = answer.header.revision
        assert expected is None or version > expected
        return Value(data, version)

    def delete(self, key: str, expected: int) -> bool:
        assert expected > 0, "versions begin at 1"
        place = _text(self._key(key))
        transaction = {
            "compare": [_is_version(place, expected)],
            "success": [{"request_delete_range": {"key": place}}],
        }
        return self._write(f"deleting {key!r}", transaction).succeeded

    def close(self) -> None:
        self._closed = True
        for client in self._clients:
            client.session.close()

    def _key(self, key: str) -> bytes:
        return self._prefix + encoded_key(key)

    def _read(self, doing: str, query: dict[str, Any]) -> _RangeAnswer:
        def ask(client: Etcd3Client) -> _RangeAnswer:
            answer = client.post(client.get_url("kv/range"), json=query)
            return msgspec.convert(answer, _RangeAnswer, strict=False)

        return self._ask(doing, ask, lambda error: "none")

    def _write(self, doing: str, transaction: dict[str, Any]) -> _TransactionAnswer:
        def ask(client: Etcd3Client) -> _TransactionAnswer:
            answer = msgspec.convert(client.transaction(transaction), _TransactionAnswer, strict=False)
            if not answer.succeeded and len(answer.responses) != len(transaction.get("failure", ())):
                raise msgspec.ValidationError("neither done nor refused")
            return answer

        return self._ask(doing, ask, _outcome)

    def _ask(
        self,
        doing: str,
        ask: Callable[[Etcd3Client], _Answer],
        outcome_of: Callable[[Exception], Literal["none", "unknown"]],
    ) -> _Answer:
        """The first answer of any endpoint; stops where another attempt could repeat a write."""
        failures: list[str] = []
        outcome: Literal["none", "unknown"] = "none"
        first = self._preferred
        for turn in range(len(self._clients)):
            if self._closed:
                raise errors.Closed(f"metadata store {self._clients[0].base_url} is closed")
            place = (first + turn) % len(self._clients)
            client = self._clients[place]
            try:
                answer = ask(client)
            except (Etcd3Exception, requests.RequestException, msgspec.MsgspecError) as error:
                failures.append(f"{client.base_url}: {_reason(error)}")
                self._preferred = (place + 1) % len(self._clients)
                outcome = outcome_of(error)
                if outcome == "unknown":
                    break
            else:
                self._preferred = place
                return answer
        advice = "whether it was done, reading will tell" if outcome == "unknown" else "nothing was changed"
        raise StoreUnavailable(
            f"the metadata store etcd: {doing} failed ({'; '.join(failures)}); "
            f"{advice}. Check that a majority of etcd's members is running and reachable",
            outcome,
        )


def parse_endpoints(url: str) -> tuple[list[tuple[str, int]], str]:
    """Hosts and ports, and the prefix of all keys, or UsageError."""
    addresses, _, prefix = url.removeprefix("etcd://").partition("/")
    try:
        endpoints = [_endpoint(address) for address in addresses.split(",")]
    except ValueError as error:
        raise errors.UsageError(f"{url!r} is not the URL of an etcd ({error}). Write {_FORM}") from None
    prefix = prefix.strip("/")
    if "//" in prefix:
        raise errors.UsageError(f"{url!r}: a prefix has single slashes within it. Write {_FORM}")
    return endpoints, f"{prefix}//" if prefix else DEFAULT_PREFIX


def _endpoint(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    if not parts.hostname or not parts.port or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return parts.hostname, parts.port


def _client(host: str, port: int, timeout_seconds: float) -> Etcd3Client:
    session = requests.Session()
    # A proxy or password of the environment must not apply to the store.
    session.trust_env = False
    return Etcd3Client(host, port, timeout=timeout_seconds, api_path=_API, session=session)


def _is_version(key: str, version: int) -> dict[str, Any]:
    """True if that is the key's version; 0: if there is no such key."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": version}


def _first(answer: _Range) -> Value | None:
    return Value(answer.kvs[0].value, answer.kvs[0].mod_revision) if answer.kvs else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _outcome(error: Exception) -> Literal["none", "unknown"]:
    """The outcome of a write that failed with `error`."""
    cause = error.__context__ if isinstance(error, Etcd3Exception) else error
    if isinstance(cause, requests.ConnectTimeout):
        return "none"
    if isinstance(cause, requests.ConnectionError) and cause.args:
        never_connected = isinstance(getattr(cause.args[0], "reason", None), NewConnectionError)
        return "none" if never_connected else "unknown"
    return "none" if _refusal(error).code in _REFUSALS else "unknown"


def _refusal(error: Exception) -> _Refusal:
    try:
        return _decode_refusal(getattr(error, "detail_text", None) or "")
    except msgspec.MsgspecError:
        return _Refusal()


def _reason(error: Exception) -> str:
    """The innermost cause that a person can act on."""
    cause = error.__context__ if isinstance(error, Etcd3Exception) and error.__context__ else error
    if isinstance(cause, requests.Timeout):
        return "no answer in time"
    if isinstance(cause, requests.ConnectionError) and cause.args:
        reason = getattr(cause.args[0], "reason", cause.args[0])
        return str(reason).rpartition(": ")[2]
    return _refusal(error).error or getattr(error, "detail_text", None) or f"{type(error).__name__}: {error}"
