"""The client's protocol without a socket: answers find their calls, events keep their order, and no bytes are too odd."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpsd_client import Disconnected, Event, Lost, MpsdError, ProtocolError, Refused, calls, values
from mpsd_client import _conversation as conversation
from mpsd_client._calls import after
from mpsd_client._conversation import Conversation, hello
from mpsd_client._reading import read

from mpsd.wire.rpc import Request, decode
from tests.unit.wire.test_rpc import FRAMES, MALFORMED, VALUES, encode

HEALTH = {"ok": True, "state": "running", "problems": [], "uptime_seconds": 1.5}


def event(number: int) -> bytes:
    return msgpack.packb([2, "event", [{"topic": "domain.ready", "time": 1.0, "facts": {"number": number}}]])


def test_a_call_is_a_request_of_the_protocol() -> None:
    talk = Conversation()
    number, datagram = talk.ask(hello("a test"))
    assert decode(datagram) == Request(number, "hello", {"version": 1, "program": "a test"})
    number, datagram = talk.ask(calls.status())
    assert decode(datagram) == Request(number, "status", {})


def test_answers_find_their_calls_in_any_order() -> None:
    talk = Conversation()
    first, second = talk.ask(calls.health())[0], talk.ask(calls.limits_get())[0]
    talk.receive(msgpack.packb([1, second, {"code": 2, "name": "NOT_ALLOWED", "message": "no"}, None]))
    assert talk.answer(first) is None
    assert talk.answer(second) is not None
    with pytest.raises(Refused, match="NOT_ALLOWED: no"):
        talk.result(second)
    talk.receive(msgpack.packb([1, first, None, HEALTH | {"of a newer mpsd": 1}]))
    assert talk.result(first) == values.Health(True, "running", 1.5, ())


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.health())
    talk.forget(number)
    talk.receive(msgpack.packb([1, number, None, HEALTH]))
    assert talk.answer(number) is None


def test_events_keep_their_order_and_say_where_some_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MOST_EVENTS", 2)
    talk = Conversation()
    for number in range(5):
        talk.receive(event(number))
    talk.receive(msgpack.packb([2, "events.lost", [{"count": 10}]]))
    found = [talk.take_event() for _ in range(4)]
    assert found == [Event("domain.ready", 1.0, {"number": 0}), Event("domain.ready", 1.0, {"number": 1}), Lost(13), None]


def test_a_notification_of_a_newer_mpsd_is_ignored() -> None:
    talk = Conversation()
    talk.receive(msgpack.packb([2, "news", [{"x": 1}]]))
    assert talk.take_event() is None


def test_the_end_is_told_with_mpsds_last_words_but_after_what_came_before() -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.health())
    talk.receive(event(1))
    talk.receive(msgpack.packb([2, "goodbye", [{"code": 8, "name": "STOPPING", "message": "mpsd ends"}]]))
    talk.receive(b"")
    assert talk.take_event() == Event("domain.ready", 1.0, {"number": 1})
    for question in (talk.take_event, lambda: talk.answer(number)):
        with pytest.raises(Disconnected, match="STOPPING: mpsd ends") as ended:
            question()
        assert ended.value.why is not None
        assert ended.value.why.code == 8


def test_a_call_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="at most 65536"):
        Conversation().ask(calls.domain_drain("x" * 70000))


def test_pages_follow_each_other() -> None:
    call = calls.lease_list(state="active", limit=2)
    page = call.read({"items": [], "next": 7})
    following = after(call, page)
    assert following is not None
    assert following.params == {"state": "active", "limit": 2, "after": 7}
    assert after(call, call.read({"items": [], "next": None})) is None


@pytest.mark.parametrize("found", [None, 7, [], {}, {"ok": True}, "health"], ids=repr)
def test_a_result_that_is_none_is_said_to_be_none(found: Any) -> None:
    with pytest.raises(ProtocolError, match="Health"):
        read(values.Health, found)


@pytest.mark.parametrize("data", [data for data in MALFORMED.values() if data])
def test_nothing_malformed_is_more_than_a_protocol_error(data: bytes) -> None:
    receive(data)


@given(st.binary(max_size=100) | VALUES.map(msgpack.packb) | FRAMES.map(encode))
def test_no_bytes_are_too_odd(data: bytes) -> None:
    receive(data)


def receive(data: bytes) -> None:
    talk = Conversation()
    number, _ = talk.ask(calls.lease_list())
    try:
        talk.receive(data)
        if talk.answer(number):
            talk.result(number)
    except MpsdError:
        pass


def test_a_field_of_a_newer_mpsd_is_ignored_and_a_missing_one_refused() -> None:
    client = {
        "pid": 586, "start_time": 5860, "uid": 1000, "state": "running", "domain": "d1", "server_pid": 512, "lease_id": None,
        "sm_percent": None, "sm_count": None, "memory_bytes": None, "watched": True, "shield": False, "held": False,
    }  # fmt: skip
    assert read(values.MpsClient, client | {"later": 7}) == read(values.MpsClient, client)
    with pytest.raises(ProtocolError):
        read(values.MpsClient, {name: value for name, value in client.items() if name != "domain"})
