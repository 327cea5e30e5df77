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

ACTS = "lease create x --user 1000 --sm 1%"


@pytest.mark.parametrize(
    ("words", "peer", "said"),
    [
        ("lease show 9", OPERATOR, "mpsctl lease show: lease 9 is not in the book (NO_SUCH_LEASE)"),
        ("lease show 1", STRANGER, "mpsctl lease show: no lease has id 1 (NO_SUCH_LEASE)"),
        ("lease release 2", OWNER, "mpsctl lease release: no lease has id 2 (NO_SUCH_LEASE)"),
        ("lease create x --user 1000", OPERATOR, "mpsctl lease create: 100 % do not fit beside 60 % (NO_ROOM)"),
        (
            "lease create x --user 2000",
            OWNER,
            "mpsctl lease create: a lease for the processes of user 2000 needs an operator (NOT_ALLOWED)",
        ),
        ("lease create x --user 1000 --gpu 7", OPERATOR, "mpsctl lease create: "),
        ("why 4", OPERATOR, "mpsctl why: no client has pid 4 (NO_SUCH_CLIENT)"),
        ("terminate 700", OWNER, "mpsctl terminate: no client has pid 700 (NO_SUCH_CLIENT)"),
        ("domain drain d9", OPERATOR, "mpsctl domain drain: no fault domain is called d9 (NO_SUCH_DOMAIN)"),
        ("domain recycle d1", OPERATOR, "mpsctl domain recycle: domain d1 has 1 clients"),
        ("domain create", OWNER, "mpsctl domain create: domain.create needs an operator; you are user 1000 (NOT_ALLOWED)"),
        ("limits set --sm 1%", STRANGER, "mpsctl limits set: limits.set needs an operator; you are user 3000 (NOT_ALLOWED)"),
        ("arena show weights", STRANGER, "mpsctl arena show: no arena is called weights (NO_SUCH_ARENA)"),
        ("arena remove weights", OPERATOR, "mpsctl arena remove: arena weights is held (ARENA_BUSY)"),
        ("arena change gone --ttl none", OWNER, "mpsctl arena change: no arena is called gone (NO_SUCH_ARENA)"),
        ("arena create cache --capacity 1G", OWNER, "mpsctl arena create: an arena has the name cache already (BAD_REQUEST)"),
        ("arena create x --capacity 1T", OWNER, "mpsctl arena create: 1099511627776 bytes do not fit"),
        ("events bogus.*", OPERATOR, 'mpsctl events: "bogus.*" is not a topic; accepted: *, '),
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "mpsctl: what to do? one of the commands; see mpsctl --help"),
        ("bogus", "mpsctl: argument COMMAND: invalid choice: 'bogus'"),
        ("lease", "mpsctl lease: the following arguments are required: COMMAND"),
        ("leases --stat active", "mpsctl: unrecognized arguments: --stat active"),
        ("leases --state gone", "mpsctl leases: argument --state: invalid choice: 'gone'"),
        ("why", "mpsctl why: the following arguments are required: PID"),
        ("why me", 'mpsctl why: argument PID: found "me"; accepted: a whole number, 1 to 2147483647'),
        ("lease renew 1 --ttl 5", 'mpsctl lease renew: argument --ttl: found "5"; accepted: a number and s, m, h or d, as 30s'),
        ("lease create x", "mpsctl lease create: one of the arguments --pid --user --cgroup --token --new-token is required"),
        ("lease create x --pid 1 --user 1", "mpsctl lease create: argument --user: not allowed with argument --pid"),
        (
            f"{ACTS} --sm 0%",
            'mpsctl lease create: argument --sm: found "0%"; accepted: a percentage, as 30%, or a number of SMs',
        ),
        (f"{ACTS} --memory 4", 'mpsctl lease create: argument --memory: found "4"; accepted: a number and K, M, G or T, as 4G'),
        (f"{ACTS} --memory none", "mpsctl lease create: argument --memory: "),
        (f"{ACTS} --owner no-such-user", "mpsctl lease create: argument --owner: "),
        (f"{ACTS} --processes 0", 'mpsctl lease create: argument --processes: found "0"; accepted: a whole number, 1 to 1024'),
        ("limits set --sm 40", 'mpsctl limits set: argument --sm: found "40"; accepted: a percentage, as 30%'),
        ("arena create x", "mpsctl arena create: one of the arguments --capacity is required"),
        ("arena create x --capacity 8", 'mpsctl arena create: argument --capacity: found "8"; accepted: a number and K, M'),
        ("arena change x --mode 888", 'mpsctl arena change: argument --mode: found "888"; accepted: an octal mode'),
        ("arena change x --mode 01777", 'mpsctl arena change: argument --mode: found "01777"; accepted: an octal mode'),
        ("arena change x --ttl 0", 'mpsctl arena change: argument --ttl: found "0"; accepted: a number and s, m, h or d'),
        ("completion fish", "mpsctl completion: argument {bash,zsh,tcsh}: invalid choice: 'fish'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any connection: no mpsd runs here."""
    with pytest.raises(SystemExit) as stopped:
        main(words.split(), surroundings(StringIO()))
    assert stopped.value.code == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(said)
    assert found.err.endswith("--help\n")
    assert found.err.count("\n") == 1


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
