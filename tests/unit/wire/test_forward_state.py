"""The head of a forward state, against its header's own numbers and what the C client writes."""

import os

import pytest
from mpsd_client import State
from mpsd_client._native import ffi, lib

from mpsd.errors import BadRequest
from mpsd.wire import forward_state
from mpsd.wire.forward_state import HEAD, StateHead, file_bytes, parse_head

GOOD = (forward_state.MAJOR, 0, forward_state.MAGIC, 7, 0, 100, 0)


def test_numbers_and_places_are_the_headers() -> None:
    for name in ("MAJOR", "MAGIC", "SLOTS", "LINE", "MOST_BYTES", "CONTROL_AT"):
        assert getattr(forward_state, name) == getattr(lib, f"MPSD_STATE_{name}")
    assert ffi.sizeof("struct mpsd_state_control") == forward_state.CONTROL_BYTES
    head = ffi.from_buffer("struct mpsd_state_head *", HEAD.pack(*range(1, 8)) + bytes(4096))
    names = ("major", "minor", "magic", "generation", "schema_hash", "record_bytes", "schema_bytes")
    assert [getattr(head, name) for name in names] == list(range(1, 8))


@pytest.mark.parametrize("size", [1, 8, 64, 65, 4096, 1 << 20])
def test_a_file_is_as_long_as_its_head_says(size: int) -> None:
    made = State.create({"data": f"bytes[{size}]"}, generation=9)
    head = parse_head(os.pread(made.fd, HEAD.size, 0))
    assert head == StateHead(9, os.fstat(made.fd).st_size) == StateHead(9, file_bytes(size))
    made.close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((2, *GOOD[1:]), "version 1 is wanted; found: 2.0"),
        ((*GOOD[:2], 5, *GOOD[3:]), "begins with 0x7453706d; found: 0x5"),
        ((*GOOD[:5], 0, 0), "found: 0"),
        ((*GOOD[:5], (1 << 20) + 1, 0), "has 1 to 1048576 bytes; found: 1048577"),
    ],
)
def test_another_head_is_refused(fields: tuple[int, ...], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_head(HEAD.pack(*fields))


def test_a_short_one_is_refused() -> None:
    with pytest.raises(BadRequest, match="found: 31 bytes"):
        parse_head(HEAD.pack(*GOOD)[:-1])
