"""Bad commands, junk and too many or half-open connections on every socket: a clear error, mpsd up, others undisturbed."""

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.lingering import lingering
from tests.seeds import RUN_SEED

pytestmark = pytest.mark.root
SOCKETS = ("control", "mpsd-ui")  # RelayedSockets.serve is behind control_privileged too: the junk shows that
ADMITTED_SECONDS = 10.0  # however bad it is, a new client is in by then, on a slow machine too
PROBE_SECONDS = 3.0  # for an answer; a health check gives up then
CROWD = 2000
MALFORMED = {  # the others are in tests/contract, and in bad_input.py
    "get_server_status 99999999999999999999": "Server 9223372036854775807 not found\n",
    "terminate_client 1 1": "Server 1 not found\nServer 1 not found!\n1\n",
    "set_default_active_thread_percentage 1e400": "100.0\n",
    "set_default_active_thread_percentage nan": "100.0\n",
    "bogus\x1b[2J": 'Unknown command "bogus\\x1b[2J"\n',
}


def connect(machine: Machine, name: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(10.0)
    end.connect(str(machine.pipe / name))
    return end


def descriptors(machine: Machine) -> int:
    """How many mpsd has open."""
    return len(os.listdir(f"/proc/{machine.daemon_pid()}/fd"))


@contextmanager
def undisturbed(machine: Machine) -> Iterator[None]:
    """A client counts on all the while; at the end a new one is admitted, and questions are answered by the same mpsd."""
    if not machine.daemon_pid():
        machine.start()
    client = machine.counter().ready()
    pid = machine.daemon_pid()
    yield
    client.goes_on()
    machine.counter().ready(ADMITTED_SECONDS)
    assert machine.tell("get_default_active_thread_percentage", seconds=PROBE_SECONDS) == "100.0\n"
    assert machine.daemon_pid() == pid
    client.goes_on()


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_malformed_command_is_answered_in_the_vendors_words(shared: Machine) -> None:
    assert {line: shared.tell(line) for line in MALFORMED} == MALFORMED


@pytest.mark.parametrize("size", [4097, 5000, 2_000_000])
def test_an_oversized_command_is_refused_and_the_next_is_answered(shared: Machine, size: int) -> None:
    """5,000 bytes end the vendor's daemon, and its clients with it."""
    with undisturbed(shared):
        done = shared.run(typed="x" * size + "\nget_default_active_thread_percentage\n")
        assert done.stdout == f"Command of {size} bytes is longer than the limit of 4096 bytes\n100.0\n"
        assert (done.returncode, done.stderr) == (1, "")


def test_the_longest_command_is_answered(shared: Machine) -> None:
    assert shared.tell("get_default_active_thread_percentage ".ljust(4096, "x")) == "100.0\n"


@pytest.mark.slow
def test_ten_thousand_commands_in_one_run_are_all_answered(shared: Machine) -> None:
    done = shared.run(typed="get_default_client_priority\n" * 10_000)
    assert (done.returncode, done.stdout) == (0, "0\n" * 10_000)


# -- datagrams ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOCKETS, "control_privileged"])
def test_junk_disturbs_nobody(shared: Machine, name: str) -> None:
    """Of all sizes, and both kinds of leaving: at once, and staying."""
    junk = random.Random(RUN_SEED)
    with undisturbed(shared):
        staying = []
        for size in (0, 1, 4, 9, 64, 4096, 4097, 65_000, 200_000):
            end = connect(shared, name)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            end.send(junk.randbytes(size))
            if size % 2:
                end.close()
            else:
                staying.append(end)
    for end in staying:
        end.close()


def test_a_front_end_of_another_version_is_told_so(shared: Machine) -> None:
    with connect(shared, "mpsd-ui") as end:
        end.send(b"mpsd-ui 9")
        said = end.recv(65536)
        assert said.startswith(b"EThis mpsd speaks 'mpsd-ui 1'")
        assert end.recv(65536) == b"X\x01"
        assert end.recv(65536) == b""


def test_an_oversized_datagram_to_the_command_socket_is_refused(shared: Machine) -> None:
    with connect(shared, "mpsd-ui") as end:
        end.send(b"mpsd-ui 1")
        assert end.recv(65536) == b"mpsd-ui 1"
        end.send(b"x" * 60_000)
        assert end.recv(65536) == b"OCommand too long: more than 4096 bytes\n"
        assert end.recv(65536) == b"X\x01"
        end.send(b"get_default_client_priority")
        assert end.recv(65536) == b"O0\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", SOCKETS)
def test_half_open_connections_disturb_nobody(shared: Machine, name: str) -> None:
    """Peers that have shut down one direction and send no more, or never sent anything."""
    with undisturbed(shared):
        ends = [connect(shared, name) for _ in range(30)]
        for at, end in enumerate(ends):
            if at % 3:
                end.shutdown(socket.SHUT_WR if at % 3 == 1 else socket.SHUT_RD)
    for end in ends:
        end.close()


@pytest.mark.parametrize("name", [*SOCKETS, pytest.param("mpsd.sock", marks=pytest.mark.slow)])
def test_a_socket_that_lingers_in_a_message_stops_nobody(shared: Machine, name: str) -> None:
    """Its last close waits for as long as its sender likes (decision 019)."""
    with lingering() as fd, undisturbed(shared):
        with connect(shared, name) as stranger:
            socket.send_fds(stranger, [b"words"], [fd])
            os.close(fd)
        assert shared.tell("get_default_active_thread_percentage", seconds=PROBE_SECONDS) == "100.0\n"


@pytest.mark.parametrize("name", SOCKETS)
def test_descriptors_that_nobody_asked_for_are_not_kept(shared: Machine, name: str) -> None:
    with undisturbed(shared):
        before = descriptors(shared)
        with open("/dev/null") as null:
            for _ in range(20):
                with connect(shared, name) as end:
                    socket.send_fds(end, [b"have these"], [null.fileno()] * 100)
        wait_for("mpsd to have closed them", lambda: descriptors(shared) < before + 20)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CROWD + 512), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOCKETS)
def test_thousands_of_idle_connections_disturb_nobody(machine: Machine, many_descriptors: None, name: str) -> None:
    """A new client and a question get through while they are all there."""
    with undisturbed(machine):
        before = descriptors(machine)
        with ExitStack() as crowd:
            for _ in range(CROWD):
                crowd.enter_context(connect(machine, name))
            machine.counter().ready(ADMITTED_SECONDS)
            assert machine.tell("get_default_active_thread_percentage", seconds=ADMITTED_SECONDS) == "100.0\n"
        wait_for("mpsd to let go of them", lambda: descriptors(machine) < before + 100, 20.0)


def test_the_session_that_is_idle_longest_makes_way_and_is_told(machine: Machine) -> None:
    """One that waits for its answer stays: `quit`, here."""
    machine.configure("[ui]\nmax_sessions = 3\n")
    machine.start()
    client = machine.counter().ready()
    quitting = machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    with connect(machine, "mpsd-ui") as first, connect(machine, "mpsd-ui") as second:
        for end in (first, second):
            end.send(b"mpsd-ui 1")
            assert end.recv(65536) == b"mpsd-ui 1"
        assert machine.tell("get_default_client_priority") == "0\n"
        assert first.recv(65536) == b"ESession closed: too many sessions were open, and this one was idle longest\n"
        assert (first.recv(65536), first.recv(65536)) == (b"X\x01", b"")
        second.send(b"get_default_client_priority")
        assert second.recv(65536) == b"O0\n"
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(10) == 0


@pytest.mark.slow
def test_clients_that_are_stopped_all_over_their_handshakes(machine: Machine) -> None:
    """A vendor daemon waits for each without limit, and with it everybody."""
    machine.start(MPSD_SIM_FAST="0")
    clients = []
    for milliseconds in (2, 4, 6, 8, 10, 14, 20):
        client = machine.counter(MPSD_SIM_FAST="0")
        until = time.monotonic() + milliseconds / 1000
        wait_for("that moment", lambda until=until: time.monotonic() >= until)
        os.kill(client.pid, signal.SIGSTOP)
        clients.append(client)
    newcomers = [machine.counter().ready(ADMITTED_SECONDS) for _ in range(3)]
    for client in clients:
        os.kill(client.pid, signal.SIGCONT)
    for client in clients:
        client.ready()
        assert machine.kinds()[client.pid] == "client"
    for newcomer in newcomers:
        newcomer.goes_on()


@pytest.mark.slow
def test_clients_that_are_killed_all_over_their_handshakes_leave_nothing(machine: Machine) -> None:
    with undisturbed(machine):
        before = descriptors(machine)
        chance = random.Random(RUN_SEED)
        for _ in range(40):
            client = machine.client("hold")
            until = time.monotonic() + chance.uniform(0, 0.015)
            wait_for("that moment", lambda until=until: time.monotonic() >= until)
            client.end(signal.SIGKILL)
        wait_for("mpsd to let go of them", lambda: descriptors(machine) < before + 20)
