"""A domain's directories, and which process is believed to be the vendor daemon in them."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsd.domains.directories import CLOSED, OPEN, PID_FILE, DomainDirectories
from mpsd.host import processes
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import ProcessId
from tests.inspecting import INSPECTOR

ME = os.geteuid()
SLEEP = Path("/bin/sleep").resolve()
Start = Callable[..., ProcessId]


@pytest.fixture
def home(tmp_path: Path) -> DomainDirectories:
    made = DomainDirectories(tmp_path / "domains" / "d2")
    made.make(CLOSED, None)
    return made


@pytest.fixture
def start(home: DomainDirectories) -> Iterator[Start]:
    """Something that could pass for the daemon: its pid is in the pid file."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(program: Path = SLEEP, directory: Path | None = None, uid: int | None = None) -> ProcessId:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory or home.pipe)}
        process = subprocess.Popen([program, "600"], env=variables, cwd="/", user=uid)
        started.append(process)
        (home.pipe / PID_FILE).write_text(f"{process.pid}\n")
        until = time.monotonic() + 10.0  # the kernel shows its environment a moment after exec has succeeded
        while not INSPECTOR.facts_now(process.pid, [*variables]).variables:
            assert time.monotonic() < until
        found = processes.process_id(process.pid)
        assert found is not None
        return found

    yield begin
    for each in started:
        each.kill()
        each.wait()


def modes(home: DomainDirectories) -> list[int]:
    return [path.stat().st_mode & 0o7777 for path in (home.path, home.pipe, home.log)]


def test_who_passes_the_directories(home: DomainDirectories) -> None:
    of_pipe = CLOSED if ME else OPEN
    assert (modes(home), home.is_closed) == ([CLOSED, of_pipe, CLOSED], True)
    home.open_to_servers()
    assert (modes(home), home.is_closed) == ([OPEN, of_pipe, CLOSED], False)
    home.make(CLOSED, None)
    assert home.is_closed


def test_nothing_of_an_earlier_daemon_is_left_when_one_is_started(home: DomainDirectories, start: Start) -> None:
    home.record(start())
    home.make(CLOSED, None)
    assert (home.recorded(), home.find_by_pid_file(SLEEP, ME, INSPECTOR)) == (None, None)


@pytest.fixture
def vendors(tmp_path: Path) -> Path:
    """A program with the vendor's name."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_bytes(SLEEP.read_bytes())
    program.chmod(0o755)
    return program


def test_a_record_of_before_a_reboot_names_no_other_program(home: DomainDirectories, start: Start) -> None:
    """Pid and start time are counted from the boot on: mpsd would end another program of root's as a daemon that hangs."""
    home.record(start())
    assert home.recorded() is None


@pytest.mark.root
def test_a_disk_that_is_full_by_then_costs_no_record(tmp_path: Path) -> None:
    """Without one, an mpsd that could not read the daemon as it was started again removed the directories of its domain."""
    command = (
        "mount -t tmpfs -o size=64k none $0 && exec $1 -c 'import sys; from pathlib import Path; "
        "from mpsd.domains.directories import CLOSED, DomainDirectories; from mpsd.model.process import ProcessId\n"
        'home = DomainDirectories(Path(sys.argv[1], "d1"))\n'
        "home.make(CLOSED, None)\n"
        'try: Path(sys.argv[1], "filled").write_bytes(b"x" * (64 << 10))\n'
        "except OSError as exc: print(exc.strerror)\n"
        "home.record(ProcessId(7, 8))\n"
        'print((home.path / "daemon").read_text())\' $0'
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", command, tmp_path, sys.executable], capture_output=True, text=True)
    assert done.stdout.split() == ["No", "space", "left", "on", "device", "7", "8"], done.stderr


@pytest.mark.root
def test_a_disk_that_became_read_only_is_told_in_words(tmp_path: Path) -> None:
    """Of directories that exist: `quit` opens the refuser's, and an OSError ended mpsd there."""
    command = (
        "mount -t tmpfs none $0 && mkdir -p $0/refuser/pipe $0/refuser/log && mount -o remount,ro $0 && exec $1 -c "
        "'from pathlib import Path; import sys; from mpsd.domains.directories import CLOSED, DomainDirectories; "
        "from mpsd.errors import UnusablePath\n"
        'try: DomainDirectories(Path(sys.argv[1], "refuser")).make(CLOSED, 65534)\n'
        "except UnusablePath as exc: print(exc)' $0"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", command, tmp_path, sys.executable], capture_output=True, text=True)
    assert done.stdout == f"{tmp_path}/refuser cannot be made: Read-only file system\n", done.stderr


def test_the_recorded_process_is_believed_while_it_is_the_same(home: DomainDirectories, start: Start, vendors: Path) -> None:
    process = start(vendors)
    home.record(process)
    assert home.recorded() == process
    assert (home.path / "daemon").stat().st_mode & 0o777 == 0o600
    home.record(ProcessId(process.pid, process.start_time + 1))
    assert home.recorded() is None


def test_the_recorded_process_is_believed_while_mpsd_cannot_read_it(
    home: DomainDirectories, start: Start, vendors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a living daemon lost its directories at a restart, if a user kept mpsd from reading root's processes."""
    process = start(vendors)
    home.record(process)

    def refuse(*_: object) -> bytes:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    for name in ("stat", "text"):
        monkeypatch.setattr(processes.reader, name, refuse)
    assert home.recorded() == process


@pytest.mark.parametrize("text", ["", "12", "a b", "1 2 3", "-1 5", "9" * 5000, "\u00b2", "\u00b2 \u00b2"])
def test_a_record_that_is_none_is_not_believed(home: DomainDirectories, text: str) -> None:
    (home.path / "daemon").write_text(text)
    (home.pipe / PID_FILE).write_text(text)
    assert (home.recorded(), home.find_by_pid_file(SLEEP, ME, INSPECTOR)) == (None, None)


def test_the_pid_file_is_believed_of_the_vendors_program_alone(home: DomainDirectories, start: Start) -> None:
    process = start()
    assert home.find_by_pid_file(SLEEP, ME, INSPECTOR) == process
    assert home.find_by_pid_file(Path(sys.executable), ME, INSPECTOR) is None
    assert home.find_by_pid_file(SLEEP, ME + 1, INSPECTOR) is None


def test_the_daemon_of_another_domain_is_not_this_ones(home: DomainDirectories, start: Start) -> None:
    start(directory=home.path.parent / "d3/pipe")
    assert home.find_by_pid_file(SLEEP, ME, INSPECTOR) is None


@pytest.mark.root
def test_another_users_process_is_no_daemon_whatever_it_says(home: DomainDirectories, start: Start) -> None:
    start(uid=65534)
    assert home.find_by_pid_file(SLEEP, ME, INSPECTOR) is None


def test_a_script_in_its_place_runs_the_vendors_program(
    home: DomainDirectories, start: Start, tmp_path: Path, vendors: Path
) -> None:
    """Operators use such scripts to set variables."""
    script = tmp_path / "wrapper"
    script.write_text("#!/bin/sh\n")
    start()
    assert home.find_by_pid_file(script, ME, INSPECTOR) is None
    process = start(vendors)
    assert home.find_by_pid_file(script, ME, INSPECTOR) == home.find_by_pid_file(vendors, ME, INSPECTOR) == process


@pytest.mark.parametrize("which", ["path", "pipe"])
def test_a_directory_that_others_may_write_is_trouble(home: DomainDirectories, which: str) -> None:
    assert home.trouble(ME) == ""
    directory: Path = getattr(home, which)
    directory.chmod(0o722)
    assert home.trouble(ME) == f"{directory} may be written by others (mode 0722)"


@pytest.mark.root
@pytest.mark.parametrize("which", ["path", "pipe"])
def test_a_directory_of_another_user_is_trouble(home: DomainDirectories, which: str) -> None:
    directory: Path = getattr(home, which)
    os.chown(directory, 65534, 65534)
    assert home.trouble(ME) == f"{directory} is uid 65534's"
    assert (home.trouble(65534) == "") == (which == "pipe")  # the refuser's user has its pipe directory
