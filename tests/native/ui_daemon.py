"""UI daemon: the other side of the front end's conversation, with answers that a test chooses."""

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

VERSION = b"mpsd-ui 1"
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
LIMIT = 1 << 20  # no datagram of a front end's is longer


class UiDaemon:
    """Listens at PIPE_DIR/mpsd-ui in a thread and lets `converse` talk to each front end.

        `commands` collects the commands in order. An error in a conversation is raised on leaving the `with`.
    """

    def __init__(self, pipe_directory: Path, converse: "Callable[[Conversation], None]", backlog: int = 8) -> None:
        self.commands: list[bytes] = []
        self._converse = converse
        self._failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(pipe_directory / "mpsd-ui"))
        self._listener.listen(backlog)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join(timeout=20)
        self._listener.close()
        if self._failures and kind is None:
            raise self._failures[0]

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(15)
                try:
                    self._converse(Conversation(peer, self.commands))
                except BaseException as exc:  # the test's, in its own thread
                    self._failures.append(exc)


class Conversation:
    """One front end, as its daemon sees it."""

    def __init__(self, peer: socket.socket, commands: list[bytes]) -> None:
        self.peer = peer
        self._commands = commands

    def greet(self) -> None:
        assert self.peer.recv(LIMIT) == VERSION
        self.peer.send(VERSION)

    def next_command(self) -> bytes | None:
        """Return None at the end; a message without a command is an empty datagram, which looks the same."""
        data = self.peer.recv(LIMIT)
        if data:
            self._commands.append(data)
        return data or None

    def answer(self, *datagrams: bytes, status: int = 0) -> None:
        for each in (*datagrams, b"X" + bytes([status])):
            self.peer.send(each)


def echo(conversation: Conversation) -> None:
    """Answers each command with itself in brackets."""
    conversation.greet()
    while (command := conversation.next_command()) is not None:
        conversation.answer(b"O[" + command + b"]\n")


def output(result: "subprocess.CompletedProcess[bytes]") -> tuple[int, bytes, bytes]:
    return result.returncode, result.stdout, result.stderr
