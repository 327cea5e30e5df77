"""A domain's private directory: attacks on its vendor daemon by other users, and by the client's own user.

Each attack runs as a stranger and as the client's own user. If mpsd may not make mount namespaces the directory is reachable
(`exposed`): then attacks have at most the effects that docs/domains.md lists.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.hostile.attacker import NOBODY, attack, attacking
from tests.hostile.private_attacks import CONNECT, FORGE, LOOK, PRETEND, SILENT
from tests.hostile.refusing import start_exposed
from tests.integration.client import Client
from tests.integration.machine import PROGRAM, UIDS, Machine
from tests.integration.process import is_running, wait_for

OWNER = UIDS[0]  # the user whose clients are attacked
ATTACKERS = pytest.mark.parametrize("attacker", [NOBODY, OWNER], ids=["a stranger", "the client's own user"])
QUICK = "[faults]\nrecycle_seconds = 1.0\n[domains]\nrestart_seconds = 0.1\n"


def files(machine: Machine) -> dict[str, int]:
    """The vendor's files in a private directory, and their modes."""
    directory = machine.state / "domains/default/pipe"
    return {path.name: path.lstat().st_mode & 0o7777 for path in directory.iterdir()}


def told(output: str) -> dict[str, list[str]]:
    return dict(json.loads(output))


@pytest.fixture
def exposed(machine: Machine) -> Iterator[Machine]:
    machine.configure(QUICK)
    start_exposed(machine)
    return machine


# -- what can be reached -------------------------------------------------------------------------------------------------


def test_the_vendors_files_are_open_to_everybody_and_their_directory_is_not(machine: Machine) -> None:
    """As the vendor's are (measured on an H200)."""
    machine.start()
    machine.counter(uid=OWNER).ready().goes_on()
    modes = files(machine)
    assert (modes["control"], modes["control_lock"], modes["log"]) == (0o666, 0o666, 0o777)
    assert not modes["control_privileged"] & 0o022
    assert modes[f"{PROGRAM}.pid"] == 0o600
    home = (machine.state / "domains/default").stat()
    assert (home.st_mode & 0o7777, home.st_uid) == (0o700, 0)


@ATTACKERS
def test_nobody_connects_to_a_vendor_daemon_past_the_relay(machine: Machine, attacker: int) -> None:
    machine.start()
    client = machine.counter(uid=OWNER).ready()
    machine.with_spare()
    said = told(attack(CONNECT, machine.state, uid=attacker))
    assert {Path(path).name for path in said["found"]} == {"control", "control_privileged"}
    assert said["reached"] == []
    seen = json.loads(attack(LOOK, machine.server_of(client), machine.vendor_pid("default"), uid=attacker))
    assert seen == {}
    client.goes_on()


@ATTACKERS
def test_a_forged_line_ends_and_convicts_nobody(machine: Machine, attacker: int) -> None:
    machine.configure(QUICK)
    machine.start()
    victim = machine.counter(uid=OWNER).ready()
    server = machine.server_of(victim)
    said = told(attack(FORGE, machine.state, 2.0, server, uid=attacker))
    assert said["found"]
    assert said["reached"] == []
    _is_unharmed(machine, victim)
    assert machine.journal("fault.unconfirmed") == []


@ATTACKERS
def test_silent_connections_stop_no_newcomer(machine: Machine, attacker: int) -> None:
    """One to each socket of each domain, renewed when it is dropped."""
    machine.start()
    machine.counter(uid=OWNER).ready()
    machine.with_spare()
    with attacking(SILENT, machine.state, uid=attacker):
        for uid in UIDS:
            machine.counter(uid=uid).ready().goes_on()


def test_a_client_with_the_private_path_is_none_of_the_domain(machine: Machine) -> None:
    """It is as one that finds no MPS: past the relay it gets no share of another's lease."""
    machine.start()
    machine.counter(uid=OWNER).ready()
    past = machine.client("smcount", uid=OWNER, CUDA_MPS_PIPE_DIRECTORY=str(machine.state / "domains/default/pipe"))
    past.status()
    assert past.pid not in machine.clients()
    assert machine.journal("client.stranger") == []


# -- where it can be reached ---------------------------------------------------------------------------------------------


def test_where_mounts_are_refused_clients_run_and_mpsd_says_what_is_open(exposed: Machine) -> None:
    exposed.counter(uid=OWNER).ready().goes_on()
    assert exposed.journal("domain.exposed")
    with exposed.mpsd() as mpsd:
        assert "default" in mpsd.ask(calls.status()).facts["exposed_domains"]


def test_a_forged_line_by_itself_has_no_effect(exposed: Machine) -> None:
    """It keeps newcomers out for a moment; then the server, when asked, reports that it works."""
    victim = exposed.counter(uid=OWNER).ready()
    said = told(attack(FORGE, exposed.state, 4.0, exposed.server_of(victim)))
    assert said["reached"]
    exposed.wait_for_journal("fault.unconfirmed")
    _is_unharmed(exposed, victim)
    exposed.counter(uid=OWNER).ready()


@pytest.mark.parametrize("action", ["auto", "terminate"])
def test_a_client_past_the_relay_is_found(machine: Machine, action: str) -> None:
    """And loses its GPU work where that is configured; "auto": where clients have limits of their own, which none has here."""
    machine.configure(f'{QUICK}strangers = "{action}"\n')
    start_exposed(machine)
    let_in = machine.counter(uid=OWNER).ready()
    past = machine.counter(uid=OWNER, CUDA_MPS_PIPE_DIRECTORY=str(machine.state / "domains/default/pipe")).ready()
    found = machine.wait_for_journal("client.stranger")
    assert (found["pid"], found["uid"], found["domain"], found["is_exposed"]) == (past.pid, OWNER, "default", True)
    if action == "terminate":
        assert past.error() == 810
    else:
        past.goes_on()
    let_in.goes_on()
    assert [each["pid"] for each in machine.journal("client.stranger")] == [past.pid]


# -- which process the vendor daemon is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_record", [True, False], ids=["by mpsd's record", "of an mpsd that kept none"])
def test_a_forged_pid_file_leads_to_no_other_process(exposed: Machine, has_record: bool) -> None:
    """Its content was anybody's to write, and the variable is anybody's to set: the next mpsd believed them."""
    client = exposed.counter(uid=OWNER).ready()
    home = exposed.state / "domains/default"
    pid_file, vendor = home / "pipe" / f"{PROGRAM}.pid", exposed.vendor_pid("default")
    exposed.kill_daemon()
    pid_file.chmod(0o666)  # as the vendor's daemon makes it
    if not has_record:
        (home / "daemon").unlink(missing_ok=True)
    with attacking(PRETEND, home / "pipe", pid_file) as other:
        start_exposed(exposed)
        adopted = exposed.wait_for_journal("domain.adopted")
        assert adopted["vendor_pid"] == vendor != other.pid
        client.goes_on()
        assert other.poll() is None
    assert is_running(vendor)


def test_a_daemon_of_an_earlier_mpsd_is_replaced_when_it_serves_nobody(exposed: Machine) -> None:
    """One that could not close its directories: the next one can."""
    client = exposed.counter(uid=OWNER).ready()
    vendor = exposed.vendor_pid("default")
    exposed.kill_daemon()
    exposed.start()
    client.goes_on()
    assert is_running(vendor)
    client.end()
    wait_for("its end", lambda: not is_running(vendor))
    wait_for("a private one", lambda: (exposed.state / "domains/default").stat().st_mode & 0o777 == 0o700)
    exposed.counter(uid=OWNER).ready()
    assert told(attack(CONNECT, exposed.state))["reached"] == []


def test_health_says_so_when_a_newcomer_would_hang(machine: Machine) -> None:
    """If others reach the vendor daemon: it runs, waits for a message of theirs, and answers no other process."""
    machine.configure("[domains]\nspares = 0\nmax_domains = 1\n")
    start_exposed(machine)
    machine.counter(uid=OWNER).ready()
    with attacking(SILENT, machine.state):
        machine.counter(uid=OWNER)
        wait_for("health to say so", lambda: "default does not answer" in _said_of_health(machine))
    wait_for("it to be well", lambda: "default does not answer" not in _said_of_health(machine))


def _said_of_health(machine: Machine) -> str:
    with machine.mpsd() as mpsd:
        found = mpsd.ask(calls.health())
    return "" if found.ok else " ".join(found.problems)


def _is_unharmed(machine: Machine, victim: Client) -> None:
    victim.goes_on()
    names = {entry["event"] for entry in machine.journal()}
    assert not names & {"fault.opened", "blame.changed", "domain.kill", "domain.failed", "domain.recycling"}
    with machine.mpsd() as mpsd:
        states = {each.name: each.state for each in mpsd.pages(calls.domain_list())}
    assert states["default"] == "ready"


def test_a_sentinels_client_opens_no_way_into_the_private_directory(machine: Machine) -> None:
    """It runs as the client's user in the domain's mount namespace; a process of that user could enter that by /proc."""
    machine.configure('[sentinel]\nmode = "on"\n')
    machine.start()
    client = machine.counter(uid=OWNER).ready()
    [stopped] = machine.wait_for_journal("sentinel.ready")["pids"]
    assert json.loads(attack(LOOK, stopped, uid=OWNER)) == {}
    client.goes_on()
