"""mpsd's values as MessagePack: every value has a form, and it can be sent."""

import math
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from mpsd.model.lease import LeaseState, Selector, SelectorKind
from mpsd.model.process import ProcessId
from mpsd.wire.plain import plain


class Holder(Struct):
    inner: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (LeaseState.ACTIVE, "active"),
        (ProcessId(7, 8), {"pid": 7, "start_time": 8}),
        (Selector(SelectorKind.UID, "5"), {"kind": "uid", "value": "5", "start_time": 0}),
        (Holder((1, frozenset({2}))), {"inner": [1, [2]]}),
        ({1: None, "a": True}, {"1": None, "a": True}),
        (2**64, str(2**64)),
        (math.inf, None),
        (b"\xff", "b'\\xff'"),
        (Path("/dev/null"), "PosixPath('/dev/null')"),
        ("a\udc80b", "a?b"),
    ],
    ids=repr,
)
def test_the_form_of_a_value(value: object, expected: object) -> None:
    assert plain(value) == expected


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner) | st.builds(Holder, inner),
    max_leaves=10,
)


@given(ODD)
def test_everything_can_be_sent(value: object) -> None:
    msgpack.packb(plain(value))
