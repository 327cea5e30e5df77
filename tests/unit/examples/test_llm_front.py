"""The LLM example's front end: real sockets, and members that send what the test chooses."""

import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import front
import pytest
import trio
from asked import MOST_PROMPT
from backend import Lines, listen
from front import Front
from load import Result
from load import run as run_load
from streams import MOST_TOKENS
from toy import continued
from web import Url, ask


@dataclass
class FakeService:
    front: Front
    url: Url
    place: str
    members: list["Member"] = field(default_factory=list)


@asynccontextmanager
async def open_service(short_dir: Path, most: int = 8, patience: float = 20.0) -> AsyncIterator[FakeService]:
    place = str(short_dir / "llm.sock")
    with trio.fail_after(20):
        front = Front(most, patience, None)
        clients = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, front.backend.serve, [listen(place)]))
            nursery.start_soon(partial(trio.serve_listeners, front.serve, clients))
            service = FakeService(front, Url("127.0.0.1", clients[0].socket.getsockname()[1]), place)
            yield service
            for member in service.members:
                await member.stream.aclose()
            nursery.cancel_scope.cancel()


class Member:
    """A connected member that reads and writes JSON."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream, self._lines = stream, Lines(stream)

    @classmethod
    async def join(cls, service: FakeService, generation: int) -> "Member":
        made = cls(await trio.open_unix_socket(service.place))
        service.members.append(made)
        await made.say(hello={"generation": generation, "pid": 586, "vocab": 99, "length": 99})
        return made

    async def say(self, **said: Any) -> None:
        await self.stream.send_all(json.dumps(said).encode() + b"\n")

    async def hear(self, key: str) -> Any:
        """Read the next message, which must be this one."""
        found = await self._lines.receive()
        assert found is not None, f"{key} was to come, and the connection has ended"
        assert list(found) == [key]
        return found[key]

    async def request(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.hear("request")
        return found

    async def make(self, request: dict[str, Any], first: int, end: int) -> None:
        """Return tokens for the request: 100 and more."""
        await self.say(tokens=[[request["id"], index, 100 + index] for index in range(first, end)])

    async def is_sent_away(self) -> bool:
        return await self._lines.receive() is None


class Client:
    """Asks for tokens; `result` has the answer."""

    def __init__(self, service: FakeService, nursery: trio.Nursery, count: int = 4) -> None:
        self.result = Result(0, [1, 2], {"max_tokens": count})
        self.status = 0
        self.over = trio.Event()
        nursery.start_soon(self._ask, service, count)

    async def _ask(self, service: FakeService, count: int) -> None:
        body = json.dumps({"prompt": [1, 2], "max_tokens": count}).encode()
        self.status = await ask(service.url, "POST", "/generate", body, self.result.hear)
        self.over.set()


async def told(service: FakeService, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    said: list[Any] = []
    status = await ask(service.url, method, path, body, lambda _, line: said.append(line))
    return status, said[0]


async def test_a_stream_goes_on_where_another_member_takes_over(short_dir: Path) -> None:
    """Its client notices nothing; what comes twice is dropped."""
    async with open_service(short_dir) as service, trio.open_nursery() as nursery:
        first = await Member.join(service, 1)
        await first.hear("all")
        client = Client(service, nursery)
        request = await first.request()
        assert (request["prompt"], request["have"]) == ([1, 2], [])
        await first.make(request, 0, 2)
        await first.stream.aclose()
        second = await Member.join(service, 2)
        again = await second.request()
        await second.hear("all")
        assert again["id"] == request["id"]
        await second.make(request, 1, 4)
        assert await second.hear("got") == request["id"]
        await client.over.wait()
        assert (client.status, client.result.tokens, client.result.trouble) == (200, [100, 101, 102, 103], "")
        assert client.result.is_done
        counts = service.front.streams.counts
        assert (counts.tokens, counts.finished, counts.differing, counts.members) == (4, 1, 0, 2)


async def test_a_member_of_the_past_is_sent_away(short_dir: Path) -> None:
    async with open_service(short_dir) as service:
        new = await Member.join(service, 5)
        await new.hear("all")
        old = await Member.join(service, 4)
        assert await old.is_sent_away()
        newer = await Member.join(service, 6)
        await newer.hear("all")
        assert await new.is_sent_away()
        assert (await told(service, "GET", "/stats"))[1]["generation"] == 6


async def test_tokens_that_are_missing_are_asked_for_once(short_dir: Path) -> None:
    async with open_service(short_dir) as service, trio.open_nursery() as nursery:
        member = await Member.join(service, 1)
        await member.hear("all")
        client = Client(service, nursery)
        request = await member.request()
        await member.make(request, 2, 4)
        assert await member.hear("again") == [request["id"], 0]
        await member.make(request, 0, 4)
        assert await member.hear("got") == request["id"]
        await client.over.wait()
        assert client.result.tokens == [100, 101, 102, 103]
        assert service.front.streams.counts.gaps == 1


async def test_who_hangs_up_is_told_to_the_member(short_dir: Path) -> None:
    async with open_service(short_dir) as service:
        member = await Member.join(service, 1)
        await member.hear("all")
        async with trio.open_nursery() as nursery:
            Client(service, nursery)
            request = await member.request()
            await member.make(request, 0, 1)
            nursery.cancel_scope.cancel()
        assert await member.hear("cancel") == request["id"]
        assert len(service.front.streams) == 0


async def test_more_requests_than_may_be_open_are_told_to_come_again(short_dir: Path) -> None:
    async with open_service(short_dir, most=1) as service, trio.open_nursery() as nursery:
        member = await Member.join(service, 1)
        await member.hear("all")
        Client(service, nursery)
        await member.request()
        status, line = await told(service, "POST", "/generate", b'{"prompt": [1]}')
        assert (status, "open" in line["error"]) == (503, True)
        nursery.cancel_scope.cancel()


async def test_the_longest_requests_keep_no_member_away(short_dir: Path) -> None:
    """A member that connects is sent all open requests at once.  More than it may have unread are not let in."""
    body = json.dumps({"prompt": [(1 << 31) - 1] * MOST_PROMPT, "max_tokens": MOST_PROMPT}).encode()
    fit = MOST_TOKENS // (2 * MOST_PROMPT)
    async with open_service(short_dir, most=99) as service, trio.open_nursery() as nursery:
        for _ in range(fit):
            nursery.start_soon(told, service, "POST", "/generate", body)
        while len(service.front.streams) < fit:  # noqa: ASYNC110
            await trio.sleep(0.01)
        status, line = await told(service, "POST", "/generate", body)
        assert (status, "open" in line["error"]) == (503, True)
        member = await Member.join(service, 1)
        listed = [await member.request() for _ in range(fit)]
        assert {len(each["prompt"]) for each in listed} == {MOST_PROMPT}
        await member.hear("all")
        nursery.cancel_scope.cancel()


async def test_what_a_member_refuses_is_refused(short_dir: Path) -> None:
    async with open_service(short_dir) as service, trio.open_nursery() as nursery:
        member = await Member.join(service, 1)
        await member.hear("all")
        client = Client(service, nursery)
        request = await member.request()
        await member.say(refused=[request["id"], "too long"])
        await client.over.wait()
        assert (client.status, client.result.trouble) == (400, "400: too long")


async def test_without_a_member_a_client_waits_only_so_long(short_dir: Path) -> None:
    async with open_service(short_dir, patience=0.01) as service:
        assert (await told(service, "GET", "/health"))[0] == 503
        status, line = await told(service, "POST", "/generate", b'{"prompt": "text"}')
        assert (status, line["error"]) == (503, "no token came within 0.01 seconds")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "Expecting"),
        (b"[]", "object"),
        (b"{}", "prompt"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": [-1]}', "from 0"),
        (b'{"prompt": [true]}', "from 0"),
        (b'{"prompt": [1], "max_tokens": 0}', "max_tokens"),
        (b'{"prompt": [1], "seed": 1.5}', "seed"),
        (b'{"prompt": [1], "temperature": NaN}', "temperature"),
        (b'{"prompt": [1], "top_k": 65}', "top_k"),
        (b'{"prompt": [1], "stop": -2}', "stop"),
        (b'{"prompt": [1], "id": 3}', "unknown: id"),
        (b"[" * 100_000, ""),
    ],
)
async def test_what_cannot_be_asked_is_answered_in_words(short_dir: Path, body: bytes, words: str) -> None:
    async with open_service(short_dir) as service:
        status, line = await told(service, "POST", "/generate", body)
        assert (status, words in line["error"]) == (400, True)


async def test_other_pages_and_what_is_no_http(short_dir: Path) -> None:
    async with open_service(short_dir) as service:
        assert (await told(service, "GET", "/generate"))[0] == 404
        assert (await told(service, "POST", "/generate", b"x" * (1 << 20) + b"x"))[0] == 413
        async with await trio.open_tcp_stream(service.url.host, service.url.port) as stream:
            await stream.send_all(b"nonsense\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("asked", [b"HEAD /health HTTP/1.1", b"HEAD /generate HTTP/1.0", b"CONNECT x:1 HTTP/1.1"])
async def test_no_method_of_a_client_ends_the_front_end(short_dir: Path, asked: bytes) -> None:
    """HTTP allows no body after HEAD; the streams of all other clients go on."""
    async with open_service(short_dir) as service:
        member = await Member.join(service, 1)
        await member.hear("all")
        async with trio.open_nursery() as nursery:
            client = Client(service, nursery)
            request = await member.request()
            async with await trio.open_tcp_stream(service.url.host, service.url.port) as stream:
                await stream.send_all(asked + b"\r\nhost: x\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 404 ")
                while await stream.receive_some():
                    pass
            await member.make(request, 0, 4)
        assert (client.result.tokens, client.result.trouble) == ([100, 101, 102, 103], "")


async def test_connections_of_clients_leave_room_for_members(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors the front end could not accept the member that takes over: all streams would end."""
    monkeypatch.setattr(front, "SPARE_CONNECTIONS", 1)
    async with open_service(short_dir, most=1) as service:
        url = service.url
        idle = [await trio.open_tcp_stream(url.host, url.port) for _ in range(2)]
        while service.front._connections < 2:  # noqa: ASYNC110
            await trio.sleep(0.005)
        async with await trio.open_tcp_stream(url.host, url.port) as third:
            assert await third.receive_some() == b""
        await (await Member.join(service, 1)).hear("all")
        await idle[0].send_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        while await idle[0].receive_some():
            pass
        assert (await told(service, "GET", "/health"))[0] == 200
        for each in idle:
            await each.aclose()


async def test_members_who_talk_nonsense_are_cut_off(short_dir: Path) -> None:
    async with open_service(short_dir) as service:
        hello = b'{"hello": {"generation": 1}}\n'
        wrong = (b"nonsense", b"3", b'{"tokens": []}', b'{"hello": 3}', hello + b'{"tokens"', hello + b'{"tokens": [3]}')
        wrong += (b"[3]", b"[" * 100_000, hello + b"[3]", hello + b"[" * 100_000)
        for said in wrong:
            async with await trio.open_unix_socket(service.place) as stream:
                await stream.send_all(said + b"\n")
                while await stream.receive_some():
                    pass
        assert (await told(service, "GET", "/health"))[0] == 503


def test_the_socket_for_members_is_this_users_and_one_front_ends(short_dir: Path) -> None:
    async def look() -> None:
        place = short_dir / "llm.sock"
        first = listen(str(place))
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o600
        with pytest.raises(FileExistsError):
            listen(str(place))
        await first.aclose()
        await listen(str(place)).aclose()

    trio.run(look)


async def test_a_load_finds_what_is_not_as_promised(short_dir: Path) -> None:
    """A member that skips, one that sends too little, and a connection that is dropped."""
    result = Result(0, [1], {"max_tokens": 2})
    for line in ({"token": 5, "index": 0}, {"token": 6, "index": 2}, {"done": True}):
        result.hear(200, line)
    assert result.trouble == "token 2 came where 1 was due"
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def drop(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            await stream.aclose()

        nursery.start_soon(partial(trio.serve_listeners, drop, [listener]))
        dropped = Result(1, [1], {"max_tokens": 2})
        await run_load(Url("127.0.0.1", listener.socket.getsockname()[1]), [dropped], 1)
        assert "dropped" in dropped.trouble
        nursery.cancel_scope.cancel()


def test_the_toys_tokens_follow_from_all_before_them() -> None:
    assert continued([1, 2], 5)[2:] == continued([1, 2, *continued([1, 2], 2)], 3)
    assert continued([1, 2], 5) != continued([2, 1], 5)
    assert continued([1, 2], 5, seed=1) == continued([1, 2], 5, seed=2)
    assert continued([1, 2], 5, seed=1, temperature=0.5) != continued([1, 2], 5, seed=2, temperature=0.5)
