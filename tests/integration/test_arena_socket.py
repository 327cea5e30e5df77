"""Arenas at the socket of a real daemon: descriptors there and back, other users, ends of everybody, junk."""

import array
import fcntl
import json
import os
import random
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mpsd_client import Client, Refused, _conversation, calls, values
from mpsd_client._datagrams import close_all

from mpsd.api.audit import Trail
from mpsd.model.arena import GRANULE
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for
from tests.seeds import RUN_SEED

pytestmark = pytest.mark.root
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE  # as the simulator's own has


@contextmanager
def memory(*words: bytes) -> Iterator[list[int]]:
    """Simulated GPU memory, one piece for each word, which stands at its beginning."""
    fds = [os.memfd_create(f"piece-{number}", os.MFD_ALLOW_SEALING) for number in range(len(words))]
    try:
        for fd, word in zip(fds, words, strict=True):
            os.pwrite(fd, word, 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        yield fds
    finally:
        close_all(fds)


def fill(mpsd: Client, arena: values.Arena, words: dict[int, bytes], layout: bytes | None = None) -> values.Committed:
    """At offsets counted in granules; committed."""
    put(mpsd, arena, words)
    if layout is None:
        return mpsd.ask(calls.arena_commit(arena.id, arena.generation))
    file = os.memfd_create("layout")
    try:
        os.write(file, layout)
        return mpsd.ask(calls.arena_commit(arena.id, arena.generation, file))
    finally:
        os.close(file)


def put(mpsd: Client, arena: values.Arena, words: dict[int, bytes]) -> int:
    with memory(*words.values()) as fds:
        pairs = [(number * GRANULE, GRANULE) for number in words]
        return mpsd.ask(calls.arena_put(arena.id, arena.generation, pairs, fds)).used_bytes


def contents(mpsd: Client, arena: values.Arena, limit: int = 128) -> dict[int, bytes]:
    """What an adopter finds, by offset in granules."""
    found: dict[int, bytes] = {}
    after = None
    while True:
        taken = mpsd.ask(calls.arena_take(arena.id, after, limit))
        for (offset, *_), fd in zip(taken.items, taken.fds, strict=True):
            found[offset // GRANULE] = os.pread(fd, 16, 0).rstrip(b"\0")
        close_all(taken.fds)
        if taken.next is None:
            return found
        after = taken.next


def layout_of(mpsd: Client, arena: values.Arena) -> bytes | None:
    found = mpsd.ask(calls.arena_layout(arena.id))
    if found.fd is None:
        return None
    try:
        return os.pread(found.fd, found.layout_bytes + 1, 0)
    finally:
        os.close(found.fd)


def refusal(mpsd: Client, call: calls.Call[object]) -> str:
    with pytest.raises(Refused) as refused:
        mpsd.ask(call)
    return refused.value.name


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def until(mpsd: Client, topic: str) -> list[values.Event]:
    """The events up to the first of this topic."""
    found: list[values.Event] = []
    for event in mpsd.events(timeout_seconds=20.0):
        assert isinstance(event, values.Event)
        found.append(event)
        if event.topic == topic:
            return found
    raise AssertionError(f"no {topic} came: {found}")


@contextmanager
def other_process(machine: Machine, arena: str) -> Iterator[int]:
    """A child that has opened the arena to write, committed one piece, put another, and waits."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with Client(machine.pipe / "mpsd.sock") as mpsd:
                mine = mpsd.ask(calls.arena_open(arena, "write", 10.0))
                fill(mpsd, mine, {0: b"committed"}, b'{"of": "the child"}')
                put(mpsd, mine, {1: b"not"})
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "the child failed"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_memory_outlives_a_commit_and_what_is_anothers_is_not_there(machine: Machine) -> None:
    """One conversation through all methods: descriptors both ways, subscribers, and the descriptors of the daemon at its
    end."""
    machine.configure("[domains]\nspares = 0\n")  # a process that starts during the test has descriptors too
    machine.start()
    with machine.mpsd(UIDS[0]) as owner, machine.mpsd(UIDS[1]) as stranger, machine.mpsd() as operator:
        operator.subscribe("arena.*")
        made = owner.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        assert (made.owner_uid, made.generation, made.used_bytes, made.base % (1 << 30)) == (UIDS[0], 0, 0, 0)
        mine = owner.ask(calls.arena_open("kv", "write"))
        assert (mine.generation, mine.writer_pid) == (1, os.getpid())
        assert contents(owner, mine) == {}
        assert layout_of(owner, mine) is None
        wait_for("the file for changes", lambda: (machine.log_directory / Trail.USERS.value).exists())
        before = open_descriptors(machine.daemon_pid())
        done = fill(owner, mine, {0: b"zero", 3: b"three", 5: b"five"}, b'{"tensors": {}}')
        assert (done.allocations, done.used_bytes) == (3, 3 * GRANULE)
        assert contents(owner, mine, 2) == {0: b"zero", 3: b"three", 5: b"five"}
        assert layout_of(owner, mine) == b'{"tensors": {}}'
        assert owner.ask(calls.arena_drop(mine.id, mine.generation, [3 * GRANULE])).used_bytes >= 2 * GRANULE
        assert contents(owner, mine) == {0: b"zero", 3: b"three", 5: b"five"}, "until the next commit"
        assert owner.ask(calls.arena_commit(mine.id, mine.generation)).allocations == 2

        for call in (calls.arena_get("kv"), calls.arena_open("kv", "read"), calls.arena_remove("kv")):
            assert refusal(stranger, call) == "NO_SUCH_ARENA"
        assert list(stranger.pages(calls.arena_list())) == []
        assert refusal(owner, calls.arena_remove("kv")) == "ARENA_BUSY"
        owner.ask(calls.arena_change(mine.id, mode=0o644))
        assert stranger.ask(calls.arena_get("kv")).mode == 0o644
        assert refusal(stranger, calls.arena_open("kv", "write")) == "NOT_ALLOWED"

        status = owner.ask(calls.status())
        assert status.keeper is not None
        assert (status.arenas, status.keeper.state, status.keeper.descriptors) == (1, "works", 3)
        owner.ask(calls.arena_close(mine.id))
        assert owner.ask(calls.arena_remove("kv")).used_bytes == 2 * GRANULE
        most = before + 3  # the keeper, the connection to it, the file for refusals
        wait_for("the end of what mpsd has opened", lambda: open_descriptors(machine.daemon_pid()) <= most)
        told = [event.topic for event in until(operator, "arena.removed")]
    wanted = ["created", "opened", "committed", "committed", "closed", "removed"]
    assert [topic for topic in told if topic.partition(".")[2] in wanted] == [f"arena.{word}" for word in wanted]


@pytest.mark.slow
def test_a_writer_that_is_killed_makes_way_when_it_is_fenced(machine: Machine) -> None:
    """Who waits is let in by that, and finds the last commit and nothing else."""
    machine.start()
    with machine.mpsd() as mpsd, machine.mpsd() as listener:
        listener.subscribe("arena.*")
        made = mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        with other_process(machine, "kv") as pid:
            assert mpsd.ask(calls.arena_get("kv")).writer_pid == pid
            assert refusal(mpsd, calls.arena_open("kv", "write")) == "ARENA_BUSY"
            with memory(b"late") as fds:
                assert refusal(mpsd, calls.arena_put(made.id, 1, [(GRANULE, GRANULE)], fds)) == "STALE_GENERATION"
            assert refusal(mpsd, calls.arena_take(made.id)) == "NOT_ALLOWED"
            os.kill(pid, signal.SIGKILL)
            mine = mpsd.ask(calls.arena_open("kv", "write", 20.0))
        assert (mine.generation, mine.used_bytes, mine.writer_pid) == (2, GRANULE, os.getpid())
        assert contents(mpsd, mine) == {0: b"committed"}
        assert layout_of(mpsd, mine) == b'{"of": "the child"}'
        assert 0 <= until(listener, "arena.fenced")[-1].facts["seconds"] < 20


@pytest.mark.slow
def test_the_writer_is_the_writer_still_after_a_restart_of_mpsd(machine: Machine) -> None:
    machine.start()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        mine = mpsd.ask(calls.arena_open("kv", "write"))
        fill(mpsd, mine, {0: b"before"}, b"{}")
        put(mpsd, mine, {1: b"between"})
        machine.kill_daemon()
    machine.start()
    with machine.mpsd() as mpsd:
        again = mpsd.ask(calls.arena_open("kv", "write"))
        assert (again.id, again.generation, again.used_bytes) == (mine.id, mine.generation, 2 * GRANULE)
        assert contents(mpsd, again) == {0: b"before"}
        fill(mpsd, again, {2: b"after"})
        assert contents(mpsd, again) == {0: b"before", 1: b"between", 2: b"after"}
        assert layout_of(mpsd, again) == b"{}"


@pytest.mark.slow
def test_a_connection_whose_maker_has_ended_is_nobodys(machine: Machine) -> None:
    """A process that keeps a descriptor has the rights of its user, and holds no arena by that."""
    machine.start()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pid = os.fork()
    if pid == 0:
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.connect(str(machine.pipe / "mpsd.sock"))
            socket.send_fds(theirs, [b"x"], [made.fileno()])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        mpsd._sock.close()
        mpsd._sock = socket.socket(fileno=fd)
        mpsd._sock.setblocking(False)
        mpsd.ask(_conversation.hello(""))
        assert mpsd.ask(calls.arena_get("kv")).name == "kv"
        assert refusal(mpsd, calls.arena_open("kv", "write")) == "NO_SUCH_CLIENT"
        assert mpsd.ask(calls.arena_get("kv")).writer_pid is None


@contextmanager
def junk(machine: Machine) -> Iterator[dict[str, int]]:
    """Yield descriptors that are not memory."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    lingering = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    nested = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    socket.send_fds(nested[0], [b"x"], [nested[1].fileno()] * 100)
    files = [os.open(path, os.O_RDONLY) for path in ("/dev/null", "/", "/proc/self/stat")]
    only_path = os.open("/dev/null", os.O_PATH)
    try:
        yield {
            "a socket": ours.fileno(), "a pipe": reader, "a lingering socket": lingering.fileno(), "null": files[0],
            "a directory": files[1], "sockets in a socket": nested[0].fileno(), "a name alone": only_path,
        }  # fmt: skip
    finally:
        for each in (ours, theirs, lingering, *nested):
            each.close()
        close_all((reader, writer, only_path, *files))


@pytest.mark.slow
def test_junk_is_refused_and_none_of_it_is_kept(machine: Machine) -> None:
    """Also as layouts; also the connection itself, through itself."""
    machine.configure("[domains]\nspares = 0\n")
    machine.start()
    pid = machine.daemon_pid()
    with machine.mpsd() as mpsd, junk(machine) as odd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        mine = mpsd.ask(calls.arena_open("kv", "write"))
        fill(mpsd, mine, {0: b"good"}, b"{}")
        assert refusal(mpsd, calls.arena_remove("none")) == "NO_SUCH_ARENA"
        wait_for("the file of refusals", lambda: (machine.log_directory / Trail.REFUSED.value).exists())
        before = open_descriptors(pid)
        for name, fd in {**odd, "this connection": mpsd._sock.fileno()}.items():
            for _ in range(20):
                with memory(b"good") as [good]:
                    pairs = [(GRANULE, GRANULE), (2 * GRANULE, GRANULE)]
                    assert refusal(mpsd, calls.arena_put(mine.id, 1, pairs, [good, fd])) == "BAD_REQUEST", name
                assert refusal(mpsd, calls.arena_commit(mine.id, 1, fd)) == "BAD_REQUEST", name
        assert contents(mpsd, mine) == {0: b"good"}
        wait_for("what was refused to be closed", lambda: open_descriptors(pid) == before)


@pytest.mark.slow
def test_ten_thousand_puts_leave_nothing_behind(machine: Machine) -> None:
    """Count descriptors in mpsd and in the keeper; the sender cuts off some transfers."""
    machine.configure("[domains]\nspares = 0\n")
    machine.start()
    pid = machine.daemon_pid()
    chance = random.Random(RUN_SEED)
    with machine.mpsd() as mpsd, memory(b"one", b"two") as fds:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        mine = mpsd.ask(calls.arena_open("kv", "write"))
        pairs = [(0, GRANULE), (GRANULE, GRANULE)]
        mpsd.ask(calls.arena_put(mine.id, 1, pairs, fds))
        keepers = machine.processes("mpsd-keeper")
        for number in range(10_000):
            if number == 500:  # what is opened once is open
                before = [open_descriptors(each) for each in (pid, *keepers)]
            if number % 500 == 0:
                hang_up_in_the_middle(machine, mine.id, pairs, fds, chance)
            call = calls.arena_put(mine.id, 1 + (number % 7 == 0), pairs, fds)
            if number % 7 == 0:
                assert refusal(mpsd, call) == "STALE_GENERATION"
            else:
                assert mpsd.ask(call).used_bytes == 2 * GRANULE
        wait_for("as many descriptors as before", lambda: [open_descriptors(each) for each in (pid, *keepers)] == before)


def hang_up_in_the_middle(
    machine: Machine, arena_id: int, pairs: list[tuple[int, int]], fds: list[int], chance: random.Random
) -> None:
    """With requests on their way, some of them junk."""
    with machine.mpsd() as mpsd:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        for number in range(chance.randrange(1, 9)):
            _, datagram = mpsd._conversation.ask(calls.arena_put(arena_id, 1, pairs, fds))
            mpsd._sock.setblocking(True)
            data = datagram if chance.random() < 0.8 else b"\xc1"
            with suppress(ConnectionResetError, BrokenPipeError):  # it has had enough
                mpsd._sock.sendmsg([data], rights if number % 3 else [], socket.MSG_NOSIGNAL)


@pytest.mark.slow
def test_who_waits_to_write_holds_up_nobody_and_gives_up_when_it_goes(machine: Machine) -> None:
    machine.start()
    with machine.mpsd(UIDS[0]) as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE, mode=0o666))
        with other_process(machine, f"{UIDS[0]}:kv"):
            with machine.mpsd(UIDS[0]) as waiting:
                _, datagram = waiting._conversation.ask(calls.arena_open("kv", "write", 3600.0))
                waiting._sock.send(datagram)
                for _ in range(20):
                    assert mpsd.ask(calls.arena_get("kv")).generation == 1
            wait_for("the audit of what was given up", lambda: given_up(machine.log_directory / "audit-users.log"))
        mine = mpsd.ask(calls.arena_open("kv", "write", 20.0))
        assert mine.generation == 2


def given_up(log: Path) -> bool:
    return any(json.loads(line)["outcome"] == "given up" for line in log.read_text().splitlines())
