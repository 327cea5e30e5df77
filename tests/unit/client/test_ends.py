"""The clients when mpsd does not run, no longer runs, or does not answer."""

import errno
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from mpsd_client import AsyncClient, Client, Disconnected, calls
from mpsd_client._place import socket_path

from mpsd.host.listeners import listen
from tests.unit.client.test_clients import blocking, serving

T = TypeVar("T")


async def test_who_is_let_go_is_told_why(tmp_path: Path, short_dir: Path) -> None:
    let_go = threading.Event()

    def linger(path: Path) -> None:
        with Client(path) as mpsd:
            assert let_go.wait(20)
            mpsd.ask(calls.health())

    async with serving(tmp_path, short_dir, idle_seconds=0.05) as (daemon, path):
        async with AsyncClient(path) as mpsd:
            await daemon.until(0)
            with pytest.raises(Disconnected, match="no request came"):
                await mpsd.ask(calls.health())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, Disconnected, linger, path)
            await daemon.until(1)
            await daemon.until(0)
            let_go.set()


async def expect(kind: type[BaseException], work: Callable[..., T], *arguments: Any) -> None:
    with pytest.raises(kind):
        await blocking(work, *arguments)


async def test_one_connection_too_many_is_told_so(tmp_path: Path, short_dir: Path) -> None:
    async with serving(tmp_path, short_dir, max_per_user=1) as (_, path), AsyncClient(path):
        with pytest.raises(Disconnected, match="TOO_MANY"):
            async with AsyncClient(path):
                pass
        await expect(Disconnected, Client, path)


async def test_where_there_is_no_mpsd_the_system_says_so(short_dir: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mpsd cannot be reached: No such file .*/mpsd\.sock"):
        Client(short_dir / "mpsd.sock")
    with pytest.raises(OSError, match="mpsd cannot be reached: File name too long"):
        Client(short_dir / ("x" * 108))
    with pytest.raises(FileNotFoundError):
        async with AsyncClient(short_dir / "mpsd.sock"):
            pass


def test_an_mpsd_that_does_not_answer_is_given_up(short_dir: Path) -> None:
    with listen(short_dir / "mpsd.sock", 0o666), pytest.raises(TimeoutError):
        Client(short_dir / "mpsd.sock", timeout_seconds=0.05)


def test_a_queue_that_is_full_is_waited_for(short_dir: Path) -> None:
    """The kernel refuses at once while mpsd does not accept connections; the client must not give up for that."""
    path = short_dir / "mpsd.sock"
    with listen(path, 0o666) as listener:
        listener.listen(0)
        held = []
        while True:
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            held[-1].setblocking(False)
            if held[-1].connect_ex(str(path)) == errno.EAGAIN:
                break
        with pytest.raises(TimeoutError):
            Client(path, timeout_seconds=0.05)
        for each in held:
            each.close()


def test_the_socket_is_where_cuda_programs_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert socket_path(None) == "/tmp/nvidia-mps/mpsd.sock"
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert socket_path(None) == "/run/mps/mpsd.sock"
    assert socket_path(Path("/x/y.sock")) == "/x/y.sock"
