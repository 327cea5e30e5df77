"""Keepers of which mpsd does not know everything: whether they live, or what they hold."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsd.errors import KeeperFailed
from mpsd.host import processes
from mpsd.host.process_reader import ProcessReader, Unanswered
from tests.unit.vault.machine import committed, opened, put, taken


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
