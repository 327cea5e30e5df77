"""Death and restart of mpsd and of its keeper: running clients continue, waiting ones are admitted, limits hold."""

import os
import random
import signal
import socket
import subprocess
import time

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.machine import PROGRAM, SIMULATOR, UIDS, Machine
from tests.integration.process import EVENT_SECONDS, is_running, wait_for
from tests.seeds import RUN_SEED

pytestmark = pytest.mark.root


def test_kill_9_disturbs_no_client_and_whoever_came_meanwhile_is_admitted_by_the_next(machine: Machine) -> None:
    machine.start()
    clients = [machine.counter().ready() for _ in range(8)]
    machine.with_spare()
    servers, vendors = machine.servers(), [machine.vendor_pid(name) for name in machine.domains()]
    machine.kill_daemon()
    ninth = machine.counter()
    for client in clients:
        client.goes_on()
    assert ninth.is_silent()
    machine.start()
    ninth.ready()
    assert machine.kinds()[ninth.pid] == "client"
    assert machine.servers() == servers
    assert [machine.vendor_pid(name) for name in machine.domains()] == vendors
    wait_for("the list of all", lambda: machine.clients() == {client.pid for client in [*clients, ninth]})
    for client in clients:
        client.goes_on()


def test_a_client_that_waited_before_kill_9_may_hang_up_after_it(machine: Machine) -> None:
    """It kept its places, at the relay and in the queue, until its process ended."""
    machine.configure('[admission]\ndefault = "refuse"\n')
    machine.start()

    def waiting() -> list[int | None]:
        with machine.mpsd() as mpsd:
            return [each.pid for each in mpsd.ask(calls.queue_list()).items]

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(machine.pipe / "control"))
        wait_for("its place in the queue", lambda: waiting() == [os.getpid()])
        machine.kill_daemon()
        machine.start()
        wait_for("its place with the next mpsd", lambda: waiting() == [os.getpid()])
    wait_for("the end of its wait", lambda: not waiting())


def test_limits_outlive_kill_9(machine: Machine) -> None:
    machine.start()
    machine.tell("set_default_active_thread_percentage 25")
    machine.tell("set_default_device_pinned_mem_limit 0 1G")
    machine.tell("set_default_client_priority 1")
    machine.kill_daemon()
    machine.start()
    assert machine.tell("get_default_active_thread_percentage") == "25.0\n"
    assert machine.tell("get_default_device_pinned_mem_limit 0") == "1G\n"
    assert machine.tell("get_default_client_priority") == "1\n"
    assert machine.client("smcount").wait("sms")["seen"] == 32


@pytest.mark.slow
def test_a_new_mpsd_knows_of_a_fault_and_of_the_spare(machine: Machine) -> None:
    machine.start()
    victim = machine.counter().ready()
    machine.with_spare()
    lingerer = machine.client("faulter", "trap", "--linger", "60")
    lingerer.wait("result")
    assert victim.error()
    machine.kill_daemon()
    machine.start()
    newcomer = machine.counter().ready(seconds=2.0)
    assert machine.domain_of(newcomer) != "default"
    lingerer.end()
    wait_for("the old domain's recycling", lambda: machine.journal("domain.recycling"))


@pytest.mark.parametrize("milliseconds", [12, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 3, 6, 30, 60, 120))])
def test_kill_9_between_the_words_of_handshakes_holds_up_no_client(machine: Machine, milliseconds: int) -> None:
    """At some moment of the start of three clients and of their server, while mpsd waits for the next word."""
    machine.start(MPSD_SIM_FAST="0")
    clients = [machine.counter(MPSD_SIM_FAST="0") for _ in range(3)]
    until = time.monotonic() + milliseconds / 1000
    wait_for("that moment", lambda: time.monotonic() >= until)
    machine.kill_daemon_idle()
    machine.start()
    for client in clients:
        client.ready()
        assert machine.kinds()[client.pid] == "client"


def test_a_client_without_a_context_stays_in_its_domain(machine: Machine) -> None:
    """No list of the vendor's shows it, but its server has it: a restarted mpsd took the domain for empty, and placed others
    there, who hung, and its context elsewhere; or ended the server, and the client got error 806."""
    machine.start()
    client = machine.client("hold", "--init-only", uid=UIDS[0]).ready()
    machine.kill_daemon_idle()
    machine.start()
    other = machine.counter(uid=UIDS[1]).ready()
    assert machine.domain_of(other) != "default"
    os.kill(client.pid, signal.SIGUSR1)
    client.wait("context")
    assert machine.domain_of(client) == "default"


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_word_holds_the_client_or_harms_it_not(machine: Machine) -> None:
    """At any moment of mpsd. Prints the number of held clients; a client that arrived microseconds ago may be cut off."""
    counts = {"client": 0, "plain": 0, "held": 0, "ended": 0}
    trials = random.Random(RUN_SEED)
    for _ in range(25):
        machine.start(MPSD_SIM_FAST="0")
        clients = [machine.counter(MPSD_SIM_FAST="0") for _ in range(3)]
        until = time.monotonic() + trials.uniform(0, 0.02)
        wait_for("that moment", lambda until=until: time.monotonic() >= until)
        machine.kill_daemon()
        machine.start()
        wait_for(
            "every client to run or to be held",
            lambda clients=clients: sum(map(Client.is_silent, clients)) <= len(machine.journal("relay.held")),
        )
        for client in clients:
            kind = machine.kinds().get(client.pid, "plain")
            counts["held" if client.is_silent() else "ended" if client.has_ended() else kind] += 1  # ended: with 805
            client.end(signal.SIGKILL)
        assert machine.quit() == 0
        (machine.log_directory / "mpsd.log").unlink()
    print(counts)
    assert counts["plain"] + counts["ended"] <= 3
    assert counts["client"] >= 60


def test_a_command_in_progress_ends_with_the_vendors_words(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    asking = machine.begin(typed="quit\n")
    wait_for("quit to begin", lambda: machine.journal("quit.begins"))
    machine.kill_daemon()
    _, err = asking.communicate(timeout=EVENT_SECONDS)
    assert asking.returncode == 1
    assert err == b"Cannot send command to MPS control daemon process\n"
    wait_for(  # a program that mpsd was about to start may hold its sockets for a moment more
        "nobody to be found", lambda: machine.ask("get_server_list").stderr == "Cannot find MPS control daemon process\n"
    )


@pytest.mark.slow
def test_kill_9_again_and_again(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    for _ in range(4):
        machine.kill_daemon()
        machine.start()
    client.goes_on()
    wait_for("one keeper", lambda: len(machine.processes("mpsd-keeper")) == 1)
    assert machine.clients() == {client.pid}


# -- the keeper --------------------------------------------------------------------------------------------------------


def test_kill_9_of_the_keeper_is_made_good(machine: Machine) -> None:
    """A new one is given everything: mpsd may die next, and a waiting client waits on."""
    machine.start()
    client = machine.counter().ready()
    old = machine.keeper_pid()
    os.kill(old, signal.SIGKILL)
    wait_for("another keeper", lambda: machine.keeper_pid() not in (0, old))
    machine.wait_for_journal("keeper.replaced")
    machine.counter().ready()
    machine.kill_daemon()
    waiting = machine.counter()
    client.goes_on()
    assert waiting.is_silent()
    machine.start()
    waiting.ready()
    client.goes_on()


@pytest.mark.slow
def test_kill_9_of_both_leaves_running_clients_and_domains(machine: Machine) -> None:
    """Then no client can wait: one that starts while both are dead finds no daemon, as with the vendor's."""
    machine.start()
    client = machine.counter().ready()
    server = machine.server()
    os.kill(machine.keeper_pid(), signal.SIGSTOP)  # or it is replaced before mpsd is killed
    keeper = machine.keeper_pid()
    machine.kill_daemon()
    os.kill(keeper, signal.SIGKILL)
    wait_for("the keeper's end", lambda: not is_running(keeper))
    client.goes_on()
    machine.start()
    assert machine.servers() == [server]
    machine.counter().ready()
    client.goes_on()


def test_a_keeper_that_is_stopped_holds_up_nobody(machine: Machine) -> None:
    machine.start()
    keeper = machine.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    for _ in range(5):
        machine.client("smcount").status()
    assert machine.tell("get_default_active_thread_percentage") == "100.0\n"
    os.kill(keeper, signal.SIGCONT)


# -- signals -----------------------------------------------------------------------------------------------------------


def test_sigterm_drains(machine: Machine) -> None:
    """Clients may finish in the time they have; newcomers are refused; then everything has gone."""
    machine.configure("[stop]\non_sigterm = 'drain'\ndrain_seconds = 30.0\n")
    machine.start()
    client = machine.counter().ready()
    daemon = machine.daemon_pid()
    machine.signal_daemon("SIGTERM")
    machine.wait_for_journal("quit.begins")
    assert machine.counter().error() == 805
    client.goes_on()
    assert client.end() == -signal.SIGTERM
    wait_for("the end of mpsd", lambda: not is_running(daemon))
    wait_for("the end of everything", lambda: not machine.processes())


@pytest.mark.parametrize(("way", "seconds"), [pytest.param("drain", 0.5, marks=pytest.mark.slow), ("quit", 60.0)])
def test_sigterm_ends_clients_when_their_time_is_over_and_with_quit_at_once(
    machine: Machine, way: str, seconds: float
) -> None:
    machine.configure(f"[stop]\non_sigterm = '{way}'\ndrain_seconds = {seconds}\n")
    machine.start()
    client = machine.counter().ready()
    machine.signal_daemon("SIGTERM")
    assert client.error() == 810
    wait_for("the end of everything", lambda: not machine.processes())


@pytest.mark.slow
def test_sigterm_with_leave_leaves_everything_to_the_next(machine: Machine) -> None:
    machine.configure("[stop]\non_sigterm = 'leave'\n")
    machine.start()
    client = machine.counter().ready()
    daemon, server = machine.daemon_pid(), machine.server()
    machine.signal_daemon("SIGTERM")
    wait_for("the end of mpsd", lambda: not is_running(daemon))
    waiting = machine.counter()
    client.goes_on()
    assert waiting.is_silent()
    machine.start()
    waiting.ready()
    assert machine.servers() == [server]
    client.goes_on()


@pytest.mark.slow
def test_a_second_sigterm_does_not_end_the_first_ones_draining(machine: Machine) -> None:
    machine.configure("[stop]\ndrain_seconds = 30.0\n")
    machine.start()
    client = machine.counter().ready()
    machine.signal_daemon("SIGTERM")
    machine.wait_for_journal("quit.begins")
    machine.signal_daemon("SIGTERM")
    client.goes_on()
    client.end()
    wait_for("the end of everything", lambda: not machine.processes())


@pytest.mark.slow
def test_sighup_reloads_what_can_be_and_keeps_the_rest(machine: Machine) -> None:
    machine.start()
    machine.configure("[domains]\nspares = 2\n[log]\nlevel = 'debug'\n[vendor]\nstop_seconds = 3.0\n")
    machine.signal_daemon("SIGHUP")
    done = machine.wait_for_journal("reload.done")
    assert sorted(done["changed"]) == ["domains.spares", "log.level"]
    assert done["need_a_restart"] == ["vendor.stop_seconds"]
    machine.counter().ready()
    wait_for("two spares", lambda: len(machine.spares()) == 2)


# -- starting while another runs, and after it ------------------------------------------------------------------------


@pytest.mark.slow
def test_two_that_start_at_once_leave_one(machine: Machine) -> None:
    starting = [machine.begin("-d") for _ in range(4)]
    statuses = sorted(process.wait(20) for process in starting)
    assert statuses == [0, 1, 1, 1]
    machine.counter().ready()
    wait_for("one daemon", lambda: len(machine.processes("mpsd-keeper")) == 1)


def test_a_vendors_daemon_in_the_same_directory_is_left_alone(machine: Machine) -> None:
    """A client uses it, and would be lost."""
    vendor = SIMULATOR / "bin" / PROGRAM
    assert machine.run("-d", program=vendor).returncode == 0
    theirs = machine.daemon_pid()
    done = machine.run("-d")
    assert done.returncode == 1
    assert done.stdout.startswith("An instance of this daemon is already running\n")
    assert str(theirs) in done.stdout
    assert machine.run(program=vendor, typed="get_default_active_thread_percentage\n").stdout == "100.0\n"
    assert machine.daemon_pid() == theirs


@pytest.mark.parametrize(
    "whose", ["another program's", *(pytest.param(whose, marks=pytest.mark.slow) for whose in ("nobody's", "garbage"))]
)
def test_a_stale_pid_file_and_sockets_are_replaced(machine: Machine, whose: str) -> None:
    """What a machine that lost power leaves in /tmp."""
    other = subprocess.Popen(["sleep", "60"])
    machine.addition(other)
    left = {"nobody's": "99999999", "another program's": str(other.pid), "garbage": "x" * 1000}[whose]
    (machine.pipe / f"{PROGRAM}.pid").write_text(left)
    for name in ("control", "control_privileged", "mpsd-ui"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(machine.pipe / name))
    machine.start()
    machine.counter().ready()
    assert (machine.pipe / f"{PROGRAM}.pid").read_text() == str(machine.daemon_pid()) != left
    assert other.poll() is None


@pytest.mark.slow
def test_after_a_reboot_nothing_of_the_old_state_is_in_the_way(machine: Machine) -> None:
    """The state directory is on disk here, and nothing that it speaks of is there any more."""
    machine.start()
    machine.counter().ready()
    machine.with_spare()
    machine.end_processes()
    machine.start()
    machine.counter().ready()
    assert machine.tell("get_default_active_thread_percentage") == "100.0\n"
