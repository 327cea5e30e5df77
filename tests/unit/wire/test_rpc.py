"""Frames: every malformed one is refused, every good one survives the way there and back, and no bytes are too odd."""

import sys
from contextlib import suppress

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpsd.errors import NoRoom, ProtocolError
from mpsd.wire import rpc
from mpsd.wire.rpc import MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, MAX_ID, Notification, Request, Response, decode, encode


def pack(value: object) -> bytes:
    return msgpack.packb(value)


def hollow(levels: int) -> list[object]:
    """A request of so many arrays and maps in each other, and nothing in the innermost one."""
    inner: list[object] = []
    for _ in range(levels - 4):
        inner = [inner]
    return [0, 1, "status", [{"x": inner}]]


def nested(levels: int) -> list[object]:
    """Return a request with an innermost array this many arrays and maps deep."""
    value: object = []
    for _ in range(levels - 4):
        value = [value]
    return [0, 1, "status", [{"x": value}]]


MALFORMED = {
    "no bytes": b"",
    "a reserved byte": b"\xc1",
    "cut short": pack([0, 1, "status", []])[:-1],
    "a length without its array": b"\xdc\x00",
    "something behind it": pack([0, 1, "status", []]) + b"\xc0",
    "two frames in one": pack([0, 1, "status", []]) * 2,
    "text of ASCII": b"GET / HTTP/1.1\r\n\r\n",
    "JSON": b'{"jsonrpc": "2.0", "method": "status", "id": 1}',
    "nil": pack(None),
    "a map": pack({0: 1}),
    "no array but its length": b"\xdd\xff\xff\xff\xff",
    "a map that claims to be huge": b"\x94\x00\x01\xa1a\x91\xdf\xff\xff\xff\xff",
    "a string that claims to be huge": b"\x94\x00\x01\xdb\xff\xff\xff\xff",
    "an empty array": pack([]),
    "too short": pack([0, 1, "status"]),
    "too long": pack([0, 1, "status", [], None]),
    "an unknown kind": pack([3, 1, "status", []]),
    "a kind that is true": pack([True, 1, None, None]),
    "a kind that is a float": pack([0.0, 1, "status", []]),
    "a negative id": pack([0, -1, "status", []]),
    "an id over 32 bits": pack([0, MAX_ID + 1, "status", []]),
    "an id that is a float": pack([0, 1.0, "status", []]),
    "an id that is true": pack([0, True, "status", []]),
    "an id that is text": pack([0, "1", "status", []]),
    "no id": pack([0, None, "status", []]),
    "a method that is a number": pack([0, 1, 2, []]),
    "a method that is binary": msgpack.packb([0, 1, b"status", []], use_bin_type=True),
    "a method that is no UTF-8": b"\x94\x00\x01\xa2\xff\xfe\x90",
    "a lone surrogate": b"\x94\x00\x01\xa3\xed\xa0\x80\x90",
    "params that are a map": pack([0, 1, "status", {}]),
    "params that are nil": pack([0, 1, "status", None]),
    "params of two maps": pack([0, 1, "status", [{}, {}]]),
    "params by position": pack([0, 1, "lease.get", [7]]),
    "a key that is a number": pack([0, 1, "status", [{1: 2}]]),
    "a key that is binary": msgpack.packb([0, 1, "status", [{b"a": 2}]], use_bin_type=True),
    "a key that is nil": b"\x94\x00\x01\xa1a\x91\x81\xc0\x01",
    "a key that is an array": b"\x94\x00\x01\xa1a\x91\x81\x90\x01",
    "the same key twice": b"\x94\x00\x01\xa1a\x91\x82\xa1b\x01\xa1b\x02",
    "an extension type": pack([0, 1, "status", [{"x": msgpack.ExtType(5, b"12")}]]),
    "an empty extension type": b"\x94\x00\x01\xa1a\x91\x81\xa1b\xc7\x00\x05",
    "a timestamp": pack([0, 1, "status", [{"x": msgpack.Timestamp(1, 2)}]]),
    "binary": msgpack.packb([0, 1, "status", [{"x": b"12"}]], use_bin_type=True),
    "empty binary": msgpack.packb([0, 1, "status", [{"x": b""}]], use_bin_type=True),
    "one level too deep": pack(nested(MAX_DEPTH + 2)),
    "one empty level too deep": pack(hollow(MAX_DEPTH + 1)),
    "a thousand levels": b"\x91" * 1000 + b"\xc0",
    "as many levels as fit": b"\x91" * (MAX_BYTES - 1) + b"\xc0",
    "an array too long": pack([0, 1, "status", [{"x": [0] * (MAX_ENTRIES + 1)}]]),
    "a map too long": pack([0, 1, "status", [{"x": {str(n): 0 for n in range(MAX_ENTRIES + 1)}}]]),
    "too many values": pack([0, 1, "status", [{str(n): [0] * MAX_ENTRIES for n in range(9)}]]),
    "one byte too many": pack([0, 1, "status", [{"x": "a" * MAX_BYTES}]])[: MAX_BYTES + 1],
    "an error that is text": pack([1, 1, "no", None]),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.parametrize("params", [1, 2], ids=["good", "malformed"])
def test_no_key_is_interned(params: int) -> None:
    """Python 3.12 never frees an interned string: 3,000 requests with keys of 60 KB cost 170 MiB for good."""
    words = ["a key of no method", "of this test"]
    data, decoded = pack([0, 1, "status", [{", ".join(words): 1}] * params]), None
    with suppress(ProtocolError):
        decoded = decode(data)
    assert (decoded is None) is (params > 1)
    later = ", ".join(words)
    assert sys.intern(later) is later, "no equal string was interned before"


GOOD = {
    "without params": (pack([0, 0, "status", []]), Request(0, "status", {})),
    "with an empty map": (pack([0, 1, "status", [{}]]), Request(1, "status", {})),
    "the largest id": (pack([0, MAX_ID, "x", []]), Request(MAX_ID, "x", {})),
    "longer forms than needed": (
        b"\xdc\x00\x04\xcd\x00\x00\xce\x00\x00\x00\x01\xd9\x01a\xdd\x00\x00\x00\x00",
        Request(1, "a", {}),
    ),
    "a result": (pack([1, 7, None, {"a": [1]}]), Response(7, None, {"a": [1]})),
    "no result at all": (pack([1, 7, None, None]), Response(7, None, None)),
    "an error": (pack([1, 7, {"code": 2}, None]), Response(7, {"code": 2}, None)),
    "a notification": (pack([2, "event", [{"topic": "x"}]]), Notification("event", {"topic": "x"})),
    "the deepest": (pack(nested(MAX_DEPTH)), Request(1, "status", nested(MAX_DEPTH)[3][0])),  # type: ignore[index]
    "the deepest, with nothing in it": (pack(hollow(MAX_DEPTH)), Request(1, "status", hollow(MAX_DEPTH)[3][0])),  # type: ignore[index]
    "the longest array": (pack([0, 1, "a", [{"x": [0] * MAX_ENTRIES}]]), Request(1, "a", {"x": [0] * MAX_ENTRIES})),
}


@pytest.mark.parametrize(("data", "frame"), GOOD.values(), ids=GOOD.keys())
def test_a_frame_is_read(data: bytes, frame: rpc.Frame) -> None:
    assert decode(data) == frame


def test_a_frame_of_the_largest_size_is_read() -> None:
    room = MAX_BYTES - len(pack([0, 1, "a", [{"x": "a" * 40000}]]))
    data = pack([0, 1, "a", [{"x": "a" * (40000 + room)}]])
    assert len(data) == MAX_BYTES
    assert encode(decode(data)) == data


def test_a_frame_that_no_datagram_holds_is_not_made() -> None:
    with pytest.raises(ProtocolError):
        encode(Response(1, None, "a" * MAX_BYTES))


def test_an_error_carries_code_name_and_words() -> None:
    assert rpc.error_map(NoRoom("30 % are free")) == {"code": 16, "name": "NO_ROOM", "message": "30 % are free"}


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
NAMES = st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
PARAMS = st.dictionaries(st.text(max_size=8), SCALARS | st.lists(SCALARS, max_size=5), max_size=5)
IDS = st.integers(0, MAX_ID)
FRAMES = (
    st.builds(Request, IDS, st.text(max_size=30), PARAMS)
    | st.builds(Response, IDS, st.none() | PARAMS, SCALARS | PARAMS)
    | st.builds(Notification, st.text(max_size=30), PARAMS)
)


@given(FRAMES)
def test_a_frame_survives_the_way_there_and_back(frame: rpc.Frame) -> None:
    assert decode(encode(frame)) == frame


@given(st.binary(max_size=200) | VALUES.map(pack) | st.lists(VALUES, max_size=5).map(pack))
@example(b"\xc7\x00\xff")  # a timestamp without bytes
@example(b"\x81\xd4\xff\x00\x01")
def test_any_bytes_give_a_frame_or_a_protocol_error(data: bytes) -> None:
    try:
        frame = decode(data)
    except ProtocolError as error:
        assert len(str(error)) < 200
    else:
        assert decode(encode(frame)) == frame


@given(FRAMES.map(encode), st.data())
def test_any_damage_to_a_frame_gives_a_frame_or_a_protocol_error(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    damage = draw.draw(st.binary(max_size=4))
    try:
        decode(data[:at] + damage + data[at + draw.draw(st.integers(0, 4)) :])
    except ProtocolError:
        pass
