"""The vault in a daemon: what it starts, what outlives what, and what is left when mpsd quits."""

import os
import signal

import pytest
from mpsd_client import calls, values

from mpsd.model.arena import GRANULE
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_arena_socket import contents, fill, layout_of, put, refusal

LAYOUT = b'{"format": "mine"}'


def vault_keeper(machine: Machine) -> int:
    """Return the keeper's pid, or 0 if it does not run. The relay's keeper is older."""
    with machine.mpsd() as mpsd:
        keeper = mpsd.ask(calls.status()).keeper
    return keeper.pid or 0 if keeper else 0


def begin(machine: Machine) -> values.Arena:
    """An arena that this process writes: three granules, committed with a layout."""
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        arena = mpsd.ask(calls.arena_open("kv", "write"))
        fill(mpsd, arena, {0: b"zero", 1: b"one", 2: b"two"}, LAYOUT)
        return arena


def check_whole(machine: Machine, arena: values.Arena) -> None:
    with machine.mpsd() as mpsd:
        assert contents(mpsd, arena) == {0: b"zero", 1: b"one", 2: b"two"}
        assert layout_of(mpsd, arena) == LAYOUT


@pytest.mark.slow
def test_there_is_no_keeper_before_there_is_memory(machine: Machine) -> None:
    machine.start()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
    before = len(machine.processes("mpsd-keeper"))
    assert vault_keeper(machine) == 0
    with machine.mpsd() as mpsd:
        arena = mpsd.ask(calls.arena_open("kv", "write"))
        put(mpsd, arena, {0: b"x"})
    assert len(machine.processes("mpsd-keeper")) == before + 1


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_kill_9_of_mpsd_again_and_again_costs_nothing(machine: Machine, times: int) -> None:
    """The same keeper, the same generation, and the writer goes on."""
    machine.start()
    arena = begin(machine)
    keeper = vault_keeper(machine)
    for number in range(times):
        with machine.mpsd() as mpsd:
            put(mpsd, arena, {8 + number: b"not committed"})
        machine.kill_daemon()
        machine.start()
        check_whole(machine, arena)
    assert vault_keeper(machine) == keeper
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.arena_get("kv")).used_bytes == (3 + times) * GRANULE
        mpsd.ask(calls.arena_commit(arena.id, arena.generation))
        assert set(contents(mpsd, arena)) == {0, 1, 2, *range(8, 8 + times)}


@pytest.mark.slow
def test_the_keepers_death_is_said_and_its_arenas_can_be_filled_again(machine: Machine) -> None:
    machine.start()
    arena = begin(machine)
    os.kill(vault_keeper(machine), signal.SIGKILL)
    machine.wait_for_journal("vault.lost")
    with machine.mpsd() as mpsd:
        assert refusal(mpsd, calls.arena_commit(arena.id, arena.generation)) == "STALE_GENERATION"
        again = mpsd.ask(calls.arena_open("kv", "write"))
        assert (again.generation, again.used_bytes, again.layout_hash) == (2, 0, "")
        fill(mpsd, again, {0: b"zero", 1: b"one", 2: b"two"}, LAYOUT)
    check_whole(machine, arena)


@pytest.mark.slow
def test_kill_9_of_both_loses_the_memory_and_nothing_else(machine: Machine) -> None:
    machine.start()
    arena = begin(machine)
    keeper = vault_keeper(machine)
    machine.kill_daemon()
    os.kill(keeper, signal.SIGKILL)
    machine.start()
    with machine.mpsd() as mpsd:
        found = mpsd.ask(calls.arena_get("kv"))
        assert (found.id, found.used_bytes, found.generation) == (arena.id, 0, 2)


def test_quit_ends_the_keeper(machine: Machine) -> None:
    machine.start()
    begin(machine)
    keeper = vault_keeper(machine)
    assert machine.quit() == 0
    assert not is_running(keeper)
    assert not (machine.state / "vault-keeper").exists()


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["free", "keep"])
def test_quit_gives_the_memory_back_unless_it_is_to_be_kept(machine: Machine, keep: str) -> None:
    machine.configure(f'[vault]\nkeep = "{keep}"\n')
    machine.start()
    arena = begin(machine)
    keeper = vault_keeper(machine)
    assert machine.quit() == 0
    assert is_running(keeper) == (keep == "keep")
    machine.start()
    if keep == "keep":
        check_whole(machine, arena)
        return
    with machine.mpsd() as mpsd:
        assert refusal(mpsd, calls.arena_get("kv")) == "NO_SUCH_ARENA"
    assert not (machine.state / "vault-keeper").exists()


@pytest.mark.slow
@pytest.mark.parametrize("on_sigterm", ["leave", "quit"])
def test_on_sigterm_arenas_go_where_domains_go(machine: Machine, on_sigterm: str) -> None:
    machine.configure(f'[stop]\non_sigterm = "{on_sigterm}"\n')
    machine.start()
    arena = begin(machine)
    pid, keeper = machine.daemon_pid(), vault_keeper(machine)
    machine.signal_daemon("SIGTERM")
    wait_for("the end of mpsd", lambda: not is_running(pid))
    assert is_running(keeper) == (on_sigterm == "leave")
    if on_sigterm == "leave":
        machine.start()
        check_whole(machine, arena)


@pytest.mark.slow
def test_unprivileged_it_works_the_same(strangers: Machine) -> None:
    strangers.start()
    with strangers.mpsd(strangers.uid) as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
        arena = mpsd.ask(calls.arena_open("kv", "write"))
        fill(mpsd, arena, {0: b"zero"})
        assert contents(mpsd, arena) == {0: b"zero"}
    strangers.kill_daemon()
    strangers.start()
    with strangers.mpsd(strangers.uid) as mpsd:
        assert contents(mpsd, arena) == {0: b"zero"}


@pytest.mark.slow
def test_settings_of_the_vault_are_reloaded(machine: Machine) -> None:
    machine.start()
    machine.configure("[vault]\nmax_arenas = 1\n")
    machine.signal_daemon("SIGHUP")
    assert machine.wait_for_journal("reload.done")["changed"] == ["vault.max_arenas"]
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_create("kv", "0", GRANULE))
        assert refusal(mpsd, calls.arena_create("more", "0", GRANULE)) == "NO_ROOM"
