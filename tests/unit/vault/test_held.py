"""Fencing with the real descriptors that mpsd holds of a killed client: those of its VA space (the simulator's kind)."""

import trio

from mpsd.model.arena import Access
from mpsd.vault.rules.settings import VaultSettings
from tests.unit.uvm.fake_clients import GPU, Told, a_client, attachments, company, until
from tests.unit.vault.machine import SPEC, USER, committed, opened, taken

SECONDS = 10.0


async def test_the_next_writer_comes_when_the_held_descriptors_are_closed(machine, writer, short_dir):
    """Not when the pidfd is readable: until then its running work still writes."""
    held = attachments(short_dir, Told(), hold_seconds=0.2)
    machine.holding = held
    with a_client(short_dir) as client:
        client.begin()
        async with machine.vault() as vault, trio.open_nursery() as nursery:
            await nursery.start(held.run)
            held.watch(client.process, "default", (GPU,), company)
            await until(lambda: held.standing(client.process).held)
            arena = await committed(vault, client.process)
            client.kill()
            await vault.arenas.open(arena.id, Access.WRITE, writer.process, SECONDS)
            assert not client.is_held
            [fenced] = machine.topics("arena.fenced")
            assert fenced["seconds"] >= 0.2
            assert await taken(vault, arena, writer.process) == {0: b"0"}
            nursery.cancel_scope.cancel()


async def test_prompt_ends_the_holding_for_whoever_waits(machine, writer, short_dir):
    held = attachments(short_dir, Told(), hold_seconds=600.0)
    machine.holding, machine.settings = held, VaultSettings(is_prompt=True)
    with a_client(short_dir) as client:
        client.begin()
        async with machine.vault() as vault, trio.open_nursery() as nursery:
            await nursery.start(held.run)
            held.watch(client.process, "default", (GPU,), company)
            await until(lambda: held.standing(client.process).held)
            arena = await opened(vault, client.process)
            client.kill()
            await until(lambda: vault.holders.has_ended(client.process))
            assert client.is_held
            await vault.arenas.open(arena.id, Access.WRITE, writer.process, SECONDS)
            assert not client.is_held
            nursery.cancel_scope.cancel()


async def test_who_was_never_watched_is_not_waited_for(machine, writer, other, short_dir):
    machine.holding = attachments(short_dir, Told())
    async with machine.vault() as vault:
        arena = await vault.arenas.create(SPEC, USER, USER, None)
        await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        writer.kill()
        assert (await vault.arenas.open(arena.id, Access.WRITE, other.process, SECONDS)).generation == 2
