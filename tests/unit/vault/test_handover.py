"""A keeper that is ended gives its descriptors to systemd, and the next mpsd gets them from there."""

import os
import signal
import socket
from pathlib import Path

import pytest
from mpsd_client import State

from mpsd.runtime.stored import Stored, take_stored
from mpsd.wire.keeper import Entry, pack_stored, parse_stored
from tests.unit.vault.house import committed, memory, opened, put, taken, until


class Systemd:
    """The end of the notification socket that has the store."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def take(self) -> list[Stored]:
        """Until the barrier, whose descriptor is closed when all before it was taken."""
        found = []
        while True:
            text, passed, _, _ = socket.recv_fds(self._socket, 4096, 1)
            if text == b"BARRIER=1":
                os.close(passed[0])
                return found
            name = text.decode().partition("FDNAME=")[2]
            found.append(Stored(name, passed[0], parse_stored(name)))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(short_dir, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(short_dir / "notify"))
    made = Systemd(short_dir / "notify")
    yield made
    made.close()


async def test_what_systemd_kept_is_the_arenas_again(house, writer, systemd):
    async with house.vault() as vault:
        arena = await committed(vault, writer.process, places=(0, 1))
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
        with State.create({"step": "uint64"}, generation=1) as state:
            serial = (await vault.arenas.keep_state(arena.id, 1, writer.process, os.dup(state.fd))).state_serial
        pid = vault.keeper.pid
    os.kill(pid, signal.SIGTERM)
    house.stored = systemd.take()
    names = {each.name for each in house.stored}
    async with house.vault() as vault:
        assert (vault.arenas.find("model").generation, vault.arenas.find("model").state_serial) == (1, serial)
        assert await taken(vault, arena, writer.process) == {0: b"0", 1: b"1"}
        await until(lambda: set(house.forgotten) == names)  # or systemd would hold the memory for ever
        assert vault.keeper.pid != pid


async def test_what_systemd_kept_of_several_is_spread_again(house, writer, systemd):
    """One of them lives on, and has what it had."""
    house.small_keepers(3)
    async with house.vault() as vault:
        arena = await opened(vault, writer.process)
        for place in range(8):
            await put(vault, arena, writer.process, place)
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
        pids = vault.keeper.pids
    assert len(pids) == 3
    for pid in pids[:2]:
        os.kill(pid, signal.SIGTERM)
        house.stored += systemd.take()
    assert len(house.stored) == 6
    async with house.vault() as vault:
        assert vault.arenas.find("model").generation == 1
        assert await taken(vault, arena, writer.process) == {place: b"%d" % place for place in range(8)}
        assert len(vault.keeper.pids) == 3
        assert pids[2] in vault.keeper.pids
        await until(lambda: len(house.forgotten) == 6)


async def test_what_systemd_kept_and_nobody_knows_is_let_go(house, writer, systemd):
    """Descriptors of another keeper, of another form, and of what is no memory."""
    async with house.vault() as vault:
        await committed(vault, writer.process)
        pid = vault.keeper.pid
    os.kill(pid, signal.SIGTERM)
    [kept] = systemd.take()
    ours, theirs = os.pipe()
    os.close(theirs)
    os.close(kept.descriptor)
    house.stored = [
        Stored(kept.name, ours, kept.entry),
        Stored("mpsd1,1,0,0,client.1.control", memory(), Entry("client.1.control", 1, 0)),
        Stored("stored", memory(), None),
        Stored("mpsd1,1,0,0,m.0000000000ff", memory(), Entry("m.0000000000ff", 1, 0)),
    ]
    names = {each.name for each in house.stored}
    async with house.vault() as vault:
        assert (vault.arenas.find("model").used_bytes, await vault.keeper.names()) == (0, [])
        await until(lambda: names <= set(house.forgotten))


async def test_memory_that_was_lost_is_not_left_with_systemd(house, writer):
    """The keeper was ended while mpsd lives, which cannot get anything back from systemd."""
    async with house.vault() as vault:
        await committed(vault, writer.process)
        os.kill(vault.keeper.pid, signal.SIGKILL)
        await until(lambda: house.forgotten == ["mpsd1,1,200000,0,m.000000000001"])


@pytest.mark.parametrize(
    "entry", [Entry("m.000000000001", 1, 2 << 20), Entry("client.7:x.control", 2**64 - 1, 2**64 - 1), Entry("a", 1, 0)]
)
def test_a_name_says_all_that_the_keeper_knew(entry):
    assert parse_stored(pack_stored(entry)) == entry


@pytest.mark.parametrize(
    "name",
    ["", "stored", "mpsd1", "mpsd1,1,0,0", "mpsd1,1,0,0,", "mpsd2,1,0,0,a", "mpsd1,x,0,0,a", "mpsd1,1,0,0,a,b",
     "mpsd1,-1,0,0,a", "mpsd1,1,-1,0,a", "mpsd1,10000000000000000,0,0,a", "mpsd1,1,1_0,0,a", "mpsd1,1,0,0,A",
     f"mpsd1,1,0,0,{'a' * 65}"],
)  # fmt: skip
def test_another_name_is_none_of_ours(name):
    assert parse_stored(name) is None


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a"},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "99999999999"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"},
    ],
)
def test_what_is_meant_for_another_process_is_not_taken(variables):
    environ = {"PATH": "/bin", **variables}
    assert take_stored(environ) == []
    assert environ == {"PATH": "/bin"}


def test_descriptors_are_taken_with_their_names():
    """In a process of its own: they are the lowest numbers there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(ours.fileno(), 10)
            for number in (3, 4):
                os.dup2(10, number)
            environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "mpsd1,1,2,0,m.1"}
            found = take_stored(environ)
            told = [(each.name, each.descriptor, each.entry, os.get_inheritable(each.descriptor)) for each in found]
            socket.socket(fileno=10).send(repr((told, environ)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    theirs.settimeout(5)
    expected = ([("mpsd1,1,2,0,m.1", 3, Entry("m.1", 1, 2), False), ("", 4, None, False)], {})
    assert theirs.recv(4096).decode() == repr(expected)
    ours.close()
    theirs.close()
