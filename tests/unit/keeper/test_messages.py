"""The keeper's datagrams, against its header's own numbers."""

import re
from pathlib import Path

import pytest

from mpsd.errors import ProtocolError
from mpsd.keeper import messages
from mpsd.keeper.messages import KeeperOp, Status, pack_request, parse_reply

HEADER = (Path(__file__).resolve().parents[3] / "native/include/mpsd_keeper.h").read_text()
REPLY = 0x8000


def number(name: str) -> int:
    found = re.search(rf"\bMPSD_KEEPER_{name} = (0x[0-9a-f]+|[0-9]+)", HEADER)
    assert found, name
    return int(found[1], 0)


@pytest.mark.parametrize("each", [*KeeperOp, *Status], ids=lambda each: f"{type(each).__name__}.{each.name}")
def test_numbers_are_the_headers(each):
    assert number(each.name) == each


def test_sizes_are_the_headers():
    for name in ("MAJOR", "MINOR", "PAGE", "ID_BYTES"):
        assert getattr(messages, name) == number(name)
    assert messages._MESSAGE.size == len(pack_request(KeeperOp.PUT, 1, "a", generation=1, size=2)) == 128
    assert (messages._ENTRY.size, messages._STAT.size) == (96, 128)
    for layout in (messages._MESSAGE, messages._ENTRY, messages._STAT):
        assert f'"{layout.format}"' in HEADER.replace("\n *", "").replace("  ", " ")


def reply(payload: bytes = b"", *, flags: int = REPLY, count: int = 0) -> bytes:
    return messages._MESSAGE.pack(1, 0, KeeperOp.LIST, flags, 7, 0, 1, 5, 0, count, b"name", 0, 0) + payload


def test_a_reply_is_read():
    found = parse_reply(reply(messages._ENTRY.pack(b"m.1", 3, 9, 0, 0), count=1, flags=REPLY | 0x4000))
    assert (found.op, found.sequence, found.name, found.size, found.has_more) == (KeeperOp.LIST, 7, "name", 5, True)
    assert found.entries() == [messages.KeeperEntry("m.1", 3, 9)]


@pytest.mark.parametrize("data", [b"", reply()[:-1], reply(flags=0)], ids=["nothing", "short", "no reply"])
def test_what_is_no_reply_is_refused(data):
    with pytest.raises(ProtocolError):
        parse_reply(data)


@pytest.mark.parametrize(("payload", "count"), [(b"", 1), (b"x" * 96, 0), (b"x" * 95, 1), (b"", 2**60), (b"x" * 96 * 65, 65)])
def test_a_list_that_does_not_fit_is_refused(payload, count):
    with pytest.raises(ProtocolError):
        parse_reply(reply(payload, count=count)).entries()


@pytest.mark.parametrize("payload", [b"", b"x" * 127, b"x" * 129])
def test_numbers_that_do_not_fit_are_refused(payload):
    with pytest.raises(ProtocolError):
        parse_reply(reply(payload)).keeper_pid()
    with pytest.raises(ProtocolError):
        parse_reply(reply(payload)).most_held()
