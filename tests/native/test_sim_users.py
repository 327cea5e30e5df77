"""Several users on the simulator: one user's server at a time, and who may change what."""

import os
import stat
import subprocess

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon, needs_root  # noqa: F401
from tests.native.sim_machine import TOOL, Machine, eventually

pytestmark = needs_root
USER = 1000


def test_another_users_client_swaps_the_server_once_it_is_idle(mps: Machine) -> None:
    mine = mps.client("hold")
    mine.wait_for("ready")
    first = mps.server()
    theirs = mps.client("hold", uid=USER)
    eventually(lambda: "Try shutting down server" in mps.log("control.log"))
    assert mps.ask("get_server_list") == f"{first}\n"
    mine.kill()
    theirs.wait_for("ready")
    second = mps.server()
    assert second != first
    assert os.stat(f"/proc/{second}").st_uid == USER
    assert mps.ask(f"get_client_list {second}") == f"{theirs.pid}\n"
    assert f"mps.shm.{USER}.{second}\n" in mps.log("server.log")


def test_start_server_swaps_an_idle_server(mps: Machine) -> None:
    first = mps.start_server()
    mps.ask(f"start_server -uid {USER}")
    eventually(lambda: mps.ask("get_server_list") not in ("", f"{first}\n"))
    eventually(lambda: os.stat(f"/proc/{mps.server()}").st_uid == USER)  # it is listed before it has changed its user


def test_a_server_that_is_swapped_while_it_starts_serves_the_client_that_waits_for_it(machine: Machine) -> None:
    """It was asked to end before it heard of the client, and the client got error 806 from cuInit."""
    machine.knobs["MPSD_SIM_FAST"] = "0"  # a server takes 0.1 s to start
    machine.start()
    client = machine.client("hold")
    log = machine.logs / "server.log"
    eventually(lambda: log.exists() and "Initializing server process" in log.read_text())
    machine.ask(f"start_server -uid {USER}")
    client.wait_for("ready")
    eventually(lambda: "Server will not shutdown" in machine.log("control.log"))


def test_a_multiuser_server_takes_everybody(machine: Machine) -> None:
    machine.start("-multiuser-server")
    clients = [machine.client("hold"), machine.client("hold", uid=USER)]
    for client in clients:
        client.wait_for("ready")
    server = machine.server()
    assert set(machine.ask(f"get_client_list {server}").split()) == {str(client.pid) for client in clients}
    assert os.stat(f"/proc/{server}").st_uid == 0


def test_a_daemon_of_a_user_cannot_serve_root(machine: Machine) -> None:
    for directory in (machine.pipe, machine.logs):
        directory.mkdir()
        os.chown(directory, USER, USER)
    machine.status()  # the machine is root's
    machine.start(uid=USER)
    assert machine.client("hold", "--seconds", "0", uid=USER).end()["event"] == "ready"
    refused = machine.run("hold")
    assert (refused["call"], refused["code"]) == ("cuInit", 805)
    log = machine.log("control.log")
    assert log.count("Failed to start server using uid 0, error: Operation not permitted\n") == 6
    assert machine.control(line="quit", uid=USER).returncode == 0
    assert machine.log("control.log").endswith("Exit with status 1\n")


def test_no_user_leads_roots_simulator_to_another_file(machine: Machine) -> None:
    """Each part opened what lay under its names in a directory that all may write to, and let all users write to it."""
    victim, held = machine.place / "victim", machine.place / "machine"
    victim.write_text("secret")
    victim.chmod(0o600)
    for directory in (held, machine.pipe, machine.logs):
        directory.mkdir()
        directory.chmod(0o777)
    names = ("machine/machine", "pipe/nvidia-cuda-mps-control.pid", "pipe/control_lock", "log/control.log", "log/server.log")
    for name in names:
        (machine.place / name).symlink_to(victim)
    done = subprocess.run([TOOL, "status"], env=machine.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (held / "machine").unlink()
    (held / "kmsg").symlink_to(victim)
    machine.tool("xid", "0")
    machine.control("-d")
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("secret", 0o600)


def test_no_user_replaces_what_is_in_the_machines_directory(machine: Machine) -> None:
    """A user who could put a link there had every file of root's."""
    machine.status()
    here = machine.place / "machine"
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in here.iterdir()}
    assert modes == {"machine": 0o666, "kmsg": 0o666, "memory": 0o777, "uvm": 0o1777}
    assert stat.S_IMODE(here.stat().st_mode) == 0o755
