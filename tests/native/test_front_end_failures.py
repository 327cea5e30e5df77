"""The front end with a daemon that is absent, broken, slow or gone: one clear line, status 1, and an end in time."""

import random
import socket
from pathlib import Path

import pytest

from tests.native.ui_daemon import Conversation, Run, UiDaemon, echo, output
from tests.seeds import seeds

CANNOT_FIND = b"Cannot find MPS control daemon process\n"
CANNOT_SEND = b"Cannot send command to MPS control daemon process\n"


# -- no daemon, or one that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stdin", [b"", b"\n", b"get_server_list", b"quit\n", b"a\nb\n"])
@pytest.mark.parametrize("present", ["no socket", "no listener"])
def test_no_daemon(run: Run, short_dir: Path, stdin: bytes, present: str) -> None:
    if present == "no listener":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(short_dir / "mpsd-ui"))
    assert output(run(stdin=stdin)) == (1, b"", CANNOT_FIND)
    assert output(run("get_server_list")) == (1, b"", CANNOT_FIND)


def test_no_pipe_directory_and_the_default(run: Run, short_dir: Path) -> None:
    assert output(run(CUDA_MPS_PIPE_DIRECTORY=str(short_dir / "none"))) == (1, b"", CANNOT_FIND)
    result = run(CUDA_MPS_PIPE_DIRECTORY="")  # empty is unset: /tmp/nvidia-mps
    assert result.returncode in (0, 1)


def test_a_pipe_directory_that_is_a_file(run: Run, short_dir: Path) -> None:
    (short_dir / "file").touch()
    rc, out, err = output(run(CUDA_MPS_PIPE_DIRECTORY=str(short_dir / "file")))
    assert (rc, out) == (1, b"")
    assert err.decode() == CANNOT_FIND.decode() + f"{short_dir}/file/mpsd-ui: Not a directory\n"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_another_kind(run: Run, short_dir: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as wrong:
        wrong.bind(str(short_dir / "mpsd-ui"))
        rc, out, err = output(run())
    assert (rc, out) == (1, b"")
    assert err.startswith(CANNOT_FIND)


def test_a_pipe_directory_just_short_enough_and_one_byte_longer(run: Run, short_dir: Path) -> None:
    fitting = short_dir / ("d" * (107 - len("/mpsd-ui") - len(str(short_dir)) - 1))
    fitting.mkdir()
    with UiDaemon(fitting, echo):
        assert output(run("a", CUDA_MPS_PIPE_DIRECTORY=str(fitting))) == (0, b"[a]\n", b"")
    for longer in (1, 100, 5000, 100_000):
        rc, out, err = output(run("a", CUDA_MPS_PIPE_DIRECTORY=str(fitting) + "e" * longer))
        assert (rc, out) == (1, b"")
        assert err.decode() == (
            f"CUDA_MPS_PIPE_DIRECTORY is too long: mpsd-ui in it makes a path of {107 + longer} bytes, "
            "a socket's may have 107\n"
        )


@pytest.mark.parametrize("last_words", [[], [b"Opart"], [b"O"], [b"Z?"], [b"X"], [b"X\0\0"], [b"O" * 20000], [b"Opart", b""]])
def test_a_daemon_that_breaks_off_or_babbles(run: Run, short_dir: Path, last_words: list[bytes]) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        assert conversation.next_command() == b"a"
        for each in last_words:
            conversation.peer.send(each)

    with UiDaemon(short_dir, converse):
        result = run(stdin=b"a\nb\n")
    assert (result.returncode, result.stderr) == (1, CANNOT_SEND)
    assert result.stdout == (b"part" if b"Opart" in last_words else b"")


def test_a_daemon_that_left_between_two_commands(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer(b"Odone\n")

    with UiDaemon(short_dir, converse):
        assert output(run(stdin=b"a\nb\nc\n")) == (1, b"done\n", CANNOT_SEND)


@pytest.mark.parametrize("reads_first", [True, False])
@pytest.mark.parametrize("attempt", range(5))
def test_a_daemon_that_will_not_talk_says_why(run: Run, short_dir: Path, reads_first: bool, attempt: int) -> None:
    """Also when it leaves before it read the greeting: the kernel then reports a reset before its last words."""

    def converse(conversation: Conversation) -> None:
        if reads_first:
            conversation.peer.recv(100)
        conversation.peer.send(b"Etoo many sessions\n")
        conversation.peer.send(b"X\x03")

    with UiDaemon(short_dir, converse):
        assert output(run("a")) == (3, b"", b"too many sessions\n")


@pytest.mark.parametrize("greeting", [b"mpsd-ui 2", b"mpsd-ui 10", b"mpsd-ui ", b"hello", b"\0", b"x" * 20000])
def test_another_version_is_told(run: Run, short_dir: Path, greeting: bytes) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.peer.recv(100)
        conversation.peer.send(greeting)
        conversation.peer.recv(100)

    with UiDaemon(short_dir, converse):
        rc, out, err = output(run("a"))
    assert (rc, out) == (1, b"")
    assert err in (b'MPS control daemon process does not speak "mpsd-ui 1"\n', CANNOT_SEND)


# -- anything at all -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(20, 20))
def test_random_daemons(run: Run, short_dir: Path, seed: int) -> None:
    """For any answers of a daemon the front end ends in time, with a status, and without a crash."""
    rng = random.Random(seed)

    def converse(conversation: Conversation) -> None:
        try:
            if rng.random() < 0.9:
                conversation.greet()
            for _ in range(rng.randrange(30)):
                word = rng.choice([b"O", b"E", b"X", b"X\0", b"X\1", b"", b"O" + rng.randbytes(50), rng.randbytes(9)])
                conversation.peer.send(word * rng.choice([1, 1, 1, 3, 9000]))
        except OSError:
            pass

    lines = [rng.choice([b"ps", b"quit", b"", b"\0", rng.randbytes(30), b"y" * 5000]) for _ in range(rng.randrange(6))]
    with UiDaemon(short_dir, converse):
        result = run(stdin=rng.choice([b"\n", b"\r\n", b"\0"]).join(lines))
    assert 0 <= result.returncode <= 255
