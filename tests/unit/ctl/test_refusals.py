"""Failures: one line with the request and the reason, and the exit status that the manual promises."""

import functools
import socket
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import trio
from mpsctl.program import main
from mpsd_client import Client

from mpsd.model.domain import DomainState
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER
from tests.unit.ctl.console import Console, open_console, surroundings


@pytest.mark.parametrize(
    ("words", "peer", "said"),
    [
        ("lease show 1", STRANGER, "mpsctl lease show: no lease has id 1 (NO_SUCH_LEASE)"),
        ("lease release 2", OWNER, "mpsctl lease release: no lease has id 2 (NO_SUCH_LEASE)"),
        ("lease create x --user 1000", OPERATOR, "mpsctl lease create: 100 % do not fit beside 60 % (NO_ROOM)"),
        (
            "lease create x --user 2000",
            OWNER,
            "mpsctl lease create: a lease for the processes of user 2000 needs an operator (NOT_ALLOWED)",
        ),
        ("terminate 700", OWNER, "mpsctl terminate: no client has pid 700 (NO_SUCH_CLIENT)"),
        ("domain recycle d1", OPERATOR, "mpsctl domain recycle: domain d1 has 1 clients"),
        ("domain create", OWNER, "mpsctl domain create: domain.create needs an operator; you are user 1000 (NOT_ALLOWED)"),
        ("limits set --sm 1%", STRANGER, "mpsctl limits set: limits.set needs an operator; you are user 3000 (NOT_ALLOWED)"),
        ("arena show weights", STRANGER, "mpsctl arena show: no arena is called weights (NO_SUCH_ARENA)"),
        ("arena remove weights", OPERATOR, "mpsctl arena remove: arena weights is held (ARENA_BUSY)"),
        ("arena change gone --ttl none", OWNER, "mpsctl arena change: no arena is called gone (NO_SUCH_ARENA)"),
        ("arena create cache --capacity 1G", OWNER, "mpsctl arena create: an arena has the name cache already (BAD_REQUEST)"),
        ("arena create x --capacity 1T", OWNER, "mpsctl arena create: 1099511627776 bytes do not fit"),
    ],
)
async def test_a_refusal_is_one_line_and_status_1(words: str, peer: object, said: str, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        before = console.daemon.fakes.changes()
        done = await console.run(*words.split(), peer=peer)  # type: ignore[arg-type]
        assert console.daemon.fakes.changes() == before
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(said)
    assert done.err.count("\n") == 1


async def test_json_does_not_change_how_a_refusal_is_said(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        done = await console.run("why", "4", "--json")
    assert (done.status, done.out, done.err) == (1, "", "mpsctl why: no client has pid 4 (NO_SUCH_CLIENT)\n")


async def test_ill_health_is_status_1_and_the_reasons(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("health") == "ok\n"
        console.daemon.fakes.domains.known.clear()
        console.daemon.fakes.domains.add("d1", DomainState.SILENT)
        done = await console.run("health")
    assert (done.status, done.out, done.err) == (1, "no fault domain takes clients: d1 is silent\n", "")


def run(*words: str, connect: Callable[[str | None], Client] | None = None) -> tuple[int, str]:
    around = surroundings(StringIO())
    status = main(words, around, *([connect] if connect else []))
    return status, around.stderr.getvalue()  # type: ignore[attr-defined]


def test_no_mpsd_is_status_3(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = short_dir / "mpsd.sock"
    assert run("status", "--socket", str(path)) == (3, f"mpsctl status: no mpsd at {path}: No such file or directory\n")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(short_dir))
    assert run("status") == (3, f"mpsctl status: no mpsd at {path}: No such file or directory\n")


def test_the_socket_of_a_dead_mpsd_is_status_3(short_dir: Path) -> None:
    path = short_dir / "mpsd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    assert run("top", "--socket", str(path)) == (3, f"mpsctl top: no mpsd at {path}: Connection refused\n")


def test_an_mpsd_that_does_not_answer_is_status_3(short_dir: Path) -> None:
    path = short_dir / "mpsd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(path))
        silent.listen()
        connect = functools.partial(Client, timeout_seconds=0.05)
        assert run("status", "--socket", str(path), connect=connect) == (3, "mpsctl status: mpsd did not answer in time\n")


async def test_an_mpsd_that_ends_is_status_3(tmp_path: Path, short_dir: Path) -> None:
    """It reports the reason, and followers of events get it."""
    async with open_console(tmp_path, short_dir) as console:
        found: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_follow, console, found)
            with trio.fail_after(20):
                while not console.daemon.bus.subscribers:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            console.daemon.nursery.cancel_scope.cancel()
            with trio.fail_after(20, shield=True):
                while not found:  # noqa: ASYNC110
                    await trio.sleep(0.005)
    assert found == [(3, "mpsctl events: mpsd closed the connection: STOPPING: mpsd ends, or makes way for another mpsd\n")]


async def _follow(console: Console, found: list[object]) -> None:
    with trio.CancelScope(shield=True):
        done = await console.run("events")
        found.append((done.status, done.err))


async def test_a_full_disk_is_said(tmp_path: Path, short_dir: Path) -> None:
    class Full(StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    async with open_console(tmp_path, short_dir) as console:
        done = await console.run("status", out=Full())
    assert (done.status, done.err) == (1, "mpsctl status: the answer cannot be written: No space left on device\n")
