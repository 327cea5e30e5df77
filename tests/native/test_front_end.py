"""The front end as the user interface: lines and arguments become commands, answers become streams and a status."""

import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.native.ui_daemon import Conversation, Run, UiDaemon, echo, output
from tests.seeds import seeds

LIMIT = 4096
VENDORS_COMMANDS = {
    "start_server",
    "quit",
    "get_server_list",
    "get_server_status",
    "get_client_list",
    "get_device_client_list",
    "ps",
    "set_default_active_thread_percentage",
    "get_default_active_thread_percentage",
    "set_active_thread_percentage",
    "get_active_thread_percentage",
    "set_default_device_pinned_mem_limit",
    "get_default_device_pinned_mem_limit",
    "set_device_pinned_mem_limit",
    "get_device_pinned_mem_limit",
    "set_default_client_priority",
    "get_default_client_priority",
    "terminate_client",
    "device_query",
}
VENDORS_OPTIONS = {"-h,--help", "-d,--daemon", "-f,--forground", "-M,--multiuser-server", "-q,--ready-devices"}


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-h", "--help", "-help", "-dh", "-Mh"])
def test_help_has_every_option_and_command_of_the_vendors(run: Run, option: str) -> None:
    rc, out, err = output(run(option))
    assert (rc, err) == (0, b"")
    lines = out.decode().splitlines()
    assert "mpsd" in out.decode()
    assert "nvidia-cuda-mps-control [options] [command]" in lines
    listed = [line.split()[0] for line in lines if re.match(r"  [a-z]", line) and "This program" not in line]
    assert VENDORS_COMMANDS | {"help", "shutdown_server", "lspart", "sm_partition"} <= set(listed)
    assert {line.split()[0] for line in lines if line.startswith("  -")} >= VENDORS_OPTIONS


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_version_has_the_vendors_first_line(run: Run, option: str) -> None:
    rc, out, err = output(run(option))
    assert (rc, err) == (0, b"")
    first, second = out.decode().splitlines()
    assert first == "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000"
    assert re.fullmatch(r"mpsd \d+\.\d+\.\d+\S*", second)


def test_make_install_can_tell_it_from_the_vendors(front_end: Path) -> None:
    assert b"mpsd-front-end" in front_end.read_bytes()


@pytest.mark.parametrize("words", [["--bogus"], ["-p", "3"], ["-dx"], ["-d", "--daem"], ["--d"], ["-x", "-h"], ["-M", "-Mz"]])
def test_an_unknown_option_is_named_before_the_usage_and_is_no_failure(run: Run, words: list[str]) -> None:
    """rc 0, as the vendor's; its message lacks the name.  Nothing is started."""
    rc, out, err = output(run(*words))
    assert (rc, err) == (0, b"")
    wrong = next(word for word in words if word not in ("-d", "-M"))
    assert out.decode().startswith(f"Unrecognized option {wrong}\nCUDA MPS Control for")


# -- a conversation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "commands"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"get_server_list\n", [b"get_server_list"], id="a line"),
        pytest.param(b"get_server_list", [b"get_server_list"], id="no newline (k8s)"),
        pytest.param(b"a\nb\nc", [b"a", b"b", b"c"], id="several"),
        pytest.param(b"\n\na\n\n", [b" ", b" ", b"a", b" "], id="blank lines are commands, as the vendor's"),
        pytest.param(b"  a  b \t\n", [b"  a  b \t"], id="blanks are the daemon's affair"),
        pytest.param(b"a\r\nb\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"a\r", [b"a"], id="CR at the end"),
        pytest.param(b"\r\n", [b" "], id="only CRLF"),
        pytest.param(b"a\rb\r\r\n", [b"a\rb\r"], id="one CR at the end only"),
        pytest.param(b"get_server\0_list\nb\n", [b"get_server", b"b"], id="NUL ends the command"),
        pytest.param(b"\0\n", [b" "], id="NUL first"),
        pytest.param(b"a\0", [b"a"], id="NUL and no newline"),
        pytest.param(b"\xff\xfe\n", [b"\xff\xfe"], id="no UTF-8"),
        pytest.param(b"x" * LIMIT + b"\n", [b"x" * LIMIT], id="as long as may be"),
        pytest.param(b"x" * LIMIT + b"\r\n", [b"x" * LIMIT], id="as long as may be, CRLF"),
        pytest.param(b"x" * LIMIT + b"\0" + b"y" * 9999 + b"\nz", [b"x" * LIMIT, b"z"], id="as long as may be, NUL"),
    ],
)
def test_lines_become_commands(run: Run, short_dir: Path, stdin: bytes, commands: list[bytes]) -> None:
    with UiDaemon(short_dir, echo) as daemon:
        result = run(stdin=stdin)
    assert daemon.commands == commands
    shown = [each.replace(b"\r", rb"\x0d").replace(b"\xff\xfe", rb"\xff\xfe") for each in commands]
    assert output(result) == (0, b"".join(b"[" + each + b"]\n" for each in shown), b"")


@pytest.mark.parametrize("length", [LIMIT + 1, LIMIT + 2, 5000, 100_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_an_over_long_line_is_refused_whole_and_the_next_is_served(run: Run, short_dir: Path, length: int, end: bytes) -> None:
    with UiDaemon(short_dir, echo) as daemon:
        result = run(stdin=b"a\n" + b"x" * length + end + (b"b" if end else b""))
    refusal = b"Command of %d bytes is longer than the limit of 4096 bytes\n" % length
    assert daemon.commands == [b"a", b"b"][: 2 if end else 1]
    assert output(result) == (1, b"[a]\n" + refusal + (b"[b]\n" if end else b""), b"")


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        pytest.param(["start_server", "-uid", "1000"], [b"start_server -uid 1000"], id="Slurm's sample"),
        pytest.param(["start_server -uid 1000"], [b"start_server -uid 1000"], id="one word"),
        pytest.param(["get_server_list"], [b"get_server_list"], id="no argument"),
        pytest.param(["quit", "-t", "5"], [b"quit -t 5"], id="an option that is the command's"),
        pytest.param(["--", "-d"], [b"-d"], id="after --"),
        pytest.param(["-M", "a", "-d"], [b"a -d"], id="options before it"),
        pytest.param(["-"], [b"-"], id="a dash"),
        pytest.param([""], [b" "], id="empty"),
        pytest.param(["a", "", "b"], [b"a  b"], id="an empty one between"),
        pytest.param(["a\nb", "c"], [b"a", b"b c"], id="a newline"),
    ],
)
def test_arguments_are_a_command(run: Run, short_dir: Path, arguments: list[str], commands: list[bytes]) -> None:
    with UiDaemon(short_dir, echo) as daemon:
        result = run(*arguments, stdin=b"not read\n")
    assert daemon.commands == commands
    assert result.returncode == 0


def test_a_command_in_the_arguments_leaves_stdin_alone(front_end: Path, short_dir: Path, pipe: tuple[int, int]) -> None:
    """A prolog's stdin may never end, and is not the front end's to eat."""
    os.write(pipe[1], b"mine\n")
    with UiDaemon(short_dir, echo):
        subprocess.run(
            [front_end, "get_server_list"], stdin=pipe[0], env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)},
            timeout=10, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    assert os.read(pipe[0], 100) == b"mine\n"


def test_an_over_long_command_in_the_arguments(run: Run, short_dir: Path) -> None:
    with UiDaemon(short_dir, echo) as daemon:
        result = run("x" * 100_000, "y")
    assert daemon.commands == []
    assert output(result) == (1, b"Command of 100002 bytes is longer than the limit of 4096 bytes\n", b"")


def test_streams_and_the_last_status_that_is_not_zero(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        for status in (0, 7, 255, 0):
            conversation.next_command()
            conversation.answer(b"Oout%d\n" % status, b"Eerr%d\n" % status, b"O", b"Oend\n", status=status)

    with UiDaemon(short_dir, converse):
        result = run(stdin=b"a\nb\nc\nd\n")
    assert result.returncode == 255
    assert result.stdout == b"out0\nend\nout7\nend\nout255\nend\nout0\nend\n"
    assert result.stderr == b"err0\nerr7\nerr255\nerr0\n"


def test_a_long_answer_in_many_datagrams(run: Run, short_dir: Path) -> None:
    piece = bytes(range(0x20, 0x60)) * 256

    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer(*[b"O" + piece] * 500)

    with UiDaemon(short_dir, converse):
        assert run("ps").stdout == piece * 500


def test_each_command_waits_for_the_status_of_the_one_before(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        for _ in range(3):
            conversation.next_command()
            conversation.peer.settimeout(0.05)
            with pytest.raises(TimeoutError):
                conversation.peer.recv(1)
            conversation.peer.settimeout(15)
            conversation.answer()

    with UiDaemon(short_dir, converse):
        assert run(stdin=b"a\nb\nc\n").returncode == 0


def test_no_prompt_on_a_terminal(front_end: Path, short_dir: Path) -> None:
    ours, theirs = os.openpty()
    with UiDaemon(short_dir, echo):
        process = subprocess.Popen(
            [front_end], stdin=theirs, stdout=theirs, stderr=theirs, env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)}
        )
        os.close(theirs)
        os.write(ours, b"ps\n\x04")
        shown = b""
        while b"]" not in shown:
            shown += os.read(ours, 1000)
        assert process.wait(timeout=10) == 0
    os.close(ours)
    assert shown.rstrip() == b"ps\r\n[ps]"


# -- descriptors -----------------------------------------------------------------------------------------------------


def test_a_closed_reader_does_not_keep_commands_from_the_daemon(front_end: Path, short_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with UiDaemon(short_dir, echo) as daemon:
        result = subprocess.run(
            [front_end], input=b"a\nb\nquit_not\n", stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=10,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)},
        )  # fmt: skip
    os.close(write_end)
    assert daemon.commands == [b"a", b"b", b"quit_not"]
    assert (result.returncode, result.stderr) == (1, b"Cannot write to stdout: Broken pipe\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing_standard_descriptors(front_end: Path, short_dir: Path, closed: str) -> None:
    """The conversation must not land on a number that something is printed to."""
    with UiDaemon(short_dir, echo) as daemon:
        result = subprocess.run(
            ["/bin/sh", "-c", f'echo a | "{front_end}" b {closed}'], check=False, timeout=10, capture_output=True,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)},
        )  # fmt: skip
    assert daemon.commands == [b"b"]
    assert result.returncode == 0


def test_a_slow_reader_of_a_non_blocking_pipe_gets_everything(front_end: Path, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer(*[b"O" + b"x" * 10000] * 30)

    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with UiDaemon(short_dir, converse):
        process = subprocess.Popen([front_end, "a"], stdout=write_end, env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)})
        os.close(write_end)
        with open(read_end, "rb") as reader:
            assert reader.read() == b"x" * 300_000
        assert process.wait(timeout=10) == 0


def test_a_non_blocking_stdin(front_end: Path, short_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with UiDaemon(short_dir, echo):
        with subprocess.Popen(
            [front_end], stdin=read_end, stdout=subprocess.PIPE, env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)}
        ) as process:
            os.close(read_end)
            assert process.stdout
            for command in (b"a", b"b"):
                os.write(write_end, command + b"\n")
                assert process.stdout.readline() == b"[" + command + b"]\n"
            os.close(write_end)
            assert process.wait(timeout=10) == 0


def test_a_stdin_that_cannot_be_read(front_end: Path, short_dir: Path) -> None:
    directory = os.open(short_dir, os.O_RDONLY)
    with UiDaemon(short_dir, echo):
        result = subprocess.run(
            [front_end], stdin=directory, capture_output=True, env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)}, check=False
        )
    os.close(directory)
    assert output(result) == (1, b"", b"Cannot read stdin: Is a directory\n")


def test_stopped_and_continued(front_end: Path, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(started[0].pid, number)
        conversation.answer(b"Ofine\n")

    started: list[subprocess.Popen[bytes]] = []
    with UiDaemon(short_dir, converse):
        with subprocess.Popen(
            [front_end], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)}
        ) as process:
            started.append(process)
            assert process.communicate(b"a\n", timeout=10)[0] == b"fine\n"
            assert process.returncode == 0


@pytest.mark.parametrize("seed", seeds(5, 5))
def test_random_input(run: Run, short_dir: Path, seed: int) -> None:
    """The front end sends the same commands as an implementation in Python."""
    rng = random.Random(seed)
    data = b"".join(rng.choice([b"\n", b"\r", b"\0", b"x", b"y" * rng.randrange(5000)]) for _ in range(200))
    data = data.replace(b"quit", b"")
    wanted, status = [], 0
    for line in (data[:-1] if data.endswith(b"\n") else data).split(b"\n"):
        command, nul, _ = line.partition(b"\0")
        command = command if nul else command.removesuffix(b"\r")
        if len(command) <= LIMIT:
            wanted.append(command or b" ")
        else:
            status = 1
    with UiDaemon(short_dir, echo) as daemon:
        assert run(stdin=data).returncode == status
    assert daemon.commands == wanted
