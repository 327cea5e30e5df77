"""A user makes an arena with the name of another user's service first, and lets every user write it."""

import json
import subprocess
import sys

import pytest
from mpsd_client import Refused, calls
from mpsd_client._restoring import is_missing

from tests.hostile.test_containers import container
from tests.integration.machine import ROOT, UIDS, Machine

VICTIM, SQUATTER = UIDS
BYTES = 32 << 20


@pytest.mark.parametrize("uid", [VICTIM, 0])
def test_a_squatters_arena_is_not_taken_for_ones_own(shared: Machine, uid: int) -> None:
    """The service would read the squatter's commits and obey its settings; root's service is not exempt."""
    name = f"llm-{uid}"
    with shared.mpsd(SQUATTER) as squatter, shared.mpsd(uid) as victim, shared.mpsd() as operator:
        made = squatter.ask(calls.arena_create(name, "0", BYTES, mode=0o666))
        squatter.ask(calls.service_change(name, standbys=8))
        for call in (calls.arena_open(name, "read"), calls.arena_open(name, "write"), calls.service_enlist(name)):
            with pytest.raises(Refused, match=f"belongs to user {SQUATTER}.* name it {SQUATTER}:{name} to use it"):
                victim.ask(call)
        with pytest.raises(Refused, match=f"it belongs to user {SQUATTER}, and an operator can remove it"):
            victim.ask(calls.arena_create(name, "0", BYTES))
        assert victim.ask(calls.arena_open(f"{SQUATTER}:{name}", "read")).id == made.id
        victim.ask(calls.arena_close(made.id))
        operator.ask(calls.arena_remove(name))
        victim.ask(calls.arena_create(name, "0", BYTES))
        victim.ask(calls.arena_open(name, "read"))


def test_the_shim_commits_nothing_to_a_squatters_arena(shared: Machine) -> None:
    """The program has the driver's memory instead."""
    with shared.mpsd(SQUATTER) as squatter:
        made = squatter.ask(calls.arena_create("kv", "0", 64 << 20, mode=0o666))
        shim = {"LD_PRELOAD": str(ROOT / "clients/shim/libmpsd.so"), "MPSD_ARENA": "kv", "MPSD_ARENA_CAPACITY": "64M"}
        client = shared.client("shim_arena", "--write", "100", "4", "8", uid=VICTIM, **shim)
        assert client.status() == 0
        found = squatter.ask(calls.arena_get("kv"))
    assert (found.generation, found.used_bytes) == (made.generation, 0)


def test_root_restores_no_image_in_the_place_of_another_users_arena(shared: Machine) -> None:
    """One that no process has open and that has no layout, such as the shim's, was taken for root's own and removed."""
    with shared.mpsd(VICTIM) as victim, shared.mpsd() as operator:
        made = victim.ask(calls.arena_create("weights", "0", BYTES))
        assert not is_missing(operator, "weights")
        assert victim.ask(calls.arena_get("weights")).id == made.id


def test_a_starter_does_not_obey_a_squatter(shared: Machine) -> None:
    """It reports the owner of the service; the squatter requests nine members."""
    with shared.mpsd(SQUATTER) as squatter:
        squatter.ask(calls.arena_create("served", "0", BYTES, mode=0o666))
        squatter.ask(calls.service_change("served", standbys=8))
    check_not_obeyed(shared, "served", f"belongs to user {SQUATTER}, and you are user 0: name it {SQUATTER}:served")


def test_a_starter_of_roots_does_not_obey_root_of_a_container(shared: Machine) -> None:
    """Both have uid 0.  It started nine members, each with a lease of root's for as much as the container wanted."""
    with container(shared, 0) as inside:
        made = inside.ask(calls.arena_create("there", "0", BYTES), calls.service_change("there", standbys=8, sm_percent=90))
        assert made == ["done"] * 2
        check_not_obeyed(shared, "there", "was made in another container: name it 0:there")


def check_not_obeyed(machine: Machine, name: str, why: str) -> None:
    """Check that a starter of root's reports why the service is not its own, and starts no member."""
    words = ["-m", "mpsctl", "service", "run", name, "--json", "--standbys", "0", "--", "/bin/sleep", "600"]
    starter = subprocess.Popen([sys.executable, *words], env=machine.variables, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    try:
        events = (json.loads(line) for line in starter.stdout)
        said = []
        while "name it" not in str(said[-1:]):
            said.append(next(events))
            assert said[-1]["event"] not in ("wanted", "started")
        assert why in str(said[-1])
    finally:
        starter.terminate()
        starter.wait(60)
        starter.stdout.close()
