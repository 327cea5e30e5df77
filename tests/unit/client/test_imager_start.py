"""What a program waits for while its imager starts: for nothing, unless its arena has more allocations than a socket holds."""

import json
import os
import resource
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import ImageError, Imager, start_imager
from mpsd_client._imager import ImagerProcess, memory_file
from mpsd_client._restoring import ImageSource

# Reads a line from a FIFO before it reads a request; answers as an imager does, which has taken an image.
FAKE = """#!{python}
import json, os, socket
open({gate!r}).readline()
connection, got = socket.socket(fileno=0), 0
while True:
    data, files, _, _ = socket.recv_fds(connection, 1 << 17, 128)
    if not data:
        break
    got += len(files)
    asked = json.loads(data)["do"]
    if asked in ("wait", "prepare"):
        answer = {{"is": "ready" if asked == "wait" else "prepared", "descriptors": got}}
        connection.send(json.dumps(answer).encode())
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path, program = tmp_path / "gate", tmp_path / "imager"
    os.mkfifo(path)
    program.write_text(FAKE.format(python=sys.executable, gate=str(path)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("MPSD_IMAGER", str(program))
    yield path
    with path.open("r+b", 0) as both:  # one that still waits must not outlive its test
        both.write(b"end\n")


def page(first: int) -> tuple[list[tuple[int, int, int]], list[int]]:
    return [(first << 21, 2 << 20, 1)], [os.memfd_create("allocation")]


def test_an_image_begins_before_its_imager_has_started(gate: Path, tmp_path: Path) -> None:
    imager = Imager([{"arena": "model"}], tmp_path / "images")
    try:
        imager.follow("model", [page(0)])
        imager.ask({"do": "prepare"})
        assert not imager.has_answered
        gate.write_text("start\n")
        assert imager.answer("prepared", 20)["descriptors"] == 2, "the progress, and the allocation"
    finally:
        imager.close()


def test_many_allocations_wait_until_the_imager_reads(gate: Path, tmp_path: Path) -> None:
    imager = Imager([{"arena": "model"}], tmp_path / "images")
    follows = threading.Thread(target=imager.follow, args=("model", [page(0), page(1)]), daemon=True)
    try:
        follows.start()
        follows.join(0.2)
        assert follows.is_alive()
        gate.write_text("start\n")
        follows.join(20)
        assert not follows.is_alive()
        imager.ask({"do": "prepare"})
        assert imager.answer("prepared", 20)["descriptors"] == 3
    finally:
        imager.close()


def test_no_file_for_the_imager_is_shorter_than_what_it_is_told() -> None:
    """With half an order of blocks, the imager would fill half an arena.  The kernel takes a page of a write, and refuses the
    rest with the next one, as where memory ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            memory_file(bytes(8192))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    whole = memory_file(bytes(8192))
    assert os.fstat(whole).st_size == 8192
    os.close(whole)


def test_an_answer_without_all_its_files_is_no_answer() -> None:
    """The last one that came would be taken for the one that is missing."""
    imager: Any = ImagerProcess.__new__(ImagerProcess)
    imager._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with imager._socket, theirs:
        socket.send_fds(theirs, [json.dumps({"is": "renewed"}).encode()], [theirs.fileno()] * 3)
        room = [os.dup(theirs.fileno()) for _ in range(2)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
        try:
            with suppress(OSError):
                while True:
                    room.append(os.dup(theirs.fileno()))
            for descriptor in room[:2]:
                os.close(descriptor)
            with pytest.raises(ImageError, match="no room"):
                imager.answer_with_files("renewed", 1.0)
            room[:2] = [os.dup(theirs.fileno()) for _ in range(2)]  # those that came are closed
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in room:
                os.close(descriptor)


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_given_imager_ends_where_no_image_can_be_found(gate: Path, monkeypatch: pytest.MonkeyPatch, is_alive: bool) -> None:
    """It belongs to the call: whoever tries again with another one must not keep the first one's context."""
    imager = start_imager()
    if is_alive:
        gate.write_text("start\n")
    else:
        imager._process.kill()
        imager._process.wait()
    monkeypatch.delenv("MPSD_IMAGES", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(ImageError, match="no home"):
        ImageSource("", "model", None, "", imager)
    assert (imager._socket.fileno(), imager._progress) == (-1, -1)
    imager._process.wait(20)
