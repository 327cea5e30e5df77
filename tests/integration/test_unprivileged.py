"""mpsd as an ordinary user: the promises of docs/unprivileged.md, and its list of what does not work."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hostile.attacker import attack
from tests.integration.machine import FRONT_END, UIDS, Machine
from tests.integration.process import variable, wait_for

pytestmark = pytest.mark.root  # to act as another user

# One command, in the front end's protocol.
TELL = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mpsd:
    mpsd.connect(sys.argv[1])
    mpsd.send(b"mpsd-ui 1")
    assert mpsd.recv(100) == b"mpsd-ui 1"
    mpsd.send(sys.argv[2].encode())
    while (said := mpsd.recv(20000))[:1] in (b"O", b"E"):
        print(said[1:].decode(), end="")
"""


def leads_to(machine: Machine) -> str:
    """The domain that newcomers reach."""
    return os.readlink(machine.pipe / "control").split("/")[-3]


def test_it_says_once_what_works_and_what_does_not(shared_strangers: Machine) -> None:
    shared_strangers.counter().ready()
    [said] = shared_strangers.journal("mode.unprivileged")
    assert said["level"] == "warning"
    assert {"why", "works", "does_not_work"} <= set(said)
    assert os.stat(f"/proc/{shared_strangers.daemon_pid()}").st_uid == UIDS[0]


def test_the_doors_are_links_to_the_domains_own(shared_strangers: Machine) -> None:
    for door in ("control", "control_privileged"):
        wait_for(door, lambda door=door: (shared_strangers.pipe / door).is_symlink())
        assert os.readlink(shared_strangers.pipe / door) == f"{shared_strangers.state}/domains/default/pipe/{door}"


def test_a_reload_accepts_no_refusal_of_clients_either(strangers: Machine) -> None:
    """It took it as done, and every client ran."""
    strangers.start()
    strangers.configure('[admission]\ndefault = "refuse"\n')
    strangers.signal_daemon("SIGHUP")
    assert "needs root" in strangers.wait_for_journal("reload.refused")["why"]
    assert not strangers.journal("reload.done")


def test_the_command_language_is_whole(strangers: Machine) -> None:
    strangers.start()
    assert strangers.tell("set_default_active_thread_percentage 25") == "25.0\n"
    client = strangers.counter().ready()
    server = strangers.server_of(client)
    assert strangers.tell(f"get_server_status {server}") == "ACTIVE\n"
    assert strangers.tell(f"terminate_client {server} {client.pid}") == "0\n"
    assert client.error() == 810
    assert strangers.client("smcount").wait("sms")["seen"] == 32


def test_others_may_ask_and_not_command(strangers: Machine) -> None:
    """With a program of their own, which does not ask who listens.  Root may: it could end mpsd in any case."""
    strangers.start()

    def tell(line: str, uid: int) -> str:
        return attack(TELL, strangers.pipe / "mpsd-ui", line, uid=uid)

    assert tell("get_default_active_thread_percentage", UIDS[1]) == "100.0\n"
    assert "Insufficient privileges" in tell("set_default_active_thread_percentage 25", UIDS[1])
    assert tell("set_default_active_thread_percentage 25", 0) == "25.0\n"


@pytest.mark.parametrize("uid", [0, UIDS[1]], ids=["root", "another user"])
def test_the_front_end_of_others_does_not_talk_to_it(shared_strangers: Machine, uid: int) -> None:
    """Only the user may command this daemon, so root has to become that user; the message explains how."""
    ours, line = UIDS[0], "get_default_active_thread_percentage"
    done = shared_strangers.ask(line, uid=uid)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"mpsd-ui: uid {ours} listens there, not root" in done.stderr
    if uid == 0:
        words = done.stderr.partition("run as that user: ")[2].replace("COMMAND", str(FRONT_END)).split()
        done = shared_strangers.run(*words[1:], typed=line, uid=0, program=Path(shutil.which(words[0]) or "none"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "100.0\n", "")


@pytest.mark.slow
def test_a_newcomer_goes_to_the_spare_once_the_links_have_moved(strangers: Machine) -> None:
    strangers.start()
    victim = strangers.counter().ready()
    spare = strangers.with_spare()
    strangers.client("faulter", "trap", "--linger", "60").wait("result")
    assert victim.error() == 719
    wait_for("the links to move", lambda: leads_to(strangers) == spare)
    newcomer = strangers.counter().ready()
    assert strangers.domain_of(newcomer) == spare


def test_when_a_domain_is_full_the_next_client_goes_elsewhere(strangers: Machine) -> None:
    strangers.configure("[domains]\nclients_per_server = 2\n")
    strangers.start()
    first, second = strangers.counter().ready(), strangers.counter().ready()
    wait_for("the links to move", lambda: leads_to(strangers) != "default")
    third = strangers.counter().ready()
    assert strangers.domain_of(first) == strangers.domain_of(second) == "default"
    assert strangers.domain_of(third) != "default"


def test_another_user_does_not_reach_the_vendor_daemon(strangers: Machine) -> None:
    """Who reaches it can stop it for its owner.  Their client runs without MPS, as where no daemon is."""
    strangers.start()
    assert strangers.client("smcount", uid=UIDS[1]).status() == 0
    assert strangers.clients() == set()


@pytest.mark.slow
def test_kill_9_leaves_clients_and_doors(strangers: Machine) -> None:
    """New clients follow the links while mpsd does not run; the next mpsd lists them all."""
    strangers.start()
    client = strangers.counter().ready()
    server = strangers.server()
    strangers.kill_daemon()
    newcomer = strangers.counter().ready()
    strangers.start()
    assert strangers.servers() == [server]
    wait_for("the list of both", lambda: strangers.clients() == {client.pid, newcomer.pid})
    client.goes_on()
    newcomer.goes_on()


@pytest.mark.slow
def test_quit_leaves_nothing(strangers: Machine) -> None:
    strangers.start()
    client = strangers.counter().ready()
    strangers.with_spare()
    client.end()
    assert strangers.quit("quit") == 0
    assert strangers.processes() == []
    assert [path.name for path in strangers.pipe.iterdir()] == ["cores"]


def test_its_state_is_in_the_users_runtime_directory(strangers: Machine) -> None:
    runtime = strangers.place / "runtime"
    runtime.mkdir()
    os.chown(runtime, UIDS[0], UIDS[0])
    (strangers.place / "mpsd.toml").write_text("")
    strangers.start(XDG_RUNTIME_DIR=str(runtime))
    [home] = (runtime / "mpsd").iterdir()
    strangers.state = home
    assert strangers.domains() == ["default"]
    client = strangers.counter().ready()
    assert variable(strangers.server_of(client), "CUDA_MPS_PIPE_DIRECTORY") == f"{home}/domains/default/pipe"


def test_root_without_the_right_to_impersonate_is_no_better_off(machine: Machine) -> None:
    """A container without CAP_SYS_ADMIN."""
    words = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", str(FRONT_END), "-d"]
    done = subprocess.run(words, env=machine.variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.wait_for_journal("mode.unprivileged")
    assert machine.client("smcount").status() == 0
