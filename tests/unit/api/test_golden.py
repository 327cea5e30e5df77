"""Recorded frames of version 1: both sides still read and write them, and mpsd still gives these answers.

The files are never edited, only added to; one goes if a later one has all its requests and all its fields.
In them `#` describes the next frame in JSON, `>` is to mpsd, `<` from it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mpsd_client._conversation import Conversation

from mpsd.api.method_table import HELLO, METHODS
from mpsd.api.protocol_page import RESULTS
from mpsd.wire.fields import Result
from mpsd.wire.messages import MINOR, VERSION
from mpsd.wire.params import parse
from mpsd.wire.rpc import Notification, Request, Response, decode, encode
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, Caller, open_daemon

FILES = sorted((Path(__file__).resolve().parents[2] / "golden/v1").glob("*.hex"))
CALLERS = {"operator": OPERATOR, "owner": OWNER, "stranger": STRANGER}
UNGREETED = ("hello", "hello_of_another_version", "no_hello")


def frames(text: str) -> Iterator[tuple[str, bytes, Any]]:
    """Return direction, bytes and description of each frame."""
    said: Any = None
    entries: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            entries[-1] += line
        else:
            entries.append(line)
    for entry in entries:
        if entry.startswith("# ["):
            said = json.loads(entry[2:])
        elif entry[0] in "<>":
            yield entry[0], bytes.fromhex(entry[1:]), said


def every_frame() -> list[Any]:
    return [
        pytest.param(direction, data, said, id=f"{path.stem} {number}")
        for path in FILES
        for number, (direction, data, said) in enumerate(frames(path.read_text()))
    ]


@pytest.mark.parametrize(("direction", "data", "said"), every_frame())
def test_a_frame_is_read_and_written_as_it_was(direction: str, data: bytes, said: Any) -> None:
    assert msgpack.unpackb(data) == said
    frame = decode(data)
    assert encode(frame) == data
    assert isinstance(frame, Request) == (direction == ">")
    if direction == "<":
        Conversation().receive(data)


CONVERSATIONS = {path.stem: path.read_text() for path in FILES if not path.stem.startswith("notifications")}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_what_was_asked_is_answered_as_it_was(name: str, tmp_path: Path) -> None:
    """Fields may have been added; none is gone, none has another type, and errors have the same code."""
    text = CONVERSATIONS[name]
    who = CALLERS[text.partition("\n")[0].removeprefix("# caller: ")]
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[586] = 5860
        daemon.bus.publish("fault.xid", {"xid": 31, "device": "PCI:0000:00:06", "pid": 586, "domain": "d1"})
        caller = daemon.connect(who) if name in UNGREETED else await daemon.call_as(who)
        for direction, data, _ in frames(text):
            if direction == ">":
                await caller.send(data, [daemon.any_fd()] * descriptors_of(data))
            else:
                await expect(caller, data)


def descriptors_of(data: bytes) -> int:
    """Return the descriptors of a request: as many as its parameters announce."""
    request = decode(data)
    assert isinstance(request, Request)
    method = METHODS.get(request.method)
    return method.takes(parse(method.ask, request.params)) if method is not None and method.takes is not None else 0


async def expect(caller: Caller, data: bytes) -> None:
    """The next frame of that kind; between a request and its response, notifications may come."""
    expected = decode(data)
    found = next((event for event in caller.events if isinstance(expected, Notification)), None)
    while found is None:
        frame = await caller.receive()
        assert frame is not None
        if isinstance(frame, Notification) and isinstance(expected, Response):
            caller.events.append(frame)
        else:
            found = frame
    if found in caller.events:
        caller.events.remove(found)
    assert type(found) is type(expected)
    if isinstance(expected, Response):
        assert isinstance(found, Response)
        assert found.id == expected.id
        assert (found.error or {}).get("code") == (expected.error or {}).get("code")
        alike(expected.result, found.result, "result")
    elif isinstance(expected, Notification):
        assert isinstance(found, Notification)
        assert found.method == expected.method
        alike(expected.params, found.params, "params")


def alike(expected: Any, found: Any, where: str) -> None:
    """Check that the found value has everything that a reader of the expected one relies on."""
    assert type(expected) is type(found), where
    if isinstance(expected, dict):
        assert set(expected) <= set(found), where
        for name, value in expected.items():
            alike(value, found[name], f"{where}.{name}")
    elif isinstance(expected, list):
        for one, other in zip(expected, found, strict=False):
            alike(one, other, f"{where}[]")


def test_every_method_and_every_notification_has_its_frames() -> None:
    seen = [said for path in FILES for _, _, said in frames(path.read_text())]
    assert {said[2] for said in seen if said[0] == 0} >= {HELLO, *METHODS}
    assert {said[1] for said in seen if said[0] == 2} == {"event", "events.lost", "goodbye"}
    assert VERSION == 1


def test_every_field_of_every_result_has_its_frames() -> None:
    """A release that adds fields, or raises the minor version, adds files: its answers are promises too."""
    answered: dict[Result, set[str]] = {}
    for path in FILES:
        methods: dict[int, str] = {}
        for _, _, said in frames(path.read_text()):
            if said[0] == 0:
                methods[said[1]] = said[2]
            elif said[0] == 1 and said[2] is None:
                result = said[3]
                entries = [result, *(each for each in result.get("items", []) if isinstance(each, dict))]
                answered.setdefault(RESULTS[methods[said[1]]], set()).update(*entries)
    assert {name: set(each.names) - answered[each] for name, each in RESULTS.items() if set(each.names) - answered[each]} == {}
    assert "IDLE" in every_code()
    assert f'"minor": {MINOR}' in "".join(path.read_text() for path in FILES)


def every_code() -> Iterator[str]:
    """Return the names of the error codes in answers and in goodbyes."""
    for path in FILES:
        for _, _, said in frames(path.read_text()):
            if said[0] == 1 and said[2] is not None:
                yield said[2]["name"]
            elif said[0] == 2 and said[1] == "goodbye":
                yield said[2][0]["name"]
