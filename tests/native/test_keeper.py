"""The keeper holds its descriptors through the death of its clients, until a request to release them, and no longer."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native import keeper_client as kc
from tests.native.keeper_client import KeeperClient, Message, RunningKeeper

ROOT = Path(__file__).resolve().parents[2]
Eventually = Callable[[Callable[[], bool]], None]


def says_through(fd: int, other_end: int) -> bool:
    os.write(fd, b"x")
    return os.read(other_end, 1) == b"x"


# -- holding ---------------------------------------------------------------------------------------------------------


def test_a_descriptor_comes_back_working(client: KeeperClient, pipe: tuple[int, int]) -> None:
    assert client.put(b"arena:a.1_x-y", pipe[1], generation=3, size=1 << 40, item_flags=0xFFFFFFFFFFFFFFFF) == kc.OK
    reply = client.get(b"arena:a.1_x-y")
    assert (reply.status, reply.generation, reply.size, reply.item_flags) == (kc.OK, 3, 1 << 40, 0xFFFFFFFFFFFFFFFF)
    (fd,) = reply.fds
    assert says_through(fd, pipe[0])
    os.close(fd)


HOLD_AND_WAIT = """
import os, socket, sys
from pathlib import Path
from tests.native.keeper_client import KeeperClient, OK
client = KeeperClient(Path(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[2])
listener.listen(8)
assert client.put(b"listen:control", listener.fileno()) == OK
for number in range(100):
    client.put_quietly(b"wait:%d" % number, listener.fileno())
os.kill(os.getpid(), 9)
"""


def test_all_survives_a_killed_client(keeper: RunningKeeper, short_dir: Path, eventually: Eventually) -> None:
    """Also what was sent just before the kill, without waiting for an answer."""
    held = short_dir / "control"
    killed = subprocess.run([sys.executable, "-c", HOLD_AND_WAIT, keeper.path, held], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.connect(str(held))  # only the keeper holds the listener
        with keeper.client() as client:
            eventually(lambda: client.stats().held == 101)
            assert client.list()[0] == (b"listen:control", 1, 0, 0)
            assert {each[0] for each in client.list()[1:]} == {b"wait:%d" % number for number in range(100)}
            (fd,) = client.get(b"listen:control").fds
        with socket.socket(fileno=fd) as listener:
            accepted, _ = listener.accept()
            with accepted:
                waiting.send(b"still here")
                assert accepted.recv(100) == b"still here"


def test_requests_sent_before_a_death_are_carried_out_though_their_replies_cannot_be(
    keeper: RunningKeeper, pipe: tuple[int, int], eventually: Eventually
) -> None:
    with keeper.client() as dying:
        for number in range(100):  # each causes a reply that no process reads
            dying.send(Message(kc.PUT, b"n%d" % number, 1), (pipe[0],))
    with keeper.client() as client:
        eventually(lambda: client.stats().held == 100)


def test_generations(client: KeeperClient, pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    assert client.put(b"a", read_end, generation=5) == kc.OK
    assert client.put(b"a", read_end, generation=5) == kc.STALE
    assert client.put(b"a", read_end, generation=4) == kc.STALE
    assert client.put(b"a", read_end, generation=0) == kc.BAD_GENERATION
    assert client.put(b"a", write_end, generation=6) == kc.OK
    (fd,) = client.get(b"a").fds
    assert says_through(fd, read_end)
    os.close(fd)
    assert client.get(b"a", generation=5).status == kc.STALE
    assert client.drop(b"a", generation=5) == kc.STALE
    assert client.drop(b"a", generation=6) == kc.OK
    assert client.drop(b"a") == kc.NOT_FOUND
    assert client.put(b"a", read_end, generation=1) == kc.OK, "what was dropped is forgotten"
    assert client.drop(b"a") == kc.OK


def test_a_drop_closes(client: KeeperClient) -> None:
    read_end, write_end = os.pipe()
    client.put(b"a", write_end)
    os.close(write_end)
    os.set_blocking(read_end, False)
    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)
    assert client.drop(b"a") == kc.OK
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_a_replacement_closes(client: KeeperClient, pipe: tuple[int, int]) -> None:
    read_end, write_end = os.pipe()
    client.put(b"a", write_end)
    os.close(write_end)
    client.put(b"a", pipe[0], generation=2)
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_list_is_complete_sorted_and_paged(client: KeeperClient, pipe: tuple[int, int]) -> None:
    names = [b"%d:%s" % (number * 7919 % 1000, b"x" * (number % 50)) for number in range(3 * kc.PAGE + 1)]
    for number, name in enumerate(names):
        assert client.put(name, pipe[0], generation=number + 1, size=number) == kc.OK
    assert client.list() == sorted((name, number + 1, number, 0) for number, name in enumerate(names))


@pytest.mark.parametrize("held", [0, 1, kc.PAGE - 1, kc.PAGE, kc.PAGE + 1, 2 * kc.PAGE])
def test_list_at_the_edges_of_a_page(client: KeeperClient, pipe: tuple[int, int], held: int) -> None:
    for number in range(held):
        client.put_quietly(b"%04d" % number, pipe[0])
    assert [each[0] for each in client.list()] == [b"%04d" % number for number in range(held)]


def test_list_goes_on_after_an_id_that_is_gone(client: KeeperClient, pipe: tuple[int, int]) -> None:
    for name in (b"a", b"c"):
        client.put(name, pipe[0])
    reply = client.ask(Message(kc.LIST, b"b"))
    assert reply.count == 1
    assert reply.payload.startswith(b"c\0")


def test_an_id_of_64_bytes(client: KeeperClient, pipe: tuple[int, int]) -> None:
    assert client.put(b"z" * 64, pipe[0]) == kc.OK
    assert client.put(b"z" * 63, pipe[0]) == kc.OK
    assert [each[0] for each in client.list()] == [b"z" * 63, b"z" * 64]
    assert client.drop(b"z" * 64) == kc.OK


def test_quiet_requests_answer_only_when_refused(client: KeeperClient, pipe: tuple[int, int]) -> None:
    client.put_quietly(b"a", pipe[0], generation=2)
    sequence = client.send(Message(kc.PUT, b"a", 1, flags=kc.QUIET), (pipe[0],))
    client.send(Message(kc.DROP, b"a", flags=kc.QUIET))
    last = client.send(Message(kc.STAT))
    refused, stat = client.receive(), client.receive()
    assert (refused.sequence, refused.status) == (sequence, kc.STALE)
    assert (stat.sequence, stat.status) == (last, kc.OK)
    assert client.list() == []


def test_stat_counts(client: KeeperClient, keeper: RunningKeeper, pipe: tuple[int, int]) -> None:
    client.put(b"a", pipe[0], size=1 << 63)
    client.put(b"b", pipe[0], size=1 << 63)
    client.put(b"b", pipe[0])
    os.close(client.get(b"a").fds[0])
    stats = client.stats()
    assert stats.pid == keeper.process.pid
    assert (stats.held, stats.held_max, stats.peers, stats.peers_max) == (2, 4096, 1, kc.PEERS)
    assert (stats.puts, stats.gets, stats.drops, stats.refusals) == (2, 1, 0, 1)
    assert stats.size_sum == 2**64 - 1, "a sum that would wrap stays at its highest"
    client.drop(b"b")
    assert client.stats().size_sum == 1 << 63
    assert client.stats().drops == 1
    assert abs(stats.started_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 60 * 10**9


# -- the process -----------------------------------------------------------------------------------------------------


def test_ps_shows_its_name(keeper: RunningKeeper) -> None:
    with keeper.client():
        pass
    assert Path(f"/proc/{keeper.process.pid}/comm").read_text() == "mpsd-keeper\n"


def test_it_keeps_nothing_of_its_parent(keeper_program: Path, short_dir: Path) -> None:
    """It inherits no output, directory, session or descriptor: its parent's death and callers' pipes do not affect it."""
    path = short_dir / "keeper"
    leaked = [os.dup(0) for _ in range(5)]
    for fd in leaked:
        os.set_inheritable(fd, True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        os.set_inheritable(listener.fileno(), True)
        process = subprocess.Popen(
            [keeper_program, "--fd", str(listener.fileno())], close_fds=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    assert process.stdout
    try:
        with KeeperClient(path):
            assert process.stdout.read() == b""  # the end: it does not hold the pipe
            fds = {int(fd): os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
            assert [fds.pop(number) for number in range(3)] == ["/dev/null"] * 3
            assert all(link.startswith("socket:") for link in fds.values())
            assert len(fds) == 2
            for each in os.listdir(f"/proc/{process.pid}/fd"):
                (flags,) = re.findall(r"flags:\t(\d+)", Path(f"/proc/{process.pid}/fdinfo/{each}").read_text())
                assert int(flags, 8) & os.O_CLOEXEC, each
            assert os.getsid(process.pid) == process.pid
            assert os.readlink(f"/proc/{process.pid}/cwd") == "/"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for fd in leaked:
            os.close(fd)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGPIPE])
def test_signals_meant_for_mpsd_do_not_end_it(keeper: RunningKeeper, client: KeeperClient, number: signal.Signals) -> None:
    keeper.process.send_signal(number)
    assert client.list() == []


def test_stop_closes_everything_and_exits(keeper: RunningKeeper, client: KeeperClient) -> None:
    read_end, write_end = os.pipe()
    client.put(b"a", write_end)
    os.close(write_end)
    assert client.ask(Message(kc.STOP)).status == kc.OK
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    assert keeper.process.wait(timeout=10) == 0


def test_sigterm_ends_it(keeper: RunningKeeper, client: KeeperClient, pipe: tuple[int, int]) -> None:
    client.put(b"a", pipe[0])
    assert keeper.terminate() == 0


@pytest.mark.parametrize(
    "arguments",
    [["--fd"], ["--fd", "x"], ["--fd", "1"], ["--fd", "99"], ["--max", "0"], ["--max", "-1"], ["--max", "1048577"],
     ["--max", "99999999999999999999"], ["--max", "4096x"], ["--bogus", "1"], []],
    ids=" ".join,
)  # fmt: skip
def test_it_does_not_start_with_wrong_arguments(keeper_program: Path, arguments: list[str]) -> None:
    """The last row: nothing is open as descriptor 3."""
    result = subprocess.run([keeper_program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("mpsd-keeper: cannot start: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, None])
def test_it_does_not_start_on_another_kind_of_descriptor(keeper_program: Path, kind: socket.SocketKind | None) -> None:
    with socket.socket(socket.AF_UNIX, kind or socket.SOCK_SEQPACKET) as wrong:  # None: right, but not listening
        number = wrong.fileno()
        result = subprocess.run(
            [keeper_program, "--fd", str(number)], pass_fds=(number,), capture_output=True, text=True, check=False
        )
    assert result.returncode == 2
    assert "not a listening AF_UNIX SOCK_SEQPACKET socket" in result.stderr


def test_the_test_client_agrees_with_the_header() -> None:
    """One fact, two places: every number here is compared with native/include/mpsd_keeper.h."""
    header = (ROOT / "native" / "include" / "mpsd_keeper.h").read_text()
    numbers = {name: int(value, 0) for name, value in re.findall(r"\bMPSD_KEEPER_(\w+) = (0x\w+|\d+)", header)}
    assert len(numbers) > 25
    for name, value in numbers.items():
        assert getattr(kc, name) == value, name
    layouts = dict(re.findall(r'(?:a|an) (message|entry|stat) (?:is )?"(=\w+)"', header.replace("\n * ", " ")))
    assert layouts == {"message": kc.MESSAGE.format, "entry": kc.ENTRY.format, "stat": kc.STATS.format}
