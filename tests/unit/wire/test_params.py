"""Parameters: values of the right kind are accepted, all others are refused by name, however odd."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.api.method_table import METHODS
from mpsd.errors import BadRequest
from mpsd.model.lease import DomainPolicy, SelectorKind
from mpsd.wire.arena_messages import ArenaName, DropMemory, PutMemory
from mpsd.wire.messages import CreateLease, Hello, ListLeases, Nothing, Page, SelectorParams, SetLimits, Subscribe
from mpsd.wire.params import parse, walk
from tests.unit.wire.test_rpc import VALUES

PUT = {"id": 1, "generation": 1}
LEASE = {"name": "training", "selector": {"kind": "uid", "value": "1000"}}


def test_what_is_not_said_takes_its_default() -> None:
    made = parse(CreateLease, LEASE)
    assert made.selector == SelectorParams(SelectorKind.UID, "1000")
    assert (made.gpus, made.sm_percent, made.domain, made.processes) == ((), None, DomainPolicy.SHARED, 1)
    assert parse(Page, {}) == Page(after=None, limit=100)


def test_what_is_said_is_taken() -> None:
    more = {"gpus": ["0", "GPU-1"], "sm_percent": 30, "memory_bytes": {"0": 1 << 30}, "domain": "own", "ttl_seconds": 60}
    made = parse(CreateLease, {**LEASE, **more})
    assert made.gpus == ("0", "GPU-1")
    assert made.sm_percent == 30.0
    assert made.memory_bytes == {"0": 1 << 30}
    assert made.domain is DomainPolicy.OWN


def test_pairs_are_pairs() -> None:
    assert parse(PutMemory, {**PUT, "allocations": [[0, 1 << 21], [1 << 22, 1 << 23]]}).allocations == (
        (0, 1 << 21), (1 << 22, 1 << 23),
    )  # fmt: skip


UNFIT: list[tuple[type, dict[str, Any], str]] = [
    (CreateLease, {}, "name is missing"),
    (CreateLease, {"name": "x"}, "selector is missing"),
    (CreateLease, {**LEASE, "name": ""}, "parameter name"),
    (CreateLease, {**LEASE, "name": "x" * 129}, "129 characters"),
    (CreateLease, {**LEASE, "name": "\x1b[2J"}, "printable"),
    (CreateLease, {**LEASE, "name": 7}, "a whole number"),
    (CreateLease, {**LEASE, "name": None}, "found nil"),
    (CreateLease, {**LEASE, "selector": "uid"}, "map: kind, value, start_time"),
    (CreateLease, {**LEASE, "selector": {"kind": "uid"}}, "selector.value is missing"),
    (CreateLease, {**LEASE, "selector": {"kind": "gid", "value": "1"}}, '"pid", "token", "cgroup", "uid"'),
    (CreateLease, {**LEASE, "selector": {"kind": "uid", "value": "1", "gid": 1}}, '"selector.gid"'),
    (CreateLease, {**LEASE, "memory_byte": {}}, "memory_byte"),
    (CreateLease, {**LEASE, "sm_percent": 0}, "number, 0.0001 to 100"),
    (CreateLease, {**LEASE, "sm_percent": 100.5}, "number, 0.0001 to 100"),
    (CreateLease, {**LEASE, "sm_percent": math.nan}, "nan"),
    (CreateLease, {**LEASE, "sm_percent": True}, "a boolean"),
    (CreateLease, {**LEASE, "ttl_seconds": math.inf}, "inf"),
    (CreateLease, {**LEASE, "ttl_seconds": 2e9}, "1e9"),
    (CreateLease, {**LEASE, "wait_seconds": -1}, "0 to 1e9"),
    (CreateLease, {**LEASE, "processes": 1.0}, "whole number, 1 to 1024"),
    (CreateLease, {**LEASE, "processes": True}, "a boolean"),
    (CreateLease, {**LEASE, "gpus": "0"}, "array of at most 64"),
    (CreateLease, {**LEASE, "gpus": ["0"] * 65}, "array of at most 64"),
    (CreateLease, {**LEASE, "gpus": [0]}, "printable text"),
    (CreateLease, {**LEASE, "memory_bytes": {"0": 1 << 19}}, "1048576"),
    (CreateLease, {**LEASE, "memory_bytes": ["0"]}, "map of at most 64"),
    (CreateLease, {**LEASE, "level": "urgent"}, '"interactive", "batch"'),
    (SetLimits, {"default_client_priority": 2}, "0 to 1"),
    (Page, {"limit": 0}, "1 to 1000"),
    (Page, {"after": -1}, "or nil"),
    (ListLeases, {"state": "gone"}, '"queued", "active"'),
    (Subscribe, {"topics": [""]}, "1 to 64 characters"),
    (Nothing, {"verbose": True}, "accepted: none"),
    (Hello, {"version": "1"}, "2^32 - 1"),
    (ArenaName, {"name": "a/b"}, "letters, digits, dots, underscores and hyphens, 1 to 128 characters"),
    (ArenaName, {"name": ""}, "1 to 128 characters"),
    (ArenaName, {"name": "é"}, "letters"),
    (ArenaName, {"name": "a\n"}, "letters"),
    (DropMemory, {"id": 1, "generation": 1, "offsets": []}, "array of 1 to 1024"),
    (DropMemory, {"id": 1, "generation": 1, "offsets": [1]}, "a multiple of 2097152"),
    (DropMemory, {"id": 1, "generation": 1, "offsets": [True]}, "a multiple of 2097152"),
    (PutMemory, {**PUT, "allocations": [[0]]}, "[offset, bytes]"),
    (PutMemory, {**PUT, "allocations": [{"offset": 0}]}, "[offset, bytes]"),
    (PutMemory, {**PUT, "allocations": [[0, 0]]}, "2097152 to "),
    (PutMemory, {**PUT, "allocations": [[0, 1 << 21]] * 129}, "array of 1 to 128"),
]


@pytest.mark.parametrize(("message", "given_", "words"), UNFIT, ids=lambda each: repr(each)[:60])
def test_what_is_unfit_is_refused_by_name(message: type, given_: dict[str, Any], words: str) -> None:
    """The message names the value found and the values accepted, briefly, for any input."""
    with pytest.raises(BadRequest) as refused:
        parse(message, given_)
    found = str(refused.value)
    assert words in found
    assert len(found) < 400


MESSAGES = sorted({method.ask for method in METHODS.values()} | {Hello}, key=lambda each: each.__name__)


@given(st.lists(st.tuples(st.integers(0, 100), VALUES | st.just({"kind": "pid", "value": "1"})), max_size=9))
def test_any_values_give_a_message_or_a_bad_request(drawn: list[tuple[int, Any]]) -> None:
    """The same values to all messages: to draw them is what takes the time."""
    for message in MESSAGES:
        names = [each.name for each in walk(message)] + ["other"]
        given_ = {names[at % len(names)]: value for at, value in drawn}
        try:
            made = parse(message, given_)
        except BadRequest as refused:
            assert len(str(refused)) < 1000
        else:
            assert isinstance(made, message)
