"""The C client as a process that obeys lines, and a relay between it and mpsd that loses or changes answers.

mpsd sees the relay as its peer: the test's process holds an arena that is opened through the relay.
"""

import contextlib
import errno
import functools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

ROOT = Path(__file__).resolve().parents[2]
C_CLIENT = ROOT / "clients/c"
MIB = 1 << 20
GRANULE = 2 * MIB
DATAGRAM = 1 << 16


@functools.cache
def build(name: str, sanitizer: str = "") -> Path:
    """A program of tests/native/c_client or clients/c/examples."""
    out = f"build/san-{sanitizer}" if sanitizer else "build"
    subprocess.run(["make", "-s", "-C", C_CLIENT, f"SAN={sanitizer}", f"{out}/{name}"], check=True)
    return C_CLIENT / out / name


@dataclass(frozen=True, slots=True)
class Answer:
    """result: 0, or a negative errno; then `words` are those of mpsd_error()."""

    result: int
    words: str

    @property
    def error(self) -> str:
        return errno.errorcode.get(-self.result, str(self.result)) if self.result < 0 else ""


class Drive:
    """One process; its first context is open."""

    def __init__(self, program: Path, variables: Mapping[str, str]) -> None:
        checks = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
        self.process = subprocess.Popen(
            [program], env={**variables, **checks}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.pid = self.process.pid
        assert self.hear() == Answer(0, "ready")

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> Answer:
        """Blocks; the test's own deadline ends what does not come."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.endswith("\n"), f"ended with {self.process.wait(10)}"
        result, _, words = line.rstrip("\n").partition(" ")
        return Answer(int(result), words)

    def ask(self, line: str) -> Answer:
        self.say(line)
        return self.hear()

    def do(self, line: str) -> str:
        """It must succeed; its words."""
        answer = self.ask(line)
        assert answer.result == 0, f"{line}: {answer}"
        return answer.words

    def alloc(self, mib: int, seed: int = 0) -> str:
        """The address; filled with `seed`."""
        address = self.do(f"alloc {mib * MIB}")
        self.do(f"fill {address} {mib * MIB} {seed}")
        return address

    def end(self) -> None:
        """End it; the sanitizer reports leaks in the exit status."""
        if self.process.poll() is None and self.process.stdin:
            self.process.stdin.close()
        assert self.process.wait(10) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def clear(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@dataclass(slots=True)
class Frame:
    """mpsd's answer to `method`, for the test to change. raw: sent instead of the value."""

    method: str
    value: list[Any]
    fds: list[int]
    raw: bytes | None = None


Change = Callable[[Frame], None]


@dataclass(slots=True)
class Relay:
    """Listens on `path` and forwards everything to `upstream`, with the descriptors.

    lose: how many answers to a method are not passed on: the connection ends instead, after mpsd has carried it out.
    refuse: the same, before mpsd gets the request. change: a function that changes an answer.
    """

    path: Path
    upstream: Path
    lose: dict[str, int] = field(default_factory=dict)
    refuse: dict[str, int] = field(default_factory=dict)
    change: Change | None = None
    seen: list[str] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))

    def __post_init__(self) -> None:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(near,), daemon=True).start()

    def _talk(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as far, contextlib.suppress(OSError):
            far.connect(str(self.upstream))
            while self._pass(near, far):
                pass

    def _pass(self, near: socket.socket, far: socket.socket) -> bool:
        """One request and its answer; whether the connection goes on."""
        data, fds = receive(near)
        if not data:
            return False
        method = msgpack.unpackb(data)[2]
        self.seen.append(method)
        is_going = not _take_one(self.refuse, method) and self._ask(near, far, method, data, fds)
        for descriptor in fds:
            os.close(descriptor)
        return is_going

    def _ask(self, near: socket.socket, far: socket.socket, method: str, data: bytes, fds: list[int]) -> bool:
        socket.send_fds(far, [data], fds)
        answer, given = receive(far)
        frame = Frame(method, msgpack.unpackb(answer), given)
        if self.change:
            self.change(frame)
        is_going = not _take_one(self.lose, method)
        if is_going:
            socket.send_fds(near, [frame.raw if frame.raw is not None else msgpack.packb(frame.value)], frame.fds)
        for descriptor in frame.fds:
            os.close(descriptor)
        return is_going


def _take_one(counts: dict[str, int], method: str) -> bool:
    if not counts.get(method):
        return False
    counts[method] -= 1
    return True


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    data, fds, _, _ = socket.recv_fds(sock, DATAGRAM, 253)
    return data, fds


@contextlib.contextmanager
def open_relay(path: Path, upstream: Path) -> Iterator[Relay]:
    relay = Relay(path, upstream)
    try:
        yield relay
    finally:
        relay.close()
