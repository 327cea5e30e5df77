"""Keepers of which mpsd does not know everything: whether they live, or what they hold."""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from mpsd.errors import KeeperFailed
from mpsd.host import processes
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.keeper import memory_keepers
from tests.unit.vault.machine import SPEC, committed, impatient_with_keepers, opened, put, taken, until


@contextmanager
def unread_keepers() -> Iterator[None]:
    """The keepers' /proc/PID/stat is not read, as while another process of their user keeps the reader waiting."""
    read = ProcessReader.stat

    def refuse(self: ProcessReader, pid: int) -> bytes:
        if processes.command(pid) == "mpsd-keeper":
            raise Unanswered(errno.EBUSY, "not read")
        return read(self, pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessReader, "stat", refuse)
        yield


async def test_a_new_keeper_that_cannot_be_read_is_not_taken_for_dead(machine, writer):
    """It gets no memory until mpsd can watch it: mpsd would give up what it holds, and not end it."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        with unread_keepers(), pytest.raises(KeeperFailed, match="cannot be read"):
            await put(vault, arena, writer.process, 0)
        await put(vault, arena, writer.process, 0)
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert await taken(vault, arena, writer.process) == {0: b"0"}
        assert len(vault.keeper.pids) == len(vault.keeper._processes) == 1  # the one that was started first
        assert machine.topics("arena.lost") == []


async def test_a_known_keeper_that_cannot_be_read_is_reached(machine, writer):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
    with unread_keepers():
        async with machine.vault() as vault:
            assert await taken(vault, arena, writer.process) == {0: b"0"}
            assert machine.topics("arena.lost") == []


async def test_no_name_is_given_again_that_a_silent_keeper_may_have(machine, writer, monkeypatch):
    """Else memory that one user has removed, and that is not dropped yet, has the name of another user's."""
    machine.small_keepers(6)
    impatient_with_keepers(monkeypatch)
    async with machine.vault() as vault:
        arenas = [await opened(vault, writer.process, replace(SPEC, name=name)) for name in ("full", "removed")]
        await put(vault, arenas[0], writer.process, *range(6))
        await put(vault, arenas[1], writer.process, 0, 1, text=b"of another")
        silent = vault.keeper.pids[1]
        await vault.arenas.commit(arenas[1].id, 1, writer.process, None)
        os.kill(silent, signal.SIGSTOP)
        with pytest.raises(KeeperFailed):
            await taken(vault, arenas[1], writer.process)  # it is known to be silent: what is dropped is not even sent
        for arena in arenas:
            await vault.arenas.close(arena.id, writer.process)
            await vault.arenas.remove(arena.id)
        await until(lambda: vault.store.last_serial() == 0)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        for _ in range(4):  # each time under other names; the last ones were those of the removed arena
            await put(vault, arena, writer.process, 0, 1, text=b"own")
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        os.kill(silent, signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works")
        assert await taken(vault, arena, writer.process) == {0: b"own", 1: b"own"}
        await until(lambda: vault.keeper.held == 2)


async def test_a_keeper_that_was_reached_is_none_whose_socket_was_removed(machine, writer, monkeypatch):
    """Found under another number too, as by a socket of another process that has the inode number of its own, it was killed."""
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        [reached] = vault.store.keepers().values()
    monkeypatch.setattr(memory_keepers, "find_unreachable", lambda program, path: {f"{path.name}-9": reached})
    async with machine.vault() as vault:
        assert await taken(vault, arena, writer.process) == {0: b"0"}
        assert vault.keeper.pids == [reached.pid]
    assert machine.topics("arena.lost") == []
