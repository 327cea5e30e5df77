"""How long the front end waits for a daemon that is slow or silent, for `quit`, and after it; its 60, 10 and
600 seconds are one, two and one here."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.native.test_front_end_failures import CANNOT_FIND, CANNOT_SEND
from tests.native.ui_daemon import Conversation, Run, UiDaemon, output

pytestmark = pytest.mark.parametrize(
    "front_end", ["plain", pytest.param("sanitized", marks=pytest.mark.slow)], indirect=True
)
NO_ANSWER = CANNOT_SEND + b"No answer within 1 seconds\n"


@pytest.mark.slow
def test_a_daemon_that_never_greets(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.peer.recv(100)
        conversation.peer.recv(100)

    with UiDaemon(short_dir, converse):
        assert output(run("a")) == (1, b"", NO_ANSWER)


def test_a_daemon_that_never_answers(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        while conversation.next_command():
            pass

    with UiDaemon(short_dir, converse) as daemon:
        assert output(run(stdin=b"a\nb\n")) == (1, b"", NO_ANSWER)
    assert daemon.commands == [b"a"]


@pytest.mark.slow
def test_a_daemon_that_never_accepts(run: Run, short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf, socket.socket(deaf.family, deaf.type) as filler:
        deaf.bind(str(short_dir / "mpsd-ui"))
        deaf.listen(0)
        filler.connect(str(short_dir / "mpsd-ui"))
        rc, out, err = output(run("a"))
    assert (rc, out) == (1, b"")
    assert err.startswith(CANNOT_FIND)
    assert err.endswith(b"mpsd-ui: nobody accepted the connection within 1 seconds\n")


def outputs(
    run: Run, place: Path, converse: Callable[[Conversation], None], commands: list[bytes]
) -> dict[bytes, tuple[int, bytes, bytes]]:
    """Return the output of each command, given to a front end with its own daemon; all run at once, so that they wait
    together."""
    with ExitStack() as daemons, ThreadPoolExecutor(len(commands)) as threads:
        started = {}
        for number, command in enumerate(commands):
            directory = place / str(number)
            directory.mkdir()
            daemons.enter_context(UiDaemon(directory, converse))
            started[command] = threads.submit(run, stdin=command, CUDA_MPS_PIPE_DIRECTORY=str(directory))
        return {command: output(each.result()) for command, each in started.items()}


def test_quit_waits_as_long_as_it_takes(run: Run, short_dir: Path) -> None:
    """Longer than any other answer may take: clients finish their work first."""

    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        time.sleep(1.2)  # the time under test
        conversation.answer(status=4)

    commands = [b"quit", b"quit -t 100", b" \tquit\t", b"quit\r"]
    assert outputs(run, short_dir, converse, commands) == dict.fromkeys(commands, (4, b"", b""))


@pytest.mark.slow
def test_a_quit_with_seconds_is_waited_for_a_while_longer(run: Run, short_dir: Path) -> None:
    """Then the daemon should have ended everything.  No number that overflows becomes a short wait, or one without an end."""

    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        time.sleep(3.2)  # the time under test
        with suppress(BrokenPipeError):
            conversation.answer(status=4)

    late = CANNOT_SEND + b"No answer within %d seconds\n"
    expected = {
        b"quit -t 0": (1, b"", late % 1),
        b"quit -t 1": (1, b"", late % 2),
        b"quit -t 10": (4, b"", b""),
        b"quit -t 2147484": (4, b"", b""),
        b"quit -t 9223372036854775807": (4, b"", b""),
        b"quit -t 18446744073709551616": (4, b"", b""),
        b"quit -t -1": (4, b"", b""),
        b"quit -t x": (4, b"", b""),
    }
    assert outputs(run, short_dir, converse, list(expected)) == expected


@pytest.mark.slow
def test_only_quit_does(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        while conversation.next_command():
            pass

    commands = [b"quitter", b"qui", b"quit;", b"x quit"]
    assert outputs(run, short_dir, converse, commands) == dict.fromkeys(commands, (1, b"", NO_ANSWER))


def test_after_quit_it_returns_when_the_daemons_process_is_gone(front_end: Path, short_dir: Path) -> None:
    """Slurm looks with ps as soon as `quit` returns.  This daemon needs a while after its last word and after closing."""
    code = (
        "import os, socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen(1); print(flush=True)\n"
        "c, _ = s.accept(); c.recv(100); c.send(b'mpsd-ui 1'); c.recv(100); c.send(b'X\\0')\n"
        "assert c.recv(100) == b''; c.close(); time.sleep(0.5)\n"
    )
    daemon = subprocess.Popen(
        ["/x/nvidia-cuda-mps-control", "-I", "-c", code, short_dir / "mpsd-ui"], executable="/usr/bin/python3",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert daemon.stdout
    daemon.stdout.readline()
    subprocess.run(
        [front_end, "quit"], env={"CUDA_MPS_PIPE_DIRECTORY": str(short_dir)}, check=True, capture_output=True, timeout=10
    )
    assert os.waitpid(daemon.pid, os.WNOHANG)[0] == daemon.pid
    daemon.returncode = 0
    daemon.stdout.close()


@pytest.mark.slow
def test_after_quit_it_does_not_wait_for_ever(run: Run, short_dir: Path) -> None:
    """The daemon keeps the connection open; and the listener belongs to a process that is not a daemon: this one."""

    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer()
        assert conversation.peer.recv(100) == b"", "our side is ended"
        stay.wait(timeout=15)

    stay = threading.Event()
    with UiDaemon(short_dir, converse):
        began = time.monotonic()
        assert output(run("quit")) == (0, b"", b"")
        assert time.monotonic() - began >= 2
        stay.set()


def test_a_quit_that_is_refused_is_not_waited_for(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer(b"ONot enough privilege to execute quit command\n")
        assert conversation.next_command() == b"ps"
        conversation.answer(b"Ostill here\n")

    with UiDaemon(short_dir, converse):
        result = run(stdin=b"quit\nps\n")
    assert output(result) == (0, b"Not enough privilege to execute quit command\nstill here\n", b"")
