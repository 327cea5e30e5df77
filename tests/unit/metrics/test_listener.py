"""The door at which numbers are asked for, over real sockets: right requests, wrong ones, none."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from mpsd.config.value_checks import LISTEN
from mpsd.metrics import http, pages, server
from tests.running import started
from tests.unit.metrics.fake_daemon import FakeDaemon

PATIENCE_SECONDS = 20.0


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[tuple[FakeDaemon, str]]:
    """Run a daemon that serves its metrics at a Unix socket."""
    path = str(directory / "metrics.sock")
    daemon = FakeDaemon.furnish(f"unix:{path}", **settings)
    async with started(daemon.metrics.serve, daemon.fakes.services(), daemon.readings):
        yield daemon, path


async def connect(path: str) -> trio.SocketStream:
    """Connect once the server listens."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                return await trio.open_unix_socket(path)
            except OSError:
                await trio.sleep(0.01)


async def ask(path: str, data: bytes) -> bytes:
    stream = await connect(path)
    async with stream:
        await stream.send_all(data)
        return await rest_of(stream)


async def rest_of(stream: trio.SocketStream) -> bytes:
    said = b""
    with trio.fail_after(PATIENCE_SECONDS):
        try:
            while more := await stream.receive_some():
                said += bytes(more)
        except trio.BrokenResourceError:
            pass  # closed with something unread
    return said


def request(path: str, method: str = "GET", *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def test_numbers_come_over_a_socket(short_dir: Path) -> None:
    async with serving(short_dir) as (_, path):
        head, _, body = (await ask(path, request("/metrics?x=1"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"text/plain; version=0.0.4" in head
    assert b"\nmpsd_healthy 1.0\n" in body
    assert not is_there(path)


def is_there(path: str) -> bool:
    return Path(path).exists()


@pytest.mark.parametrize(("host", "status"), [("localhost", b"200"), ("127.0.0.1:9", b"200"), ("site.example", b"403")])
@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
async def test_numbers_come_over_tcp(path: str, host: str, status: bytes, unused_port: int) -> None:
    """And not to a site, whose name a browser takes for this address: they have the names of leases and services."""
    daemon = FakeDaemon.furnish(f"127.0.0.1:{unused_port}")
    async with started(daemon.metrics.serve, daemon.fakes.services(), daemon.readings):
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", unused_port)
                    break
                except OSError:
                    await trio.sleep(0.01)
        async with stream:
            await stream.send_all(request(path).replace(b"localhost", host.encode()))
            assert (await rest_of(stream)).startswith(b"HTTP/1.1 " + status)


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(request("/healthz"), 200, id="health"),
        pytest.param(request("/metrics", "HEAD"), 200, id="head"),
        pytest.param(request("/nowhere"), 404, id="another page"),
        pytest.param(request("/"), 200, id="the live page"),
        pytest.param(request("/metrics", "POST", "Content-Length: 3") + b"abc", 405, id="another method"),
        pytest.param(request("/metrics", "DELETE"), 405, id="delete"),
        pytest.param(request("/metrics", "GET", "X: " + "a" * 2 * http.HEADER_BYTES), 431, id="too much"),
        pytest.param(b"a" * (2 * http.HEADER_BYTES), 431, id="no end of line"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, id="TLS"),
        pytest.param(b"GET /metrics HTTP/1.1\r\n\r\n", 400, id="no host"),
    ],
)
async def test_each_request_has_its_status(data: bytes, status: int, short_dir: Path) -> None:
    async with serving(short_dir) as (_, path):
        said = await ask(path, data)
        assert said.startswith(f"HTTP/1.1 {status} ".encode())
        assert (await ask(path, request("/healthz"))).startswith(b"HTTP/1.1 200 ")


async def test_head_has_no_body(short_dir: Path) -> None:
    async with serving(short_dir) as (_, path):
        assert (await ask(path, request("/metrics", "HEAD"))).endswith(b"\r\n\r\n")


async def test_who_is_silent_is_let_go(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.5)  # enough for the request to arrive
    async with serving(short_dir) as (_, path):
        said = await ask(path, b"GET /metrics HTTP/1.1\r\n")
    assert said.startswith(b"HTTP/1.1 408 ")


async def test_who_does_not_read_is_let_go(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_SECONDS", 0.05)
    monkeypatch.setattr(pages, "generate_latest", lambda registry: bytes(8 << 20))
    async with serving(short_dir) as (daemon, path):
        stream = await connect(path)
        await stream.send_all(request("/metrics"))
        await until_nobody(daemon)
        await stream.aclose()


async def test_who_hangs_up_is_forgotten(short_dir: Path) -> None:
    async with serving(short_dir) as (daemon, path):
        for said in (b"", b"GET /met", request("/metrics")):
            stream = await connect(path)
            if said:
                await stream.send_all(said)
            await stream.aclose()
        await until_nobody(daemon)


async def until_nobody(daemon: FakeDaemon) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while daemon.metrics._open:  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_who_holds_connections_keeps_nobody_from_asking(short_dir: Path) -> None:
    """At one over the bound, the oldest is closed."""
    async with serving(short_dir, max_connections=4) as (daemon, path):
        held = [await connect(path) for _ in range(4)]
        with trio.fail_after(PATIENCE_SECONDS):
            while len(daemon.metrics._open) < 4:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert (await ask(path, request("/healthz"))).startswith(b"HTTP/1.1 200 ")
        assert await rest_of(held[0]) == b""
        assert len(daemon.metrics._open) == 3
        for stream in held:
            await stream.aclose()


@pytest.mark.root
async def test_a_storm_of_one_user_ends_no_scrape_of_another(short_dir: Path) -> None:
    """All come from one address; each new connection took the place of the oldest, which was the scrape's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = FakeDaemon.furnish(f"127.0.0.1:{port}", max_connections=4)
    async with started(daemon.metrics.serve, daemon.fakes.services(), daemon.readings), trio.open_nursery() as nursery:
        scrape = await connect_as(1000, port)
        held = [await connect_as(1001, port) for _ in range(12)]
        with trio.fail_after(PATIENCE_SECONDS):
            assert [await rest_of(each) for each in held[:9]] == [b""] * 9
            await scrape.send_all(request("/healthz"))
            assert (await scrape.receive_some()).startswith(b"HTTP/1.1 200 ")
        for stream in (scrape, *held):
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def connect_as(uid: int, port: int) -> trio.SocketStream:
    """Connect once the server listens, with a socket of this user."""
    os.seteuid(uid)
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                sock = trio.socket.socket()
                try:
                    await sock.connect(("127.0.0.1", port))
                    return trio.SocketStream(sock)
                except OSError:
                    sock.close()
                    await trio.sleep(0.01)
    finally:
        os.seteuid(0)


async def test_a_connection_that_cannot_be_accepted_ends_nothing(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accept(2) returns many errors.  Any but a lack of descriptors ended the daemon."""
    troubles = [errno.EMFILE, errno.EIO]
    accept = trio.SocketListener.accept

    async def fail_first(listener: trio.SocketListener) -> trio.SocketStream:
        if troubles:
            raise OSError(number := troubles.pop(), os.strerror(number))
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", fail_first)
    with structlog.testing.capture_logs() as logs:
        async with serving(short_dir) as (_, path):
            assert (await ask(path, request("/healthz"))).startswith(b"HTTP/1.1 200 ")
    assert [entry["why"] for entry in logs if entry["event"] == "metrics.accept_failed"] == [
        os.strerror(errno.EIO),
        os.strerror(errno.EMFILE),
    ]


async def test_a_bug_ends_one_conversation(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(short_dir) as (daemon, path):
        monkeypatch.setattr(daemon.fakes.leases, "leases", lambda: 1 / 0)
        with structlog.testing.capture_logs() as logs:
            assert await ask(path, request("/metrics")) == b""
        assert [entry["event"] for entry in logs] == ["metrics.bug"]
        assert (await ask(path, request("/healthz"))).startswith(b"HTTP/1.1 200 ")


async def test_where_it_cannot_listen_it_says_so_once_and_tries_again(
    short_dir: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A daemon that is just ending may still have the port.  No client is kept waiting for numbers."""
    away = short_dir / "away"
    daemon = FakeDaemon.furnish(f"unix:{away}/metrics.sock")
    with structlog.testing.capture_logs() as logs:
        async with started(daemon.metrics.serve, daemon.fakes.services(), daemon.readings):
            await trio.sleep(10 * server._AGAIN_SECONDS)
            away.mkdir()
            await trio.sleep(2 * server._AGAIN_SECONDS)
    assert [entry["event"] for entry in logs] == ["metrics.unusable", "metrics.listening"]


async def test_a_file_is_not_taken_for_a_socket(short_dir: Path, autojump_clock: trio.testing.MockClock) -> None:
    (short_dir / "metrics.sock").write_text("mine")
    async with serving(short_dir):
        await trio.sleep(1)
    assert (short_dir / "metrics.sock").read_text() == "mine"


async def test_the_socket_of_a_dead_daemon_makes_way(short_dir: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(short_dir / "metrics.sock"))
    dead.close()
    async with serving(short_dir) as (_, path):
        assert (await ask(path, request("/healthz"))).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("127.0.0.1:9402", True), ("0.0.0.0:1", True), ("[::1]:65535", True), ("unix:/run/mpsd/metrics.sock", True),
        ("9402", False), (":9402", False), ("localhost:9402", False), ("127.0.0.1", False), ("127.0.0.1:0", False),
        ("127.0.0.1:65536", False), ("127.0.0.1:094", False), ("::1:9402", False), ("[127.0.0.1]:9402", False),
        ("unix:", False), ("unix:run/x", False), ("unix:/" + "x" * 107, False), ("[::1]", False),
    ],
)  # fmt: skip
def test_where_one_can_listen(text: str, is_good: bool) -> None:
    assert LISTEN.test(text) is is_good
