"""Admission of writers: never before the old writer can no longer write."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import ArenaBusy, ArenaSealed, BadRequest, NoSuchArena, NotAllowed, TooMany
from mpsd.host import processes
from mpsd.model.arena import Access, Arena
from mpsd.model.process import ProcessId
from mpsd.vault.fencing import has_ended_wholly
from mpsd.vault.rules import spec
from mpsd.vault.rules.settings import VaultSettings
from mpsd.vault.store import VaultStore
from tests.descriptors import descriptors
from tests.unit.vault.machine import SPEC, STRANGER, USER, a_process, committed, opened, put, taken, until

SECONDS = 10.0


async def test_a_living_writer_is_waited_for_and_then_busy(machine, writer, other):
    """Also one that is stopped: it may go on at any time."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        os.kill(writer.process.pid, signal.SIGSTOP)
        with pytest.raises(ArenaBusy, match=f"pid {writer.process.pid} writes it"):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, 0)
        with pytest.raises(ArenaBusy):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, 0.01)
        assert vault.arenas.find("model").writer == writer.process


async def test_the_end_of_the_writer_admits_the_next_with_the_last_commit(machine, writer, other):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await put(vault, arena, writer.process, 1)
        writer.kill()
        arena = await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
        assert (arena.generation, arena.writer) == (2, other.process)
        assert await taken(vault, arena, other.process) == {0: b"0"}
        [fenced] = machine.topics("arena.fenced")
        assert (fenced["pid"], fenced["was_writer"]) == (writer.process.pid, True)


async def test_a_readable_pidfd_is_not_enough(machine, writer, other):
    """The descriptors that mpsd holds of a killed client let its kernels go on writing (docs/vault.md, "Fencing")."""
    machine.holding.hold(writer.process)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        writer.kill()
        await until(lambda: vault.holders.has_ended(writer.process))
        with pytest.raises(ArenaBusy, match="has ended, and its work on the GPU not yet"):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, 0.01)
        assert machine.holding.released == []
        machine.holding.held[writer.process].set()
        assert (await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)).generation == 2


@pytest.mark.root
async def test_the_readers_of_one_user_keep_no_other_out(machine, writer, monkeypatch):
    """An arena that all may read had 256 places: 256 processes of anyone kept even its owner's out."""
    monkeypatch.setattr(spec, "MOST_READERS", 32)
    many, few = 64321, 64322
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        with ExitStack() as alive:

            async def read(uid):
                holder = alive.enter_context(a_process(uid))
                await vault.arenas.open(arena.id, Access.READ, holder.process, 0)

            for _ in range(28):
                await read(many)
            with pytest.raises(TooMany, match="readers of an arena: the last 4 of 32"):
                await read(many)
            await read(few)
            await read(USER)


@pytest.mark.parametrize("waits_first", [True, False])
async def test_prompt_lets_go_when_somebody_waits(machine, writer, other, waits_first):
    machine.settings = VaultSettings(is_prompt=True)
    machine.holding.hold(writer.process)
    async with machine.vault() as vault, trio.open_nursery() as nursery:
        arena = await opened(vault, writer.process)
        if not waits_first:
            writer.kill()
            await until(lambda: vault.holders.has_ended(writer.process))
            assert machine.holding.released == []
        nursery.start_soon(vault.arenas.open, arena.id, Access.WRITE, other.process, SECONDS)
        await until(lambda: len(vault.catalog.find("model").queue) == 1)
        if waits_first:
            assert machine.holding.released == []  # it lives
            writer.kill()
        await until(lambda: writer.process in machine.holding.released)
        machine.holding.held[writer.process].set()


async def test_those_who_wait_are_admitted_in_their_order(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        admitted = []

        async def wait(process: ProcessId) -> None:
            await vault.arenas.open(arena.id, Access.WRITE, process, SECONDS)
            admitted.append(process)
            await vault.arenas.close(arena.id, process)

        with a_process() as third:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, other.process)
                await until(lambda: len(vault.catalog.find("model").queue) == 1)
                nursery.start_soon(wait, third.process)
                await until(lambda: len(vault.catalog.find("model").queue) == 2)
                await vault.arenas.close(arena.id, writer.process)
            assert admitted == [other.process, third.process]
        assert vault.arenas.find("model").generation == 3


async def test_who_waits_is_refused_when_the_mode_changes(machine, writer, other):
    """The mode was looked at before the wait alone."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)

        def check() -> None:
            if vault.arenas.find("model").mode == 0o600:
                raise NotAllowed("its mode refuses you")

        await vault.arenas.change(arena.id, None, 0o666, None)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(NotAllowed):
                    await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS, check)
                assert vault.arenas.find("model").writer == writer.process

            nursery.start_soon(wait)
            await until(lambda: len(vault.catalog.find("model").queue) == 1)
            await vault.arenas.change(arena.id, None, 0o600, None)


async def test_who_waits_is_told_when_it_is_sealed_or_gone(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        refusals = []

        async def wait() -> None:
            try:
                await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
            except (ArenaSealed, NoSuchArena) as exc:
                refusals.append(type(exc))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: len(vault.catalog.find("model").queue) == 1)
            await vault.arenas.seal(arena.id, 1, writer.process)
        assert refusals == [ArenaSealed]


async def test_a_process_that_has_ended_is_not_admitted(machine, writer):
    async with machine.vault() as vault:
        arena = await vault.arenas.create(SPEC, USER, USER, None)
        writer.end()
        with pytest.raises(BadRequest, match="has ended"):
            await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        with pytest.raises(BadRequest, match="has ended"):
            await vault.arenas.open(arena.id, Access.READ, replace(writer.process, start_time=1), 0)
        assert vault.arenas.find("model").generation == 0


@pytest.mark.parametrize("access", list(Access))
async def test_a_process_that_is_being_fenced_gets_nothing_more(machine, writer, access):
    """Its end has been noticed already, and will not be again."""
    machine.holding.hold(writer.process)
    async with machine.vault() as vault:
        await opened(vault, writer.process)
        further = await vault.arenas.create(replace(SPEC, name="further"), USER, USER, None)
        writer.end()
        await until(lambda: vault.holders.has_ended(writer.process))
        with pytest.raises(BadRequest, match="has ended"):
            await vault.arenas.open(further.id, access, writer.process, 0)


async def test_the_end_of_a_reader_is_noticed(machine, writer, other):
    machine.holding.hold(other.process)
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        other.kill()
        await until(lambda: vault.holders.has_ended(other.process))
        assert vault.arenas.find("model").readers == (other.process,)
        machine.holding.held[other.process].set()
        await until(lambda: vault.arenas.find("model").readers == ())
        assert vault.arenas.find("model").unheld_since is not None


async def test_a_reader_may_become_the_writer(machine, writer):
    async with machine.vault() as vault:
        arena = await vault.arenas.create(SPEC, USER, USER, None)
        await vault.arenas.open(arena.id, Access.READ, writer.process, 0)
        arena = await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        assert (arena.writer, arena.readers) == (writer.process, ())
        writer.kill()
        await until(lambda: not vault.arenas.find("model").is_held)


@pytest.mark.slow
async def test_one_process_may_have_many_and_is_waited_for_once(machine, writer):
    async with machine.vault() as vault:
        before = descriptors()
        for name in "abc":
            await opened(vault, writer.process, replace(SPEC, name=name))
        assert (vault.holders.count, descriptors()) == (1, before + 1)
        for name in "abc":
            await vault.arenas.close(vault.arenas.find(name).id, writer.process)
        await until(lambda: descriptors() == before)
        assert vault.holders.count == 0


async def test_a_writer_that_died_while_no_mpsd_was_there_is_fenced_by_the_next(machine, writer, other):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await put(vault, arena, writer.process, 1)
    writer.collect()
    async with machine.vault() as vault:
        arena = await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
        assert await taken(vault, arena, other.process) == {0: b"0"}


async def test_a_writer_that_outlives_mpsd_is_the_writer_still(machine, writer, other):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
    async with machine.vault() as vault:
        with pytest.raises(ArenaBusy):
            await vault.arenas.open(arena.id, Access.WRITE, other.process, 0)
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        writer.kill()
        arena = await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
        assert await taken(vault, arena, other.process) == {0: b"0"}


async def test_nobody_is_fenced_while_the_mpsd_before_still_ends(machine, writer, other):
    """The kernel closes what a killed mpsd held of a dead client, one descriptor after the other; its lock is free before."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
    writer.collect()
    with a_process() as before:
        machine.before = {before.process: processes.ticks_at()}
        async with machine.vault() as vault:
            await until(lambda: vault.holders.has_ended(writer.process))
            with pytest.raises(ArenaBusy):
                await vault.arenas.open(arena.id, Access.WRITE, other.process, 0.01)
            before.kill()
            await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)


async def test_one_that_came_later_is_fenced_though_the_mpsd_before_does_not_end(machine, other):
    """A user's file server can keep a thread of it from ending: until that server ended no arena got another writer."""
    with a_process() as before:
        machine.before = {before.process: processes.ticks_at()}
        now = processes.ticks_at()
        async with machine.vault() as vault:
            await until(lambda: processes.ticks_at() > now + 1)  # else it may have begun in the same tick
            with a_process() as later:
                arena = await opened(vault, later.process)
                later.kill()
                await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)


async def test_after_a_reboot_nobody_holds_anything(machine, writer):
    """Pids mean other processes then, and the memory is gone."""
    async with machine.vault() as vault:
        await committed(vault, writer.process)
    machine.boot = "the next boot"
    machine.end_keepers()
    async with machine.vault() as vault:
        arena = vault.arenas.find("model")
        assert (arena.is_held, arena.used_bytes, arena.generation) == (False, 0, 2)
        assert arena.unheld_since == machine.now


async def test_one_user_cannot_keep_the_others_from_opening(machine, writer, other, monkeypatch):
    monkeypatch.setattr("mpsd.vault.fencing.MOST_OF_USER", 1)
    monkeypatch.setattr("mpsd.host.processes.charged_uid", lambda pid: USER if pid == writer.process.pid else STRANGER)
    async with machine.vault() as vault:
        await opened(vault, writer.process)
        arena = await opened(vault, other.process, replace(SPEC, name="b"), STRANGER)
        with a_process() as third, pytest.raises(TooMany, match=f"user {STRANGER}"):
            await vault.arenas.open(arena.id, Access.READ, third.process, 0)
        await vault.arenas.close(arena.id, other.process)
        with a_process() as third:
            await vault.arenas.open(arena.id, Access.READ, third.process, 0)


@pytest.mark.root
async def test_programs_of_roots_that_a_user_runs_are_that_users(machine, monkeypatch):
    """A client that executes su, which asks for a password, has root's effective uid: a user could have all places so."""
    monkeypatch.setattr("mpsd.vault.fencing.MOST_OF_USER", 1)
    async with machine.vault() as vault:
        with a_process(STRANGER, is_of_root=True) as first, a_process(STRANGER, is_of_root=True) as second:
            arena = await opened(vault, first.process)
            with pytest.raises(TooMany, match=f"user {STRANGER}"):
                await vault.arenas.open(arena.id, Access.READ, second.process, 0)


async def test_what_processes_had_open_is_forgotten(machine, writer, other):
    """Processes without open arenas, and ended processes, are forgotten."""
    async with machine.vault() as vault:
        arenas = [await opened(vault, writer.process, replace(SPEC, name=name)) for name in ("one", "two")]
        for arena in (arenas[0], arenas[1], arenas[0]):
            await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        assert {each.arena.name for each in vault.catalog.opened_by(other.process)} == {"one", "two"}
        await vault.arenas.close(arenas[1].id, other.process)
        assert vault.catalog.has_open(other.process)
        await vault.arenas.close(arenas[0].id, other.process)
        assert not vault.catalog.has_open(other.process)
        writer.kill()
        await until(lambda: len(machine.topics("arena.fenced")) == 2)
        assert vault.catalog._opened == {}


async def test_arenas_that_a_process_has_closed_are_forgotten_while_it_has_another_open(machine, writer):
    """A process can open and close new ones for as long as it lives."""
    async with machine.vault() as vault:
        before: Arena | None = None
        for number in range(4):
            arena = await opened(vault, writer.process, replace(SPEC, name=f"arena-{number}"))
            if before is not None:
                await vault.arenas.close(before.id, writer.process)
                await vault.arenas.remove(before.id)
            before = arena
        assert vault.catalog._opened == {writer.process: {arena.id: None}}


LEADER_ENDS = """
import ctypes, os, threading
os.read(0, 1)
threading.Thread(target=os.read, args=(0, 1)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@contextmanager
def half_ended() -> Iterator[tuple[ProcessId, IO[bytes]]]:
    """A zombie of which a thread lives until this pipe is closed."""
    with subprocess.Popen([sys.executable, "-c", LEADER_ENDS], stdin=subprocess.PIPE) as made:
        process = processes.process_id(made.pid)
        assert process is not None
        assert made.stdin is not None
        made.stdin.write(b"x")
        made.stdin.flush()
        yield process, made.stdin


async def test_an_earlier_mpsd_is_waited_for_also_after_a_second_start(machine, writer, other):
    """It had a client's GPU context, and a user's file server kept a thread of it: the mpsd after next did not know of it."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
    with half_ended() as (first, life), a_process() as second, a_process() as third:
        await until(lambda: processes.has_thread_ended(first.pid))
        for daemon in (first, second.process):
            _begin(machine, daemon)
        second.kill()
        await until(lambda: has_ended_wholly(second.process))
        machine.before = _begin(machine, third.process)
        assert list(machine.before) == [first]
        async with machine.vault() as vault:
            writer.collect()
            await until(lambda: vault.holders.has_ended(writer.process))
            with pytest.raises(ArenaBusy):
                await vault.arenas.open(arena.id, Access.WRITE, other.process, 0.01)
            life.close()
            await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)
        with a_process() as fourth:
            assert list(_begin(machine, fourth.process)) == [third.process]


def _begin(machine, daemon: ProcessId) -> dict[ProcessId, int]:
    store = VaultStore(machine.directory / "vault.db", machine.boot)
    try:
        return store.begin(daemon, processes.ticks_at(), has_ended_wholly)
    finally:
        store.close()
