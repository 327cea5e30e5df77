"""Where a process may not open as many files as the vault has descriptors: several keepers, and the death of everybody."""

import os
import signal
import sys

import pytest
from mpsd_client import calls, values

from mpsd.model.arena import GRANULE
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_arena_socket import contents, fill, layout_of, refusal

FILES = 512  # that a process may open, root's too
EACH = 100  # allocations of an arena
NAMES = [f"a{number}" for number in range(8)]  # four for each keeper
LIMITED = f"""#!{sys.executable}
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE: who has it opens as many as he likes
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

pytestmark = [pytest.mark.slow, pytest.mark.deadline(180)]


def keeper_pids(machine: Machine) -> tuple[int, ...]:
    with machine.mpsd() as mpsd:
        keeper = mpsd.ask(calls.status()).keeper
    return keeper.pids if keeper else ()


def words(name: str) -> dict[int, bytes]:
    return {place: f"{name} {place}".encode() for place in range(EACH)}


def fill_all(machine: Machine) -> None:
    with machine.mpsd() as mpsd:
        for name in NAMES:
            mpsd.ask(calls.arena_create(name, "0", EACH * GRANULE))
            fill(mpsd, mpsd.ask(calls.arena_open(name, "write")), words(name), name.encode())


def check_all(machine: Machine) -> list[str]:
    """Each is whole, or empty; the names of the empty ones."""
    empty = []
    with machine.mpsd() as mpsd:
        for name in NAMES:
            arena: values.Arena = mpsd.ask(calls.arena_get(name))
            if arena.allocations:
                assert (arena.generation, contents(mpsd, arena), layout_of(mpsd, arena)) == (1, words(name), name.encode())
            else:
                assert (arena.generation, arena.used_bytes, arena.layout_hash) == (2, 0, "")
                empty.append(name)
    return empty


@pytest.fixture
def limited(machine: Machine) -> Machine:
    program = machine.place / "python"
    program.write_text(LIMITED)
    program.chmod(0o755)
    machine.variables["MPSD_PYTHON"] = str(program)
    machine.start()
    return machine


def test_mpsd_is_killed_and_one_keeper_and_both(limited: Machine) -> None:
    fill_all(limited)
    pids = keeper_pids(limited)
    assert len(pids) == 2
    limited.kill_daemon()
    limited.start()
    assert keeper_pids(limited) == pids
    assert check_all(limited) == []

    os.kill(pids[0], signal.SIGKILL)
    limited.wait_for_journal("vault.lost")
    assert check_all(limited) == NAMES[:4]
    with limited.mpsd() as mpsd:
        for name in NAMES[:4]:
            fill(mpsd, mpsd.ask(calls.arena_open(name, "write")), words(name), name.encode())

    pids = keeper_pids(limited)
    limited.kill_daemon()
    os.kill(pids[1], signal.SIGKILL)
    limited.start()
    with limited.mpsd() as mpsd:
        left = [name for name in NAMES if contents(mpsd, mpsd.ask(calls.arena_get(name))) == words(name)]
        status = mpsd.ask(calls.status()).keeper
    assert left == NAMES[:4]
    assert status == values.Keeper("works", pids[0], pids[:1], 4 * (EACH + 1))
    assert limited.quit() == 0
    wait_for("the end of all keepers", lambda: not any(map(is_running, pids)))
    assert list(limited.state.glob("vault-keeper*")) == []


def test_one_that_is_stopped_costs_answers_about_what_it_has(limited: Machine) -> None:
    fill_all(limited)
    pids = keeper_pids(limited)
    os.kill(pids[0], signal.SIGSTOP)
    try:
        with limited.mpsd() as mpsd:
            first, last = (mpsd.ask(calls.arena_get(name)) for name in (NAMES[0], NAMES[-1]))
            assert refusal(mpsd, calls.arena_take(first.id, None, 1)) == "KEEPER_FAILED"
            assert refusal(mpsd, calls.arena_take(first.id, None, 1)) == "KEEPER_FAILED"
            assert mpsd.ask(calls.status()).keeper.state == "1 of 2 do not answer"
            health = mpsd.ask(calls.health())
            assert health.ok
            assert "1 of 2 do not answer" in health.problems[0]
            assert contents(mpsd, last) == words(NAMES[-1])
    finally:
        os.kill(pids[0], signal.SIGCONT)

    def state() -> str:
        with limited.mpsd() as mpsd:
            return str(mpsd.ask(calls.status()).keeper.state)

    wait_for("the keeper to be reached again", lambda: state() == "works")
    assert check_all(limited) == []
