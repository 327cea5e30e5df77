"""MessagePack-RPC: one datagram is one frame.

    [0, id, method, params]    request         params: [] or [map]
    [1, id, error, result]     response        error: nil or a map {code, name, message}
    [2, method, params]        notification    params: [map]

Knows frames, but no methods.  Every datagram of any sender gives a frame or ProtocolError.
Prose: docs/protocol.md, "Frames".
"""

from collections.abc import Mapping
from typing import Any

import msgpack
import msgspec
from msgspec import Struct

from mpsd.errors import MpsdError, ProtocolError

MAX_BYTES = 64 * 1024  # of a datagram; long lists come in pages
MAX_DEPTH = 8  # nested arrays and maps; the deepest legitimate request has 4
MAX_ENTRIES = 1024  # of one array or map
MAX_VALUES = 8192  # of a frame in total: bounds the cost of checking it
MAX_ID = 2**32 - 1

_REQUEST, _RESPONSE, _NOTIFICATION = 0, 1, 2


class Request(Struct, frozen=True):
    id: int
    method: str
    params: Mapping[str, Any]


class Response(Struct, frozen=True):
    """`error` is None if the response has a result."""

    id: int
    error: Mapping[str, Any] | None
    result: Any


class Notification(Struct, frozen=True):
    method: str
    params: Mapping[str, Any]


Frame = Request | Response | Notification


def decode(data: bytes) -> Frame:
    """Return the frame of a datagram.  Raise ProtocolError.

    The first reading checks bounds and keys, the second makes the value: the msgpack library interns keys that are text, and
    Python 3.12 never frees an interned string, so that a caller could fill mpsd's memory with keys.
    """
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a datagram has more than {MAX_BYTES} bytes")
    try:
        msgpack.unpackb(
            data,
            raw=True,
            object_pairs_hook=_check_keys,
            ext_hook=_refuse_ext,
            max_array_len=MAX_ENTRIES,
            max_map_len=MAX_ENTRIES,
            max_str_len=MAX_BYTES,
            max_bin_len=0,
            max_ext_len=0,
        )
        value = msgspec.msgpack.decode(data)
    except ProtocolError:
        raise
    except (ValueError, RecursionError, msgpack.UnpackException, msgspec.MsgspecError) as exc:
        raise ProtocolError(f"a datagram is not the MessagePack of this protocol: {_words(exc)}") from None
    _check(value)
    return _frame(value)


def encode(frame: Frame) -> bytes:
    """Return the datagram of a frame.  Raise ProtocolError if it is too large."""
    match frame:
        case Request(number, method, params):
            value = [_REQUEST, number, method, [params] if params else []]
        case Response(number, error, result):
            value = [_RESPONSE, number, error, result]
        case Notification(method, params):
            value = [_NOTIFICATION, method, [params]]
    data: bytes = msgpack.packb(value)
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a frame has {len(data)} bytes, and a datagram at most {MAX_BYTES}")
    return data


def error_map(error: MpsdError) -> dict[str, Any]:
    """Return a refusal as responses and `goodbye` carry it."""
    return {"code": error.code.value, "name": error.code.name, "message": str(error)}


def size(value: Any) -> int:
    """Return how many bytes a value takes in a frame."""
    return len(msgpack.packb(value))


def _check_keys(pairs: list[tuple[bytes, Any]]) -> None:
    """Refuse a key given twice: mpsd and another reader could take different values."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ProtocolError("a map has the same key twice")


def _refuse_ext(code: int, data: bytes) -> Any:
    raise ProtocolError(f"extension type {code} has no meaning here")


def _check(value: Any) -> None:
    """Check that a value is within the bounds, and made of nil, booleans, numbers, strings, arrays and maps."""
    values = depth = 0
    level = [value]
    while level:
        inner: list[Any] = []
        if any(isinstance(each, dict | list) for each in level):
            depth += 1
        if depth > MAX_DEPTH:
            raise ProtocolError(f"a frame has more than {MAX_DEPTH} levels")
        for each in level:
            if isinstance(each, dict):
                if not all(isinstance(key, str) for key in each):
                    raise ProtocolError("a map has a key that is not a string")
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
            elif isinstance(each, bytes):
                raise ProtocolError("binary types have no meaning here")
        values += len(level)
        if values + len(inner) > MAX_VALUES:
            raise ProtocolError(f"a frame has more than {MAX_VALUES} values")
        level = inner


def _frame(value: Any) -> Frame:
    match value:
        case [kind, number, str(method), list(params)] if _is(kind, _REQUEST):
            return Request(_id(number), method, _params(params))
        case [kind, number, error, result] if _is(kind, _RESPONSE):
            return Response(_id(number), _error(error), result)
        case [kind, str(method), list(params)] if _is(kind, _NOTIFICATION):
            return Notification(method, _params(params))
    raise ProtocolError("a frame is [0, id, method, params], [1, id, error, result] or [2, method, params]")


def _is(kind: Any, wanted: int) -> bool:
    return type(kind) is int and kind == wanted  # True and 1.0 are equal to 1, but are not a kind


def _id(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MAX_ID:
        raise ProtocolError(f"an id is a whole number from 0 to {MAX_ID}")
    return number


def _params(params: list[Any]) -> Mapping[str, Any]:
    match params:
        case []:
            return {}
        case [dict(named)]:
            return named
    raise ProtocolError("params are an array that holds one map, or nothing")


def _error(error: Any) -> Mapping[str, Any] | None:
    if error is None or isinstance(error, dict):
        return error
    raise ProtocolError("an error is nil or a map")


def _words(exc: BaseException) -> str:
    return str(exc)[:100] or type(exc).__name__
