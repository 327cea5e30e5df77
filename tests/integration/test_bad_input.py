"""Bad input on every socket, bad directories, a bad vendor program: a clear error, mpsd up, the others undisturbed."""

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.machine import FRONT_END, PROGRAM, SIMULATOR, Machine
from tests.integration.process import state_of, wait_for

pytestmark = pytest.mark.root
DOORS = ("control", "control_privileged")
SOCKETS = (*DOORS, "mpsd-ui")
ADMITTED_SECONDS = 5.0  # however bad it is, a new client is in by then
CROWD = 2000


def connect(machine: Machine, name: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(10.0)
    end.connect(str(machine.pipe / name))
    return end


@contextmanager
def undisturbed(machine: Machine) -> Iterator[None]:
    """A client counts on all the while; at the end a new one is admitted, and questions are answered by the same mpsd."""
    machine.start()
    client = machine.counter().ready()
    pid = machine.daemon_pid()
    yield
    client.goes_on()
    machine.counter().ready(ADMITTED_SECONDS)
    assert machine.tell("get_default_active_thread_percentage", seconds=ADMITTED_SECONDS) == "100.0\n"
    assert machine.daemon_pid() == pid
    client.goes_on()


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status", "answer"),
    [
        ("bogus", 0, 'Unknown command "bogus"\n'),
        ("", 0, 'Unknown command ""\n'),
        ("get_server_status", 0, "A server PID is required\n"),
        ("get_server_status abc", 0, "A server PID is required\n"),
        ("get_server_status 99999999999999999999", 0, "Server 99999999999999999999 not found\n"),
        ("get_client_list -1", 0, "Server -1 not found\n"),
        ("terminate_client 1 1", 0, "Server 1 not found\nServer 1 not found!\n1\n"),
        ("set_default_active_thread_percentage 1e400", 0, "100.0\n"),
        ("set_default_active_thread_percentage nan", 0, "100.0\n"),
        ("set_default_client_priority 7", 0, "Invalid priority value - must be 0 or 1!\n"),
        ("start_server -uid", 0, "A user id (UID) is required to start a new server\n"),
        ("bogus\x1b[2J", 0, 'Unknown command "bogus\\x1b[2J"\n'),
    ],
)
def test_a_malformed_command_is_answered_in_the_vendors_words(machine: Machine, line: str, status: int, answer: str) -> None:
    machine.start()
    done = machine.ask(line)
    assert (done.returncode, done.stdout, done.stderr) == (status, answer, "")


def test_an_oversized_command_is_refused_and_the_next_is_answered(machine: Machine) -> None:
    """5,000 bytes end the vendor's daemon, and its clients with it."""
    with undisturbed(machine):
        for size in (4097, 5000, 100_000, 2_000_000):
            done = machine.run(typed="x" * size + "\nget_default_active_thread_percentage\n")
            assert done.returncode == 1
            assert "too long" in done.stdout + done.stderr
            assert done.stdout.endswith("100.0\n")
        longest = machine.run(typed="get_default_active_thread_percentage " + "x" * 4000)
        assert longest.stdout == "100.0\n"


def test_ten_thousand_commands_in_one_run_are_all_answered(machine: Machine) -> None:
    machine.start()
    done = machine.run(typed="get_default_client_priority\n" * 10_000)
    assert (done.returncode, done.stdout) == (0, "0\n" * 10_000)


# -- datagrams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOCKETS)
def test_junk_disturbs_nobody(machine: Machine, name: str) -> None:
    """Of all sizes, and both kinds of leaving: at once, and staying."""
    junk = random.Random(805)
    with undisturbed(machine):
        staying = []
        for size in (0, 1, 4, 9, 64, 4096, 4097, 65_000, 200_000):
            end = connect(machine, name)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            end.send(junk.randbytes(size))
            if size % 2:
                end.close()
            else:
                staying.append(end)
    for end in staying:
        end.close()


def test_a_front_end_of_another_version_is_told_so(machine: Machine) -> None:
    machine.start()
    with connect(machine, "mpsd-ui") as end:
        end.send(b"mpsd-ui 9")
        said = end.recv(65536)
        assert said.startswith(b"EThis mpsd speaks 'mpsd-ui 1'")
        assert end.recv(65536) == b"X\x01"
        assert end.recv(65536) == b""


def test_an_oversized_datagram_to_the_command_socket_is_refused(machine: Machine) -> None:
    machine.start()
    with connect(machine, "mpsd-ui") as end:
        end.send(b"mpsd-ui 1")
        assert end.recv(65536) == b"mpsd-ui 1"
        end.send(b"x" * 60_000)
        assert end.recv(65536) == b"OCommand too long: more than 4096 bytes\n"
        assert end.recv(65536) == b"X\x01"
        end.send(b"get_default_client_priority")
        assert end.recv(65536) == b"O0\n"


@pytest.mark.parametrize("name", SOCKETS)
def test_half_open_connections_disturb_nobody(machine: Machine, name: str) -> None:
    """They have shut down one direction and say nothing more, or never said anything."""
    with undisturbed(machine):
        ends = [connect(machine, name) for _ in range(30)]
        for at, end in enumerate(ends):
            if at % 3:
                end.shutdown(socket.SHUT_WR if at % 3 == 1 else socket.SHUT_RD)
    for end in ends:
        end.close()


@pytest.mark.parametrize("name", SOCKETS)
def test_descriptors_that_nobody_asked_for_are_not_kept(machine: Machine, name: str) -> None:
    with undisturbed(machine):
        before = len(os.listdir(f"/proc/{machine.daemon_pid()}/fd"))
        with open("/dev/null") as null:
            for _ in range(20):
                with connect(machine, name) as end:
                    socket.send_fds(end, [b"have these"], [null.fileno()] * 100)
        wait_for("mpsd to have closed them", lambda: len(os.listdir(f"/proc/{machine.daemon_pid()}/fd")) < before + 20)


@pytest.mark.deadline(90)
@pytest.mark.parametrize("name", SOCKETS)
def test_thousands_of_idle_connections_disturb_nobody(machine: Machine, name: str) -> None:
    """The first words of a client among them are heard at once, and a command is answered, if late."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, CROWD + 512), hard))
    machine.configure("[ui]\nidle_seconds = 3.0\n")
    machine.start()
    client = machine.counter().ready()
    crowd = []
    try:
        for _ in range(CROWD):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            end.setblocking(False)
            end.connect(str(machine.pipe / name))
            crowd.append(end)
        machine.counter().ready(ADMITTED_SECONDS)
        began = time.monotonic()
        assert machine.tell("get_default_active_thread_percentage", seconds=60) == "100.0\n"
        assert time.monotonic() - began < (3.0 if name in DOORS else 60.0)
        client.goes_on()
    finally:
        for end in crowd:
            end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for("mpsd to let go of them", lambda: len(os.listdir(f"/proc/{machine.daemon_pid()}/fd")) < 200, 20.0)
    machine.counter().ready(ADMITTED_SECONDS)


@pytest.mark.parametrize("door", DOORS)
def test_a_client_stopped_in_its_handshake_stops_nobody_and_goes_on_when_continued(machine: Machine, door: str) -> None:
    """A vendor daemon waits for it without limit, and with it everybody."""
    machine.start()
    stopped = machine.counter()
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_for("it to stop", lambda: state_of(stopped.pid) == "T")
    ends = [connect(machine, door) for _ in range(3)]
    others = [machine.counter().ready(ADMITTED_SECONDS) for _ in range(3)]
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.ready()
    assert machine.kinds()[stopped.pid] == "client"
    for other in others:
        other.goes_on()
    for end in ends:
        end.close()


def test_clients_that_are_stopped_all_over_their_handshakes(machine: Machine) -> None:
    machine.start(MPSD_SIM_FAST="0")
    clients = []
    for milliseconds in (2, 4, 6, 8, 10, 14, 20):
        client = machine.counter(MPSD_SIM_FAST="0")
        until = time.monotonic() + milliseconds / 1000
        wait_for("that moment", lambda until=until: time.monotonic() >= until)
        os.kill(client.pid, signal.SIGSTOP)
        clients.append(client)
    newcomer = machine.counter().ready(ADMITTED_SECONDS)
    for client in clients:
        os.kill(client.pid, signal.SIGCONT)
    for client in clients:
        client.ready()
        assert machine.kinds()[client.pid] == "client"
    newcomer.goes_on()


def test_clients_that_are_killed_all_over_their_handshakes_leave_nothing(machine: Machine) -> None:
    with undisturbed(machine):
        before = len(os.listdir(f"/proc/{machine.daemon_pid()}/fd"))
        chance = random.Random(700)
        for _ in range(40):
            client = machine.client("hold")
            until = time.monotonic() + chance.uniform(0, 0.015)
            wait_for("that moment", lambda until=until: time.monotonic() >= until)
            client.end(signal.SIGKILL)
        wait_for("mpsd to let go of them", lambda: len(os.listdir(f"/proc/{machine.daemon_pid()}/fd")) < before + 20)


# -- directories -------------------------------------------------------------------------------------------------------


def refused(machine: Machine, *words: str, **variables: str) -> str:
    """What `-d` says when it does not start; nothing of it is left."""
    done = machine.run("-d", *words, **variables)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.count("\n") <= 3
    wait_for("its end", lambda: not machine.processes())
    return done.stdout


def test_a_pipe_directory_that_is_a_file(machine: Machine) -> None:
    machine.pipe.rmdir()
    machine.pipe.write_text("")
    assert refused(machine) == f"Cannot access CUDA_MPS_PIPE_DIRECTORY={machine.pipe}: it is not a directory\n"


def test_a_pipe_directory_in_one_that_is_not_there(machine: Machine) -> None:
    """One level is made, as by the vendor's, and no more."""
    place = machine.place / "none" / "pipe"
    said = refused(machine, CUDA_MPS_PIPE_DIRECTORY=str(place))
    assert said == f"Cannot access CUDA_MPS_PIPE_DIRECTORY={place}: No such file or directory\n"
    machine.pipe.rmdir()
    machine.start()
    assert machine.pipe.is_dir()


def test_a_path_that_is_too_long_for_a_socket(machine: Machine) -> None:
    place = machine.place / ("x" * 90)
    place.mkdir()
    assert "at most 88 bytes" in refused(machine, CUDA_MPS_PIPE_DIRECTORY=str(place))
    done = machine.run(typed="get_server_list\n", CUDA_MPS_PIPE_DIRECTORY=str(place))
    assert done.returncode == 1
    assert "too long" in done.stderr


def test_a_state_directory_that_is_too_long_or_a_file_or_another_users(machine: Machine) -> None:
    machine.state = machine.place / ("s" * 60)
    machine.configure("")
    assert "state_directory" in refused(machine)
    machine.state = machine.place / "file"
    machine.state.write_text("")
    machine.configure("")
    assert "state directory" in refused(machine)
    machine.state = machine.place / "theirs"
    machine.state.mkdir()
    os.chown(machine.state, 1000, 1000)
    machine.configure("")
    assert "in the hands of another user" in refused(machine)


def test_a_relative_pipe_directory_is_refused(machine: Machine) -> None:
    assert "absolute path" in refused(machine, CUDA_MPS_PIPE_DIRECTORY="pipe")


def test_a_read_only_log_directory_costs_the_logs_and_nothing_else(machine: Machine) -> None:
    """Root may write anywhere, so it is a file here; the vendor's daemon goes on without logs too."""
    machine.log_directory.rmdir()
    machine.log_directory.write_text("")
    machine.start()
    machine.counter().ready()
    assert machine.quit("quit -t 0") == 0


def test_a_pipe_directory_that_is_removed_under_the_daemon(machine: Machine) -> None:
    """As tmp cleaners do: running clients go on; a new daemon can take its place."""
    machine.start()
    client = machine.counter().ready()
    for path in machine.pipe.iterdir():
        path.unlink()
    machine.pipe.rmdir()
    assert machine.ask("get_server_list").stderr == "Cannot find MPS control daemon process\n"
    client.goes_on()
    machine.kill_all_daemons()
    machine.start()
    machine.counter().ready()
    client.goes_on()


def test_a_bad_configuration_is_refused_with_everything_that_is_wrong(machine: Machine) -> None:
    machine.configure("[domains]\nspares = 99\nspeed = 3\n[stop]\non_sigterm = 'explode'\n")
    said = refused(machine)
    assert "spares" in said
    assert "speed" in said
    assert "on_sigterm" in said


# -- the vendor's program ----------------------------------------------------------------------------------------------


def test_a_vendor_program_that_is_missing(machine: Machine) -> None:
    machine.configure('[vendor]\ncontrol = "/nowhere/nvidia-cuda-mps-control"\n')
    assert refused(machine) == "the vendor's nvidia-cuda-mps-control was not found; not there: /nowhere\n"


def test_a_vendor_program_that_is_mpsds_own_front_end(machine: Machine) -> None:
    """Driven by itself, it would start daemons without end."""
    machine.configure(f'[vendor]\ncontrol = "{FRONT_END}"\n')
    assert "mpsd's own front end" in refused(machine)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("hang@start", "hung: no answer to '-d' in 1 s"), ("crash@start", "ended with status -9"), ("hang@*", "hung: no answer")],
)
def test_a_vendor_program_that_hangs_or_crashes_at_its_start(machine: Machine, fault: str, words: str) -> None:
    machine.configure("[vendor]\nstart_seconds = 1.0\ncommand_seconds = 1.0\n")
    machine.misbehave(fault)
    assert words in refused(machine)


def test_a_vendor_program_that_is_no_program(machine: Machine) -> None:
    program = machine.place / PROGRAM
    program.write_bytes(b"\x7fELF and no more")
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    assert "cannot be run" in refused(machine)


def test_a_vendor_program_that_says_nothing_and_does_nothing(machine: Machine) -> None:
    machine.configure('[vendor]\ncontrol = "/bin/true"\n')
    assert "left no daemon behind" in refused(machine)


def test_a_keeper_that_cannot_be_started(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a daemon that says so: a client could not be held."""
    (machine.state / "keeper").mkdir(parents=True)
    assert "keeper" in refused(machine)


@pytest.mark.parametrize("fault", ["garbage@*", "refuse@accept", "crash@get_client_list", "slow@*=300"])
def test_a_vendor_daemon_that_misbehaves_after_its_start(machine: Machine, fault: str) -> None:
    """mpsd stays up, answers, and no client runs without MPS; when it is over, clients are served."""
    machine.configure("[vendor]\ncommand_seconds = 1.0\n[domains]\nrestart_seconds = 0.1\nrestart_max_seconds = 0.5\n")
    machine.start()
    client = machine.counter().ready()
    machine.misbehave(fault)
    machine.kill_vendor("default")
    assert client.status() == 5
    waiting = machine.counter()
    wait_for("something of it in the log", lambda: machine.journal("domain.failed") or machine.journal("domain.silent"))
    assert machine.run(typed="get_default_active_thread_percentage\n", seconds=3.0).stdout == "100.0\n"
    assert machine.kinds().get(waiting.pid) in (None, "client")
    machine.misbehave("")
    for domain in machine.domains():
        machine.kill_vendor(domain)
    machine.client("smcount").wait("sms", 15.0)


def test_a_vendors_server_program_that_is_missing(machine: Machine) -> None:
    """The client waits, with MPS's word, and is served when it is there."""
    program = machine.place / "alone" / PROGRAM
    program.parent.mkdir()
    program.write_bytes((SIMULATOR / "bin" / PROGRAM).read_bytes())
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    machine.start()
    client = machine.client("smcount")
    wait_for("a word of it in the log", lambda: any("server" in line.lower() for line in machine.log()[4:]))
    assert machine.kinds().get(client.pid) != "plain"
    Path(program.parent / "nvidia-cuda-mps-server").symlink_to(SIMULATOR / "bin/nvidia-cuda-mps-server")
    assert machine.client("smcount").wait("sms")["seen"] == 132
