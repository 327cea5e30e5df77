"""Directories that cannot be used, and programs of the vendor's that are missing, hang or crash: a clear word, and no client
that runs without MPS."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from tests.hostile.refusing import PIDFD_GETFD, make_refusing
from tests.integration.machine import FRONT_END, PROGRAM, SIMULATOR, Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
ALONE = (
    "[vendor]\ncommand_seconds = 1.0\n"
    "[domains]\nspares = 0\nmax_domains = 1\nrestart_seconds = 0.1\nrestart_max_seconds = 0.5\n"
)

RUNS_ONLY = """
import os, signal, time
if os.fork():
    while not os.path.exists({0!r}):
        time.sleep(0.01)
    os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for end in range(3):
    os.dup2(null, end)
with open({0!r}, "a") as file:
    print(os.getpid(), file=file)
signal.pause()
"""

# -- directories -------------------------------------------------------------------------------------------------------


def refused(machine: Machine, *words: str, **variables: str) -> str:
    """Return the message of `-d` when it does not start, and check that it leaves no process behind."""
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


def test_a_state_directory_that_makes_names_too_long_for_sockets(machine: Machine) -> None:
    machine.state = machine.place / ("s" * 60)
    machine.configure("")
    assert "state_directory" in refused(machine)


def test_a_users_runtime_directory_that_makes_names_too_long(strangers: Machine) -> None:
    """This directory comes from no option, so the check of the configuration does not see it."""
    long = strangers.place / ("r" * 60)
    long.mkdir()
    (strangers.place / "mpsd.toml").write_text("")
    assert refused(strangers, XDG_RUNTIME_DIR=str(long)).startswith(f"state directory {long}/mpsd/")


def test_a_state_directory_that_is_a_file(machine: Machine) -> None:
    machine.state.write_text("")
    assert refused(machine) == f"the state directory {machine.state} cannot be used: it is not a directory\n"
    assert stat.S_IMODE(machine.state.stat().st_mode) == 0o644, "it was not touched"


def test_a_state_directory_of_another_user(machine: Machine) -> None:
    machine.state.mkdir()
    os.chown(machine.state, 1000, 1000)
    said = refused(machine)
    assert f": {machine.state} (uid 1000, mode 0755) belongs to another user" in said
    assert "accepted: root's and uid 0's" in said


@pytest.mark.parametrize("name", ["lock", "keeper", "progress", "mpsd.db"])
def test_something_else_where_mpsd_keeps_its_state(machine: Machine, name: str) -> None:
    (machine.state / name).mkdir(parents=True)
    said = refused(machine)
    assert str(machine.state) in said
    assert "cannot be" in said


@pytest.mark.parametrize("name", [f"{PROGRAM}.pid", "control", "mpsd-ui", "mpsd.sock"])
def test_something_else_where_clients_and_callers_look(machine: Machine, name: str) -> None:
    (machine.pipe / name).mkdir()
    said = refused(machine)
    assert str(machine.pipe / name) in said
    assert "s a directory" in said
    (machine.pipe / name).rmdir()
    machine.start()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipe", "Cannot access CUDA_MPS_PIPE_DIRECTORY={place}: uid 1000 may not write to it\n"),
        ("state", "the state directory {place} cannot be used: Operation not permitted\n"),
    ],
)
def test_a_directory_that_may_not_be_written_to(strangers: Machine, name: str, said: str) -> None:
    """Root may write anywhere, so this mpsd is another user's."""
    place = {"pipe": strangers.pipe, "state": strangers.state}[name]
    place.mkdir(exist_ok=True)
    os.chown(place, 0, 0)
    place.chmod(0o755)
    assert refused(strangers) == said.format(place=place)


def test_a_relative_pipe_directory_is_refused(machine: Machine) -> None:
    assert "absolute path" in refused(machine, CUDA_MPS_PIPE_DIRECTORY="pipe")


def test_a_log_directory_that_is_a_file_costs_the_logs_and_nothing_else(machine: Machine) -> None:
    """The vendor's daemon goes on without logs too."""
    machine.log_directory.rmdir()
    machine.log_directory.write_text("")
    machine.start()
    machine.counter().ready()
    assert machine.quit("quit -t 0") == 0


def test_a_pipe_directory_that_is_removed_under_the_daemon(machine: Machine) -> None:
    """As tmp cleaners do: running clients go on; a new daemon can take its place."""
    machine.start()
    client = machine.counter().ready()
    shutil.rmtree(machine.pipe)
    assert machine.ask("get_server_list").stderr == "Cannot find MPS control daemon process\n"
    client.goes_on()
    machine.kill_all_daemons()
    machine.start()
    machine.counter().ready()
    client.goes_on()


def test_a_pid_file_that_is_removed_comes_back(machine: Machine) -> None:
    """As by jobs that tidy /tmp; callers end mpsd by this file."""
    machine.start()
    pid = machine.daemon_pid()
    (machine.pipe / f"{PROGRAM}.pid").unlink()
    wait_for("the pid file", lambda: machine.daemon_pid() == pid)


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
    [
        ("hang@start", "hung: no answer to '-d' in 0.5 s"),
        ("crash@start", "-d ended with status 1 and left no daemon behind: it printed nothing"),
        ("refuse@start", "-d ended with status 1 and left no daemon behind"),
        ("hang@*", "hung: no answer to 'set_default_active_thread_percentage 100; "),
        ("refuse@accept", "was not answered"),
    ],
)
def test_a_vendor_program_that_hangs_or_crashes_at_its_start(machine: Machine, fault: str, words: str) -> None:
    machine.configure("[vendor]\ncommand_seconds = 0.5\n" + "start_seconds = 0.5\n" * (fault == "hang@start"))
    machine.misbehave(fault)
    said = refused(machine)
    assert said.startswith("the first fault domain does not start: ")
    assert words in said


def test_a_vendor_program_that_is_no_program(machine: Machine) -> None:
    program = machine.place / PROGRAM
    program.write_bytes(b"\x7fELF and no more")
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    assert "cannot be run" in refused(machine)


def test_a_vendor_program_that_says_nothing_and_does_nothing(machine: Machine) -> None:
    machine.configure('[vendor]\ncontrol = "/bin/true"\n')
    assert "left no daemon behind" in refused(machine)


def test_a_vendor_daemon_that_runs_and_does_not_listen_is_not_left_behind(machine: Machine) -> None:
    """As on a full disk: each try left another one running."""
    program, started = machine.place / PROGRAM, machine.place / "started"
    program.write_text(f"#!{sys.executable}\n{RUNS_ONLY.format(str(started))}")
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    assert "left no daemon behind" in refused(machine)
    assert started.read_text(), "none ran that could be left behind"


@pytest.mark.parametrize(
    ("fault", "serves"),
    [
        ("garbage@*", True),
        pytest.param("slow@*=300", True, marks=pytest.mark.slow),
        ("refuse@accept", False),
        ("crash@get_client_list", False),
    ],
)
def test_a_vendor_daemon_that_misbehaves_after_its_start(machine: Machine, fault: str, serves: bool) -> None:
    """mpsd stays up and answers, and no client runs without MPS; when it is over, clients are served."""
    machine.configure(ALONE)
    machine.misbehave("")
    machine.start()
    client = machine.counter().ready()
    machine.misbehave(fault)
    machine.kill_vendor("default")
    assert client.status() == 5
    waiting = machine.counter()
    if serves:
        waiting.ready()
    else:
        wait_for("it to fail again", lambda: len(machine.journal("domain.failed")) > 1)
    assert machine.tell("get_default_active_thread_percentage") == "100.0\n"
    assert machine.kinds().get(waiting.pid) in (None, "client")
    machine.misbehave("")
    if serves:
        machine.kill_vendor("default")
    assert machine.client("smcount").wait("sms")["seen"] == 132
    assert machine.kinds().get(waiting.pid) in (None, "client")


def test_a_vendors_server_program_that_is_missing(machine: Machine) -> None:
    """Its clients get MPS's own error; clients that come when the program exists are served."""
    program = machine.place / "alone" / PROGRAM
    program.parent.mkdir()
    program.write_bytes((SIMULATOR / "bin" / PROGRAM).read_bytes())
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    machine.start()
    assert machine.client("smcount").error() == 805
    (program.parent / "nvidia-cuda-mps-server").symlink_to(SIMULATOR / "bin/nvidia-cuda-mps-server")
    assert machine.client("smcount").wait("sms")["seen"] == 132


@pytest.mark.root
@pytest.mark.parametrize("is_refused", [False, True], ids=["allowed", "refused"])
def test_the_check_names_a_security_profile_that_refuses_duplicates(machine: Machine, is_refused: bool) -> None:
    """As Docker's filter does without SYS_PTRACE: clients are served, but mpsd has no UVM events."""
    program = Path(sys.executable).with_name("mpsd")
    if is_refused:
        program = make_refusing(machine.place / "refusing", program, call=PIDFD_GETFD)
    done = machine.run("check", program=program)
    assert done.returncode == 0, done
    assert ("note  descriptors      clients' descriptors cannot be duplicated" in done.stdout) is is_refused
    assert ("ok    descriptors      clients' descriptors can be duplicated" in done.stdout) is not is_refused
