"""The front end starting the daemon: what callers find in /proc, what they get on stdout, and that nothing is left open.

The daemon here is a fake one (fake_daemon.py).
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.fake_daemon import Installed

pytestmark = pytest.mark.parametrize(
    "front_end", ["plain", pytest.param("sanitized", marks=pytest.mark.slow)], indirect=True
)


# -- what the daemon is ----------------------------------------------------------------------------------------------


def test_minus_d_with_an_empty_environment(installed: Installed) -> None:
    """The name that callers look for, the virtual environment that Python looks for, and nothing of the caller's."""
    installed.plan("0\n", stay=True)
    result = installed.run("-d")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    report = installed.report()
    assert report["cmdline"][0] == str(installed.program)
    assert report["cmdline"][1:] == ["-I", "-m", "mpsd", "serve", "--background", "--ready-fd", "3"]
    assert report["prefix"] == str(installed.venv)
    assert report["base_prefix"] != report["prefix"]
    assert report["isolated"] == 1
    assert report["environ"] == ""
    assert report["cwd"] == "/"
    fds = report["fds"]
    assert [fds.pop(number) for number in "012"] == ["/dev/null"] * 3
    assert fds.pop("3").startswith("pipe:")
    assert fds == {}
    assert report["signals"] == [0, 0x01001000]  # Python's own: PIPE, XFSZ
    assert Path(f"/proc/{report['pid']}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/nvidia-cuda-mps-control")


def test_the_daemon_is_nobodys_child_and_has_no_terminal(installed: Installed) -> None:
    installed.plan("0\n", stay=True)
    ours, theirs = os.openpty()
    subprocess.run([installed.program, "-d"], env={}, check=True, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.close(ours)
    pid = installed.report()["pid"]
    # After the name in brackets: state, parent, group, session, terminal.  The parent at the time of the report may
    # still have been the front end's first child, so it is looked at here.
    _state, parent, group, session, terminal = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:5]
    assert int(parent) != os.getpid()
    assert int(session) not in (pid, os.getsid(0)), "it leads no session, so it can never get a terminal"
    assert int(group) == int(session)
    assert terminal == "0"


def test_the_environment_is_passed_on_unchanged(installed: Installed) -> None:
    variables = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/gpu/pipe", "CUDA_MPS_LOG_DIRECTORY": "/mps/gpu/log", "EMPTY": "", "é": "ü"}
    assert installed.run("-d", env=variables).returncode == 0
    raw = "".join(f"{name}={value}\0" for name, value in variables.items())
    assert installed.report()["environ"] == raw


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["-multiuser-server"], ["--multiuser-server"]),
        (["--multiuser-server"], ["--multiuser-server"]),
        (["-M", "-q"], ["--multiuser-server", "--ready-devices"]),
        (["-q", "--ready-devices", "-M"], ["--multiuser-server", "--ready-devices"]),
        (["-S"], ["--static-partitioning"]),
        (["--static-partitioning"], ["--static-partitioning"]),
        (["extra"], []),
        (["extra", "words", "-M", "--", "-S"], ["--multiuser-server"]),
    ],
    ids=" ".join,
)
def test_options_reach_the_daemon(installed: Installed, arguments: list[str], passed: list[str]) -> None:
    assert installed.run("-d", *arguments).returncode == 0
    assert installed.report()["cmdline"][4:] == ["serve", "--background", *passed, "--ready-fd", "3"]


@pytest.mark.parametrize("start", ["--daemon", "-f", "--forground", "--foreground"])
def test_each_way_to_start_it_takes_options(installed: Installed, start: str) -> None:
    assert installed.run(start, "extra", "-M").returncode == 0
    serves = ["serve", "--foreground", "--multiuser-server"]
    if start == "--daemon":
        serves = ["serve", "--background", "--multiuser-server", "--ready-fd", "3"]
    assert installed.report()["cmdline"][4:] == serves


@pytest.mark.parametrize("arguments", [["-M", "-d"], ["-Md"], ["-dM"], ["-f", "-dM"]])
def test_options_in_any_order_and_together(installed: Installed, arguments: list[str]) -> None:
    assert installed.run(*arguments).returncode == 0
    assert installed.report()["cmdline"][5:7] == ["--background", "--multiuser-server"]


@pytest.mark.parametrize(
    ("start", "callers", "daemons"),
    [("-d", 0o022, 0o022), ("-d", 0, 0o022), ("-d", 0o077, 0o077), ("-d", 0o777, 0o077), ("-d", 2, 0o022), ("-f", 0, 0o022)],
)
def test_the_umask_lets_nobody_else_write_and_the_daemon_do_its_work(
    installed: Installed, start: str, callers: int, daemons: int
) -> None:
    assert installed.run(start, umask=callers).returncode == 0
    assert installed.report()["umask"] == daemons


@pytest.mark.parametrize("variable", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"])
def test_a_relative_directory_keeps_its_meaning(installed: Installed, short_dir: Path, variable: str) -> None:
    """The vendor's daemon stays where it was started; ours does where it matters."""
    assert installed.run("-d", env={variable: "here"}, cwd=short_dir).returncode == 0
    assert installed.report()["cwd"] == str(short_dir)


def test_a_program_that_captures_the_output_does_not_hang(installed: Installed) -> None:
    """subprocess.run reads until every holder of the pipes has closed them; the daemon lives on."""
    installed.plan("0\n", stay=True)
    inherited = [os.dup(2) for _ in range(20)]
    began = time.monotonic()
    result = subprocess.run([installed.program, "-d"], capture_output=True, env={}, close_fds=False, timeout=10, check=True)
    assert time.monotonic() - began < 8
    assert result.stdout + result.stderr == b""
    os.kill(installed.report()["pid"], 0)
    for fd in inherited:
        os.close(fd)


def test_signals_that_the_caller_ignores_or_blocks_are_the_daemons_again(installed: Installed) -> None:
    def spoil() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # then the kernel forgets children, and wait finds none
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})

    assert installed.run("-d", preexec_fn=spoil).returncode == 0
    assert installed.report()["signals"] == [0, 0x01001000]


def test_minus_f_is_the_same_process_with_its_descriptors(installed: Installed, pipe: tuple[int, int]) -> None:
    """systemd counts on the pid, and may have left descriptors for the daemon."""
    installed.plan(stay=False)
    process = subprocess.Popen(
        [installed.program, "-f", "-multiuser-server"], env={}, pass_fds=[pipe[0]], cwd="/tmp",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"")
    report = installed.report()
    assert report["pid"] == process.pid
    assert report["cmdline"][0] == str(installed.program)
    assert report["cwd"] == "/tmp"
    assert report["sid"] == os.getsid(0)
    assert report["prefix"] == str(installed.venv)
    fds = report["fds"]
    assert fds["0"] == "/dev/null"
    assert fds["1"] == fds["2"] != "/dev/null"
    assert fds[str(pipe[0])].startswith("pipe:")


# -- the daemon's output ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "out"),
    [
        (["0\n"], 0, ""),
        (["0\nWarning: no logs\n"], 0, "Warning: no logs\n"),
        (["0", "\n", "in ", "pieces\n"], 0, "in pieces\n"),
        (["1\nAn instance of this daemon is already running\n"], 1, "An instance of this daemon is already running\n"),
        (["100\n"], 100, ""),
        (["255\nno newline"], 255, "no newline"),
        (["000000000001\nx"], 1, "x"),
        (["1\n" + "x" * 100_000], 1, "x" * 8190),
    ],
    ids=range(8),
)
def test_the_word_of_the_daemon_is_the_result(installed: Installed, words: list[str], status: int, out: str) -> None:
    installed.plan(*words)
    result = installed.run("-d")
    assert (result.returncode, result.stdout, result.stderr) == (status, out, "")


@pytest.mark.parametrize("words", [[], [""], ["0"], ["\n"], ["256\n"], ["99999999999999999999\n"], ["x\n"], ["-1\n"], ["1 \n"]])
def test_a_daemon_that_ends_without_a_proper_word(installed: Installed, short_dir: Path, words: list[str]) -> None:
    installed.plan(*words)
    result = installed.run("-d", env={"CUDA_MPS_LOG_DIRECTORY": str(short_dir)})
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout == f"Cannot start the MPS control daemon: it ended without a word; see {short_dir}/mpsd.log\n"
    assert installed.run("-d").stdout.endswith("see /var/log/nvidia-mps/mpsd.log\n")


def test_a_daemon_that_does_not_answer(installed: Installed, short_dir: Path) -> None:
    installed.plan(close=False, stay=True)
    result = installed.run("-d", env={"CUDA_MPS_LOG_DIRECTORY": str(short_dir)})
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout == (
        "Cannot start the MPS control daemon: no word from it within 1 seconds; it may still come up, "
        f"see {short_dir}/mpsd.log\n"
    )


@pytest.mark.slow
def test_a_daemon_that_keeps_the_pipe_open_after_its_word(installed: Installed) -> None:
    """A child of the daemon's may hold it; its status is what counts."""
    installed.plan("0\n", close=False, stay=True)
    assert installed.run("-d").returncode == 0


def test_a_daemon_without_its_package(installed: Installed) -> None:
    shutil.move(installed.package, hidden := installed.package.with_name("hidden"))
    try:
        result = installed.run("-d")
        foreground = installed.run("-f")
    finally:
        shutil.move(hidden, installed.package)
    assert result.returncode == 1
    assert "it ended without a word" in result.stdout
    assert foreground.returncode == 1
    assert "No module named mpsd" in foreground.stderr


# -- the interpreter -------------------------------------------------------------------------------------------------


def test_it_finds_the_environment_of_its_own_real_path(installed: Installed, short_dir: Path) -> None:
    """/usr/bin/nvidia-cuda-mps-control may be a link into the virtual environment."""
    link = short_dir / "nvidia-cuda-mps-control"
    link.symlink_to(installed.program)
    assert installed.run("-d", program=link).returncode == 0
    assert installed.report()["cmdline"][0] == str(installed.program)
    installed.plan("0\n")
    renamed = installed.program.with_name("mps-control-of-ours")
    shutil.copy(installed.program, renamed)
    assert installed.run("-d", program=renamed).returncode == 0
    assert installed.report()["cmdline"][0] == str(installed.program)


@pytest.mark.parametrize("start", ["-d", "-f"])
def test_mpsd_python_names_another(installed: Installed, front_end: Path, start: str) -> None:
    elsewhere = front_end  # in no virtual environment
    named = str(installed.venv / "bin" / "python3")
    assert installed.run(start, program=elsewhere, env={"MPSD_PYTHON": named}).returncode == 0
    report = installed.report()
    assert report["cmdline"][0] == str(installed.venv / "bin" / "nvidia-cuda-mps-control")
    assert report["prefix"] == str(installed.venv)


def test_a_relative_mpsd_python(installed: Installed, front_end: Path) -> None:
    result = installed.run("-d", program=front_end, env={"MPSD_PYTHON": "bin/python3"}, cwd=installed.venv)
    assert result.returncode == 0, result.stdout
    assert installed.report()["prefix"] == str(installed.venv)


@pytest.mark.parametrize("start", ["-d", "-f"])
@pytest.mark.parametrize("named", ["/nowhere/at/all/python3", "python3", "/", "/etc/passwd", "/" + "x" * 5000])
def test_an_mpsd_python_that_is_none(installed: Installed, start: str, named: str) -> None:
    result = installed.run(start, env={"MPSD_PYTHON": named}, cwd="/tmp")
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("Cannot start the MPS control daemon: ")
    assert result.stdout.count("\n") == 1
    assert named in result.stdout


@pytest.mark.parametrize("start", ["-d", "-f"])
def test_no_interpreter_anywhere(installed: Installed, front_end: Path, start: str) -> None:
    result = installed.run(start, program=front_end)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout == (
        "Cannot start the MPS control daemon: no Python interpreter: /nowhere/python3: No such file or directory "
        f"(MPSD_PYTHON is not set, and {front_end.parent}/.. is no virtual environment)\n"
    )
    python = installed.venv / "bin" / "python3"
    python.rename(hidden := python.with_name("hidden"))
    try:
        result = installed.run(start)
    finally:
        hidden.rename(python)
    assert result.stdout == (
        f"Cannot start the MPS control daemon: no Python interpreter: {python} "
        "(the virtual environment of this program): No such file or directory\n"
    )


def test_an_interpreter_that_cannot_be_executed(installed: Installed, short_dir: Path) -> None:
    """It looks executable; the kernel refuses it in the child, after the fork."""
    (broken := short_dir / "python3").write_text("#!/nowhere/interpreter\n")
    broken.chmod(0o755)
    for start in ("-d", "-f"):
        result = installed.run(start, env={"MPSD_PYTHON": str(broken)})
        assert (result.returncode, result.stderr) == (1, "")
        assert result.stdout == f"Cannot start the MPS control daemon: {broken}: No such file or directory\n"


@pytest.mark.root
def test_in_a_root_directory_without_dev_and_proc(installed: Installed, front_end: Path, short_dir: Path) -> None:
    """As `chroot /driver-root` may be: a clear line, no hang, and the front end itself still runs."""
    if re.search(rb"libasan", front_end.read_bytes()):
        pytest.skip("the sanitized build is dynamic and needs its libraries there")
    shutil.copy(front_end, short_dir / "control")
    shutil.copy(front_end, short_dir / "python3")
    run: Callable[..., subprocess.CompletedProcess[str]] = installed.run
    started = run(short_dir.as_posix(), "/control", "-d", program=Path("/usr/sbin/chroot"), env={"MPSD_PYTHON": "/python3"})
    assert (started.returncode, started.stderr) == (1, "")
    assert started.stdout == "Cannot start the MPS control daemon: /dev/null: No such file or directory\n"
    version = run(short_dir.as_posix(), "/control", "-v", program=Path("/usr/sbin/chroot"))
    assert version.returncode == 0
