"""The live page without a browser: who gets which facts, how often they are collected, which files have a token."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from mpsd.api.authority import Peer
from mpsd.api.event_bus import EventBus
from mpsd.api.method_table import METHODS, Privilege
from mpsd.api.methods import arenas, clients, queue, services
from mpsd.errors import NoSuchFault
from mpsd.metrics.http import HttpAnswer, Visit
from mpsd.metrics.live_page import _READER, ANYONE, OPERATORS, LivePage, read_token

TOKEN = "a-token-of-this-test"
LOCAL, OUTSIDE, SOCKET = "127.0.0.1:9402", "10.0.0.1:9402", "unix:/run/x"


class Asked:
    """Notes each method with whether an operator asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    async def __call__(self, peer: Peer, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append((method, peer.is_operator))
        if params.get("number") == 99:
            raise NoSuchFault("no fault 99")
        return {"items": [{"address": 2**63}], "next": None}


class Page:
    def __init__(self, listen: str = LOCAL, token: str = TOKEN) -> None:
        self.now, self.asked, self.bus = 0.0, Asked(), EventBus()
        self._pages = LivePage(self.asked, self.bus, listen, token, 1.0, lambda: self.now).pages()

    async def get(self, path: str = "/state", query: str = "", token: str = "", host: str = "localhost:9402") -> HttpAnswer:
        headers = {"host": host, **({"authorization": f"Bearer {token}"} if token else {})}
        return await self._pages[path](Visit(query, headers))


@pytest.mark.parametrize(
    ("listen", "own", "given", "host", "status"),
    [
        (LOCAL, TOKEN, "", "localhost:9402", 200),
        (LOCAL, TOKEN, "", "127.0.0.1:9402", 200),
        ("[::1]:9402", TOKEN, "", "[::1]:9402", 200),
        (LOCAL, TOKEN, "", "site.example", 403),
        (LOCAL, TOKEN, "", "", 403),
        (LOCAL, TOKEN, TOKEN, "site.example", 200),
        (LOCAL, TOKEN, TOKEN[:-1], "localhost", 401),
        (LOCAL, "", "anything-at-all-here", "localhost", 401),
        (OUTSIDE, TOKEN, "", "localhost", 401),
        (OUTSIDE, "", "", "10.0.0.1", 401),
        ("0.0.0.0:9402", TOKEN, "", "localhost", 401),
        (OUTSIDE, TOKEN, TOKEN, "10.0.0.1", 200),
        (SOCKET, "", "", "anything", 200),
    ],
)
@pytest.mark.parametrize("path", ["/state", "/fault"])
async def test_who_may_read(listen: str, own: str, given: str, host: str, status: int, path: str) -> None:
    page = Page(listen, own)
    answer = await page.get(path, "7", given, host)
    assert answer.status == status
    if status != 200:
        assert page.asked.calls == []
    assert {is_operator for _, is_operator in page.asked.calls} <= {bool(own) and given == own}


async def test_a_reader_without_the_token_asks_only_what_everybody_may_ask() -> None:
    page = Page()
    await page.get()
    asked = [name for name, _ in page.asked.calls]
    assert {METHODS[name].privilege for name in asked} == {Privilege.ANYONE}
    everything = {name for name, _ in (*ANYONE.values(), *OPERATORS.values())} | {"fault.list", "fault.get"}
    assert not [name for name in everything if METHODS[name].changes]


@pytest.mark.parametrize("module", [arenas, clients, queue, services])
def test_a_reader_without_the_token_sees_no_row_for_no_user(module: ModuleType) -> None:
    """Its uid was the one by which methods leave rows out for all users."""
    assert not _READER.may_see(module._NOBODY)


async def test_many_readers_get_one_collection_and_faults_are_read_after_events_alone() -> None:
    page = Page()
    bodies = {(await page.get()).body for _ in range(5)}
    assert len(bodies) == 1
    assert len(page.asked.calls) == len(ANYONE) + 1
    page.now = 1.0
    async with trio.open_nursery() as nursery:  # all find it too old at the same time
        for _ in range(5):
            nursery.start_soon(page.get)
    assert len(page.asked.calls) == 2 * len(ANYONE) + 1
    assert [name for name, _ in page.asked.calls].count("fault.list") == 1
    page.bus.publish("fault.opened", {"number": 1})
    page.now = 2.0
    await page.get()
    assert [name for name, _ in page.asked.calls].count("fault.list") == 2


async def test_a_fault_is_asked_for_by_its_number() -> None:
    page = Page()
    assert [(await page.get("/fault", query)).status for query in ("7", "99", "", "-1", "7x", "9" * 16)] == [
        200, 404, 400, 400, 400, 400
    ]  # fmt: skip
    assert json.loads((await page.get("/fault", "7")).body)["items"][0]["address"] == hex(2**63)


async def test_readers_of_faults_let_other_tasks_run_between_two() -> None:
    """As at the socket: 32 readers at once, whose faults are long, held up every client."""
    page, turns = Page(), [0]

    async def other_task() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as others:
        others.start_soon(other_task)
        async with trio.open_nursery() as readers:
            for _ in range(32):
                readers.start_soon(page.get, "/fault", "7")
        others.cancel_scope.cancel()
    assert turns[0] >= len(page.asked.calls) == 32


async def test_long_faults_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsd ends a page of its list early where faults are long; an event meanwhile makes what was read so far old."""
    page, turns = Page(), [0]

    async def ask(peer: Peer, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        page.asked.calls.append((method, peer.is_operator))
        if method != "fault.list":
            return {}
        number = (params["after"] or 100) - 1
        if number == 90 and len(page.asked.calls) < 20:
            page.bus.publish("fault.settled", {"number": 100})
        return {"items": [{"number": number}], "next": number}

    async def other_task() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Asked, "__call__", lambda self, *words: ask(*words))
    async with trio.open_nursery() as others:
        others.start_soon(other_task)
        body = json.loads((await page.get()).body)
        others.cancel_scope.cancel()
    assert [each["number"] for each in body["faults"]["items"]] == list(range(99, 49, -1))
    assert turns[0] >= 49
    page.now = 1.0
    await page.get()
    page.now = 2.0
    await page.get()
    assert [name for name, _ in page.asked.calls].count("fault.list") == 100


async def test_the_page_runs_its_own_script_alone_and_asks_this_server_alone() -> None:
    answer = await Page(OUTSIDE).get("/")
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    text = answer.body.decode()
    for word in ("http:", "https:", "//cdn", "src=", "innerHTML", "insertAdjacentHTML", "eval(", " style=", " onclick"):
        assert word not in text, word


def token_file(directory: Path, content: str = TOKEN + "\n", mode: int = 0o600) -> str:
    path = directory / "token"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_a_token_is_read(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path)) == TOKEN


@pytest.mark.parametrize(
    ("content", "mode"), [(TOKEN, 0o640), (TOKEN, 0o604), ("short", 0o600), ("", 0o600), ("a b" * 8, 0o600), ("x" * 300, 0o600)]
)
def test_a_file_that_others_read_or_that_has_no_token_is_refused(content: str, mode: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it (is not a file of mode 0600|has no token)"):
        read_token(token_file(tmp_path, content, mode))


def test_a_pipe_is_no_token_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ValueError, match="mode 0600"):
        read_token(str(tmp_path / "pipe"))
